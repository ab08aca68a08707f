"""`python -m actor_service.environments ID`: tries an environment, and prints its spec as JSON.

The launcher runs this before it starts a service, so it imports only what the environment needs.
"""

import argparse
import faulthandler
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from actor_service.environments import Backend, Environments, make_environments
from actor_service.environments.trial import first_step, play
from actorq.domain.environments import EnvironmentArguments
from actorq.errors import ActorQError

_TRIAL_S = 10.0
Tell = Callable[[dict[str, Any]], None]


class _Lifeline:
    """Standard input as the launcher's socket, which carries the answers. When the socket closes, this process ends.

    The environment gets an empty standard input. Its output, and its children's output, cannot mix with the answers.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=os.dup(0))
        with open(os.devnull, "rb") as empty:
            os.dup2(empty.fileno(), 0)
        # An environment may hang in its constructor.
        threading.Thread(target=self._end_with_parent, name="lifeline", daemon=True).start()

    def tell(self, answer: dict[str, Any]) -> None:
        """Send one line of JSON."""
        self._socket.sendall(json.dumps(answer).encode() + b"\n")

    def _end_with_parent(self) -> None:
        with suppress(OSError):
            while self._socket.recv(4096):
                pass
        os._exit(1)


def _main() -> int:
    parser = argparse.ArgumentParser(
        "actor_service.environments", description="Try an environment, and print its spec as JSON."
    )
    parser.add_argument("id", help="id of the environment, such as CartPole-v1")
    parser.add_argument(
        "--backend", choices=get_args(Backend), default="python", help="library that steps it (default: python)"
    )
    parser.add_argument(
        "--arguments", default="", help="keyword arguments and wrappers, in the format of RunSpec in the protos"
    )
    parser.add_argument(
        "--lifeline", action="store_true", help="answer on standard input, a socket, and end when its other end closes"
    )
    parser.add_argument("--steps", type=int, default=0, help="also play this many random steps (default: 0)")
    parser.add_argument(
        "--goals", action="store_true", help="also ask for the rewards of other goals, if there are any"
    )
    arguments = parser.parse_args()
    # The launcher then reads at which line a signal ended this process.
    faulthandler.enable()
    # The launcher quotes the environment's last line, not a line of this project.
    logging.getLogger("actor_service").addHandler(logging.NullHandler())
    logging.getLogger("actor_service").propagate = False
    if not arguments.lifeline:
        return _try(arguments, _print)
    code = _try(arguments, _Lifeline().tell)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    # The environment may have threads that never end.
    os._exit(code)


def _try(arguments: argparse.Namespace, tell: Tell) -> int:
    """Make one environment and take a step in it. Sends the name of each call before it, then the spec or the error."""
    try:
        tell({"call": "its constructor"})
        made_with = EnvironmentArguments.from_text(arguments.arguments)
        resets = partial(tell, {"call": "its first reset"})
        environments = make_environments(arguments.id, 1, arguments.backend, made_with, before_reset=resets)
        observations = first_step(environments, lambda call: tell({"call": call}))
        if arguments.goals:
            _try_goals(environments, observations, tell)
        figures = None
        if arguments.steps:
            # Messages are sent between steps, because the launcher limits the time between messages.
            alive = partial(tell, {"call": "one of its steps"})
            alive()
            figures = play(environments, arguments.steps, _TRIAL_S, alive)
        tell({"call": "close"})
        environments.close()
    except ActorQError as error:
        tell({"error": str(error), "exits": isinstance(error.__cause__, SystemExit)})
        return 2
    tell({"spec": environments.spec.to_json(), "figures": figures})
    return 0


def _try_goals(environments: Environments, observations: NDArray[Any], tell: Tell) -> None:
    """Compute the rewards of the achieved goal, with the desired goal and with itself. Raises as `GoalRewards` does."""
    goal, rewards = environments.spec.goal, environments.goal_rewards
    if goal is not None and rewards is not None:
        achieved, desired = goal.achieved_of(observations), goal.desired_of(observations)
        tell({"call": "compute_reward"})
        rewards(np.concatenate([achieved, achieved]), np.concatenate([desired, achieved]))


def _print(answer: dict[str, Any]) -> None:
    if "error" in answer:
        print(f"error: {answer['error']}", file=sys.stderr)  # noqa: T201
    elif "spec" in answer:
        print(json.dumps(answer["spec"]))  # noqa: T201


if __name__ == "__main__":
    sys.exit(_main())
