"""Recognizes environments with several agents, without an import of PettingZoo."""

from collections.abc import Callable
from typing import Any

import gymnasium


class AgentsFound(Exception):  # noqa: N818
    """A user's function has made an environment with several agents.

    environment: the one that it made. make: makes another one.
    """

    def __init__(self, environment: Any, make: Callable[[], Any]) -> None:
        super().__init__("an environment with several agents")
        self.environment, self.make = environment, make


def has_agents(environment: object) -> bool:
    """Whether an object has PettingZoo's interface, of either kind: `possible_agents`, and spaces for each agent."""
    if isinstance(environment, gymnasium.Env) or not hasattr(environment, "possible_agents"):
        return False
    return all(callable(getattr(environment, name, None)) for name in ("observation_space", "action_space"))


def acts_in_turns(environment: object) -> bool:
    """Whether an environment has PettingZoo's AEC interface, in which one agent acts after the other."""
    return callable(getattr(environment, "agent_iter", None))
