"""An environment with several agents in RLlib's own class. Its processes import this module."""

import importlib
from typing import Any

from benchmarks.libraries.peer_runs.lives import Lives, make


def made(environment: str, lives: int) -> Any:
    """The environment of an id. lives: see `Lives`."""
    base = importlib.import_module("ray.rllib.env.multi_agent_env").MultiAgentEnv
    found = Lives(make(environment), lives)

    class Team(base):  # type: ignore[misc, valid-type]
        """Passes all calls on."""

        def __init__(self) -> None:
            self.possible_agents = self.agents = found.names
            self.observation_spaces = dict.fromkeys(found.names, found.observations)
            self.action_spaces = dict.fromkeys(found.names, found.actions)
            super().__init__()

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
            return found.reset(seed)

        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            return found.step(actions)

    return Team()
