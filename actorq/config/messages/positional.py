"""Positional arguments that several commands share."""

import argparse
from functools import partial

from actorq.config.parser import OneLineParser
from actorq.errors import UserError


def add_environment(parser: OneLineParser) -> None:
    """Accept the environment id without its flag: `actorq train LunarLander-v3`."""
    parser.usage = f"{parser.prog} [ENVIRONMENT] [flags]"
    parser.add_argument(
        "environment_id",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="ENVIRONMENT",
        help="environment id, the same as --environment",
    )
    parser.settle = partial(_settle, parser)


def _settle(parser: OneLineParser, namespace: argparse.Namespace) -> None:
    """Store the id as the setting `environment`. Raises UserError for two different ids or any other argument."""
    given: str | None = vars(namespace).pop("environment_id", None)
    if given is None:
        return
    if "=" in given:
        # The user wrote a setting in another program's style.
        parser.refuse(given, namespace)
    if (other := vars(namespace).setdefault("environment", given)) != given:
        raise UserError(f"expected one environment, got {given!r} and --environment {other!r}")
