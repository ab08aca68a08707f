"""Runs the command of the arguments with hidden instructions."""

import sys

from actorq.errors import UserError
from actorq.process import EXIT_USER_ERROR
from benchmarks import hidden

try:
    if not sys.argv[1:]:
        raise UserError("give a command: python -m benchmarks.hidden python -m benchmarks.policy.inference")
    sys.exit(hidden.run(sys.argv[1:]))
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(EXIT_USER_ERROR)
