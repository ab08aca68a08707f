"""Steps environments with several agents one after the other. Each agent has a row of the batch."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments.agents.door import AgentDoor
from actor_service.environments.agents.team import AgentsChangedError, Parallel, Taken, Team, of_agent
from actor_service.environments.agents.team_part import TeamPart
from actor_service.environments.failures import FAILURES, FaultLimits, failure_text
from actor_service.environments.interface import OUT_OF_RANGE, Environments, Fault, Step
from actor_service.environments.step_columns import StepColumns, success_of
from actorq.domain.limits import within_numbers
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Episode

_log = logging.getLogger(__name__)


class AgentEnvironments(Environments):
    """N environments of A agents, as N x A rows. Row n * A + a is agent a of environment n.

    The row of an agent that leaves ends there: terminated or truncated, after its last observation. Until the agent
    comes back, its row repeats the observation of an agent that takes part, and is not valid. When it comes back, its
    row begins as after a reset. The next step after the last agent has left resets the environment.

    Errors and values out of range are faults of the whole environment, as in `LoopedEnvironments`.

    doors: the conversion of each agent. make: makes one environment.
    limit: steps after which an episode is truncated for all agents; 0 if the environments truncate it.
    part: what all critics see of the team; None without.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        doors: Sequence[AgentDoor],
        environments: Sequence[Parallel],
        make: Callable[[], Parallel],
        limit: int,
        part: TeamPart | None = None,
    ) -> None:
        super().__init__(spec, len(environments))
        self._doors, self._make, self._limit, self._part = doors, make, limit, part
        self._agents = len(doors)
        self._teams = [Team(each, spec.agents, spec.environment_id) for each in environments]
        metadata = getattr(environments[0], "metadata", None) or {}
        self.steps_per_second = float(metadata.get("render_fps") or self.steps_per_second)
        self._discrete = bool(spec.sizes)
        self._columns = StepColumns(spec.observations, self.lengths)
        self._faults = FaultLimits(spec.environment_id, self.count)
        self._seeds = np.random.default_rng()

    def reset(self, seed: int) -> NDArray[Any]:
        """Start new episodes. Environment i gets the seed `seed + i`."""
        # Seeds for recreated environments.
        self._seeds = np.random.default_rng(seed)
        self._columns.begin()
        for index in range(self.count):
            self._begin(index, seed + index)
        return self._columns.observations

    def step(self, actions: NDArray[Any]) -> Step:
        """Take one action for each agent, [N * A, *action]. Actions of absent agents are ignored."""
        given: Any = actions.tolist() if self._discrete else actions.copy()
        episodes: list[Episode] = []
        faults: dict[int, Fault] = {}
        idle: list[int] = []
        for index, team in enumerate(self._teams):
            if not team.living:
                # An environment that fails in a reset is recreated, which is no fault of a step.
                if (fault := self._begin(index, None)) is not None:
                    faults[index] = fault
                idle += self._rows(index)
                continue
            try:
                idle += self._advance(index, team, given, episodes)
            except AgentsChangedError:
                raise
            except FAILURES as error:
                self._restart(index, error)
                faults[index] = Fault(index, failure_text(error), restarted=True, error=error)
        for row in self._columns.broken():
            index = row // self._agents
            if index not in faults:
                faults[index] = self._mend(index, row)
        if faults:
            idle = [row for row in idle if row // self._agents not in faults]
            idle += [row for index in faults for row in self._rows(index)]
            episodes = [each for each in episodes if each.environment not in faults]
        step = self._columns.finish(idle, (), tuple(faults.values()), with_rows=False)
        self._faults.settle({*faults})
        return step._replace(episodes=tuple(episodes))

    def render(self, index: int) -> NDArray[np.uint8]:
        """A picture by the environment's own `render`, uint8[height, width, 3]."""
        return np.asarray(self._teams[index].environment.render())

    def close(self) -> None:
        """Close all environments, even when one of them fails to close."""
        for index, team in enumerate(self._teams):
            try:
                team.environment.close()
            except FAILURES as error:
                _log.warning(
                    *("environment %d of %s failed to close: %s", index, self.spec.environment_id, failure_text(error))
                )

    def _rows(self, index: int) -> range:
        return range(index * self._agents, (index + 1) * self._agents)

    def _advance(self, index: int, team: Team, given: Any, episodes: list[Episode]) -> list[int]:
        """Step an environment that has living agents. Returns the rows of agents that did not act."""
        columns, first = self._columns, index * self._agents
        taken = team.step(lambda agent: self._doors[agent].action(given[first + agent]))
        at_limit = bool(self._limit) and team.length >= self._limit
        if at_limit:
            taken.truncated |= {*taken.acted} - taken.ended
            team.living = []
        found = {each: taken.observation(each) for each in (*taken.acted, *(taken.begun if team.living else ()))}
        shared = None if self._part is None else self._part.value(team.environment, found)
        for agent in taken.acted:
            row = first + agent
            reward = taken.reward(agent)
            columns.rewards[row] = reward
            team.returns[agent] += reward
            acts = agent in team.living
            columns.observations[row] = self._doors[agent].observation(found[agent], taken.info(agent), acts, shared)
            if not acts:
                columns.terminated[row] = agent in taken.terminated
                columns.truncated[row] = agent in taken.truncated and agent not in taken.terminated
        for agent in taken.begun if team.living else ():
            seen = self._doors[agent].observation(found[agent], taken.info(agent), True, shared)
            columns.observations[first + agent] = seen
        self._repeat(first, {*taken.acted, *team.living})
        if not team.living:
            episodes.append(self._episode(index, team, taken))
        return [first + agent for agent in range(self._agents) if agent not in taken.acted]

    def _episode(self, index: int, team: Team, taken: Taken) -> Episode:
        told = [each for each in map(success_of, map(taken.info, taken.acted)) if each is not None]
        success = all(told) if told else None
        return Episode(sum(team.returns), team.length, index, success, tuple(team.returns))

    def _repeat(self, first: int, own: set[int]) -> None:
        """Fill the rows of the agents that have no observation of their own."""
        self.present[first : first + self._agents] = False
        source = min(own)
        for agent in range(self._agents):
            if agent in own:
                self.present[first + agent] = True
            else:
                self._columns.observations[first + agent] = self._columns.observations[first + source]

    def _begin(self, index: int, seed: int | None) -> Fault | None:
        """Begin an episode, with retries after faults. Returns the fault if there was one. Too many faults raise."""
        fault: Fault | None = None
        while True:
            team, rows = self._teams[index], self._rows(index)
            try:
                self._fill(index, *team.reset(seed))
            except AgentsChangedError:
                raise
            except FAILURES as error:
                self._restart(index, error)
                fault = Fault(index, failure_text(error), restarted=True, error=error)
            if self._is_within(rows):
                return fault
            self._faults.count(index, f"{OUT_OF_RANGE} in the first observations of an episode")
            fault, seed = Fault(index, OUT_OF_RANGE, restarted=False), None

    def _fill(self, index: int, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Write the first observations of an episode."""
        team, first = self._teams[index], index * self._agents
        found = {each: of_agent(observations, team.ids[each], "observations", "reset") for each in team.living}
        shared = None if self._part is None else self._part.value(team.environment, found)
        for agent, value in found.items():
            info = infos.get(team.ids[agent])
            own = info if isinstance(info, Mapping) else {}
            self._columns.observations[first + agent] = self._doors[agent].observation(value, own, True, shared)
        self._columns.rewards[first : first + self._agents] = 0.0
        self._repeat(first, {*team.living})

    def _is_within(self, rows: range) -> bool:
        observations = self._columns.observations[rows.start : rows.stop]
        return observations.dtype.kind != "f" or bool(within_numbers(observations).all())

    def _mend(self, index: int, row: int) -> Fault:
        """Begin a new episode in an environment with a value out of range."""
        agent = self.spec.agents[row % self._agents]
        self._faults.count(index, f"{OUT_OF_RANGE}: observation or reward of {agent}")
        return self._begin(index, None) or Fault(index, OUT_OF_RANGE, restarted=False)

    def _restart(self, index: int, error: BaseException) -> None:
        """Recreate an environment and begin an episode."""
        team = self._teams[index]
        while True:
            self._faults.count(index, failure_text(error), error)
            with suppress(*FAILURES):
                team.environment.close()
            try:
                team.replace(self._make())
                self._fill(index, *team.reset(int(self._seeds.integers(2**31))))
                return
            except AgentsChangedError:
                raise
            except FAILURES as next_error:
                error = next_error
