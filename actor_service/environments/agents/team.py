"""One environment with several agents: which of them take part, and the results of its calls by agent."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium

from actor_service.environments.failures import MisfitError, kind_of
from actorq.errors import UserError
from actorq.text import one_line

AgentId = Hashable
_MOST_BYTES = 300
_RESULTS = ("observations", "rewards", "terminations", "truncations", "infos")


class _Parallel(Protocol):
    """PettingZoo's parallel interface. `agents` are those that act in the next step."""

    metadata: dict[str, Any]
    possible_agents: list[Any]
    agents: list[Any]

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]: ...
    def step(
        self, actions: dict[Any, Any]
    ) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any]]: ...
    def observation_space(self, agent: Any) -> gymnasium.Space[Any]: ...
    def action_space(self, agent: Any) -> gymnasium.Space[Any]: ...
    def state(self) -> Any: ...
    def render(self) -> Any: ...
    def close(self) -> None: ...


Parallel = _Parallel
"""An environment in PettingZoo's parallel interface."""


class AgentsChangedError(UserError):
    """The possible agents of an environment differ from those of the run. A new environment would not help."""


class Taken:
    """The results of one step for the agents that acted, by their index.

    acted: the agents that acted. ended: those whose part of the episode ended. begun: agents that join after the step.
    """

    def __init__(self, team: "Team", results: Any) -> None:
        if not (isinstance(results, tuple) and len(results) == len(_RESULTS)):
            raise MisfitError(f"step must return ({', '.join(_RESULTS)}), got {kind_of(results)}")
        for name, result in zip(_RESULTS, results, strict=True):
            if not isinstance(result, Mapping):
                raise MisfitError(f"step must return {name} as a dict by agent, got {kind_of(result)}")
        self._ids, self.acted = team.ids, team.living
        self._observations, self._rewards, terminations, truncations, self._infos = results
        after = team.listed()
        self.terminated = {each for each in self.acted if bool(self._of(terminations, each, "terminations"))}
        # An agent that leaves without a flag has not reached a terminal state.
        self.truncated = {
            each
            for each in self.acted
            if bool(self._of(truncations, each, "truncations")) or (each not in after and each not in self.terminated)
        }
        self.ended = self.terminated | self.truncated
        flagged = {
            each
            for each, agent in enumerate(self._ids)
            if terminations.get(agent, False) or truncations.get(agent, False)
        }
        self.begun = [each for each in after if each not in self.acted and each not in flagged]

    def observation(self, agent: int) -> Any:
        """The observation of an agent after the step. Raises MisfitError when it is missing."""
        return self._of(self._observations, agent, "observations")

    def reward(self, agent: int) -> float:
        """The reward of an agent. Raises MisfitError when it is missing or no number."""
        found = self._of(self._rewards, agent, "rewards")
        try:
            return float(found)
        except (TypeError, ValueError):
            raise MisfitError(f"a reward must be a number, got {found!r}") from None

    def info(self, agent: int) -> Mapping[str, Any]:
        """The info of an agent; empty if it is missing."""
        found = self._infos.get(self._ids[agent])
        return found if isinstance(found, Mapping) else {}

    def _of(self, values: Mapping[Any, Any], agent: int, name: str) -> Any:
        return of_agent(values, self._ids[agent], name, "step")


class Team:
    """An environment and the state of its agents.

    ids: the agents, by index. living: the agents that act in the next step; empty where the episode is over.
    length: steps of the episode. returns: sum of the rewards of each agent in the episode.
    """

    def __init__(self, environment: _Parallel, agents: Sequence[str], environment_id: str) -> None:
        self._names, self._environment_id = tuple(agents), environment_id
        self.living: list[int] = []
        self.length = 0
        self.returns = [0.0] * len(agents)
        self.replace(environment)

    def replace(self, environment: _Parallel) -> None:
        """Use another environment. Raises AgentsChangedError when it has other agents."""
        self.environment = environment
        self._require_same_agents()

    def reset(self, seed: int | None) -> tuple[Mapping[AgentId, Any], Mapping[AgentId, Any]]:
        """Begin an episode. Returns observations and infos by agent.

        Raises AgentsChangedError when the environment has other agents than before, MisfitError when the result does
        not fit the interface, and what the environment raises.
        """
        result = self.environment.reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(each, Mapping) for each in result)):
            raise MisfitError(f"reset must return (observations, infos), two dicts by agent, got {kind_of(result)}")
        self._require_same_agents()
        self.living = self.listed()
        if not self.living:
            raise MisfitError("agents must name at least one agent after reset, got none")
        self.length, self.returns = 0, [0.0] * len(self._names)
        return result

    def step(self, actions: Callable[[int], Any]) -> Taken:
        """Act with all living agents. actions: the environment's action of an agent. Counts rewards and length."""
        taken = Taken(self, self.environment.step({self.ids[each]: actions(each) for each in self.living}))
        self.length += 1
        self.living = [each for each in taken.acted if each not in taken.ended] + taken.begun
        return taken

    def listed(self) -> list[int]:
        """The indices of the agents that the environment names now, in the order of the run."""
        agents = list(self.environment.agents)
        if unknown := [each for each in agents if each not in self._places]:
            raise MisfitError(f"agents must be among possible_agents, got {unknown[0]!r}")
        return sorted({self._places[each] for each in agents})

    def _require_same_agents(self) -> None:
        self.ids: list[Any] = list(self.environment.possible_agents)
        if tuple(map(str, self.ids)) != self._names:
            before, now = (one_line(str(list(each)), _MOST_BYTES) for each in (self._names, map(str, self.ids)))
            raise AgentsChangedError(
                f"environment {self._environment_id}: its possible_agents were {before} and are {now}, but a run has "
                "one fixed list; name every agent that may occur in possible_agents, and the agents of an episode in "
                "agents"
            )
        self._places = {agent: index for index, agent in enumerate(self.ids)}


def of_agent(values: Mapping[Any, Any], agent: AgentId, name: str, call: str) -> Any:
    """The value of an agent. Raises MisfitError when it is missing."""
    if agent not in values:
        raise MisfitError(f"{call} must return {name} of each agent that takes part, got none of {agent!r}")
    return values[agent]
