"""`python -m actor_service.environments ID`: prints the spec of an environment as JSON.

The launcher runs this before it starts a service, so it imports only what the environment needs.
"""

import argparse
import json
import sys
import threading
from typing import get_args

from actor_service.environments import Backend, describe_environment
from actorq.domain.environments import EnvironmentArguments
from actorq.errors import InvalidInputError, UserError
from actorq.lifeline import end_with_parent


def _main() -> int:
    parser = argparse.ArgumentParser("actor_service.environments", description="Print an environment's spec as JSON.")
    parser.add_argument("id", help="id of the environment, such as CartPole-v1")
    parser.add_argument(
        "--backend", choices=get_args(Backend), default="python", help="library that steps it (default: python)"
    )
    parser.add_argument(
        "--arguments", default="", help="keyword arguments and wrappers, in the format of RunSpec in the protos"
    )
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    arguments = parser.parse_args()
    if arguments.lifeline:
        # An environment may hang while it is made.
        threading.Thread(target=end_with_parent, name="lifeline", daemon=True).start()
    try:
        made_with = EnvironmentArguments.from_text(arguments.arguments)
        spec = describe_environment(arguments.id, arguments.backend, made_with)
    except (UserError, InvalidInputError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print(json.dumps(spec.to_json()))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(_main())
