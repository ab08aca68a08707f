"""The part of every agent's observation that only critics see: the observations of all agents, or the state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from actor_service.environments.agents.team import Parallel
from actor_service.environments.failures import FAILURES, MisfitError, failure_text, kind_of
from actor_service.environments.spaces.observations import leaves_of, part_words
from actorq.domain.environments import AgentCritic
from actorq.domain.leaves import ACTION_MASK
from actorq.errors import UserError
from actorq.text import one_line

_MOST_BYTES = 300


@dataclass(frozen=True)
class TeamPart:
    """A part that is equal for all agents of an environment.

    value: the part, from the environment and the observations of the agents that take part, by their index. Raises
        MisfitError for an observation that does not fit its space.
    """

    space: spaces.Space[Any]
    value: Callable[[Parallel, Mapping[int, Any]], Any]


def team_part(
    kind: AgentCritic,
    environment_id: str,
    environment: Parallel,
    observations: spaces.Space[Any],
    before_reset: Callable[[], None],
) -> TeamPart | None:
    """The part for this kind of critic; None for critics that see what their agent sees.

    observations: of each agent. Resets the environment for its state.
    Raises UserError for an environment that has no such part.
    """
    if kind == "own":
        return None
    if kind == "state":
        return TeamPart(_state_space(environment_id, environment, before_reset), lambda each, _: each.state())
    return _joint(environment_id, observations, len(environment.possible_agents))


def _joint(environment_id: str, observations: spaces.Space[Any], agents: int) -> TeamPart:
    """The observations of all agents as one vector, zeros for an absent agent, and which agents take part."""
    seen = observations
    if isinstance(seen, spaces.Dict):
        seen = spaces.Dict({key: each for key, each in seen.spaces.items() if key != ACTION_MASK})
    if not all(part_words(each) for _, each in leaves_of(seen)):
        raise UserError(
            f"environment {environment_id}: agents.critic joint needs observations of numbers and categories, got "
            f"{one_line(str(seen), _MOST_BYTES)}; give agents.critic state or own"
        )
    size = spaces.flatdim(seen)

    def value(_: Parallel, found: Mapping[int, Any]) -> dict[str, Any]:
        joined, present = np.zeros((agents, size), np.float32), np.zeros(agents, np.int8)
        for agent, observation in found.items():
            try:
                joined[agent] = np.asarray(spaces.flatten(seen, observation))
            except Exception:  # A value of an unknown type may raise any exception.
                raise MisfitError(f"an observation must be in {seen}, got {kind_of(observation)}") from None
            present[agent] = 1
        return {"observations": joined.ravel(), "present": present}

    numbers = spaces.Box(-np.inf, np.inf, (agents * size,), np.float32)
    return TeamPart(spaces.Dict({"observations": numbers, "present": spaces.MultiBinary(agents)}), value)


def _state_space(environment_id: str, environment: Parallel, before_reset: Callable[[], None]) -> spaces.Space[Any]:
    """The space of an environment's `state()`: the one that it names, or that of its first state."""
    before_reset()
    try:
        environment.reset(seed=0)
        state = np.asarray(environment.state())
    except FAILURES as error:
        raise UserError(
            f"environment {environment_id}: agents.critic state needs an environment whose state() works, got "
            f"{failure_text(error)}; give agents.critic joint"
        ) from None
    named = getattr(environment, "state_space", None)
    if isinstance(named, spaces.Space):
        return named
    if state.dtype == np.uint8 and state.ndim == 3:
        return spaces.Box(0, 255, state.shape, np.uint8)
    if state.dtype.kind not in "fiub" or not state.ndim:
        raise UserError(
            f"environment {environment_id}: agents.critic state needs a state() of numbers, got {kind_of(state)}; give "
            "agents.critic joint"
        )
    return spaces.Box(-np.inf, np.inf, state.shape, np.float32)
