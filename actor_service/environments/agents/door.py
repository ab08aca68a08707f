"""Converts the observations, masks and actions of one agent, with the rules for environments of a single agent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from actor_service.environments.failures import FAILURES, MisfitError, kind_of
from actor_service.environments.spaces.actions import JointActions, sizes_of, with_one_action
from actor_service.environments.spaces.critics import CriticParts
from actor_service.environments.spaces.described import spec_of, with_one_observation, wrapper_of
from actor_service.environments.spaces.observations import leaves_of
from actor_service.environments.spaces.packing import PackedObservations, Source, mentions_mask
from actorq.domain.environments import AgentIdentity
from actorq.domain.leaves import ACTION_MASK
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError

# Keys of an observation with further parts. A Dict of the environment keeps its own keys.
_OBSERVATION, _AGENT, _GROUP = "observation", "agent", "group"
TEAM = "team"
"""Key of the part that only critics see; see `TeamPart`."""
_SETTINGS = {_AGENT: "agents.identity", _GROUP: "policies", TEAM: "agents.critic"}
# Attributes of PettingZoo's wrappers with the environment inside, and modules of all environments' base classes.
_WRAPPED = ("env", "aec_env", "par_env")
_OF_ALL = ("builtins", "typing", "abc", "pettingzoo.utils.env")


class AgentDoor:
    """The conversion of one agent. spec: of an environment that has only this agent.

    The constructor raises UserError for unsupported spaces.
    """

    def __init__(
        self,
        environment_id: str,
        observations: spaces.Space[Any],
        actions: spaces.Space[Any],
        mask: Source,
        agent: int,
        agents: int,
        critics: CriticParts,
        identity: AgentIdentity,
        team: spaces.Space[Any] | None = None,
        bits: Sequence[int] = (),
    ) -> None:
        """mask: where the mask is. agent: index of the agent among `agents`. identity: see `EnvironmentArguments`.

        critics: the parts that only critics see, without `team`. team: the space of the team's part; None without.
        bits: for each group of agents 1 if the agent belongs to it, else 0; empty without groups.
        """
        self._is_dict = isinstance(observations, spaces.Dict)
        self._own: dict[str, Any] = {} if identity == "none" else {_AGENT: agent}
        further: dict[str, spaces.Space[Any]] = {} if identity == "none" else {_AGENT: spaces.Discrete(agents)}
        if bits:
            self._own[_GROUP], further[_GROUP] = np.array(bits, np.int8), spaces.MultiBinary(len(bits))
        if team is not None:
            further[TEAM] = team
            critics = replace(critics, paths=(*critics.paths, TEAM))
        self._has_parts, self._has_team = bool(further), team is not None and not critics.left_out
        if further:
            observations = _with_parts(environment_id, observations, further)
        acting = with_one_action(_View(observations, actions))
        joint = wrapper_of(acting, JointActions)
        self._act = joint.action if joint else None
        sizes = joint.sizes if joint else sizes_of(actions)
        try:
            observed = with_one_observation(acting, mask, sizes, joint is None or joint.combined, critics)
        except UserError as error:
            raise UserError(f"environment {environment_id}: {error}") from None
        self._packed = wrapper_of(observed, PackedObservations)
        self._joined = observed if isinstance(observed, gymnasium.ObservationWrapper) else None
        self.spec: EnvironmentSpec = replace(spec_of(environment_id, observed, joint, 0, None), goal=None)
        self._shape, self._dtype = self.spec.observations.shape, np.dtype(self.spec.observations.dtype)

    @property
    def first_bit(self) -> int:
        """The component of the vector of observations, as critics see it, with the bit of the first group."""
        if self._packed is not None:
            return self._packed.first_component(_GROUP)
        assert self._joined is not None
        before = takewhile(lambda part: part[0] != (_GROUP,), leaves_of(self._joined.env.observation_space))
        return sum(spaces.flatdim(space) for _, space in before)

    def observation(self, value: Any, info: Mapping[str, Any], acts: bool, team: Any = None) -> NDArray[Any]:
        """An observation as one array. The next call may overwrite it. acts: whether the agent acts after it.

        team: the value of the team's part, if there is one. Raises MisfitError when it does not fit its space.
        """
        further = {**self._own, TEAM: team} if self._has_team else self._own
        if self._has_parts:
            value = {**value, **further} if self._is_dict else {_OBSERVATION: value, **further}
        if self._packed is not None:
            return self._packed.pack(value, info, acts)
        if self._joined is not None:
            value = self._joined.observation(value)
        array = np.asarray(value)
        if array.shape != self._shape or not np.can_cast(array.dtype, self._dtype, "same_kind"):
            raise MisfitError(
                f"an observation must be {self._dtype}{list(self._shape)} as its space says, got {kind_of(array)}"
            )
        return array

    def action(self, value: Any) -> Any:
        """The environment's own action."""
        return value if self._act is None else self._act(value)


class _View(gymnasium.Env[Any, Any]):
    """The spaces of one agent, for the wrappers that convert them. It is never reset or stepped."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions


def mask_source(
    environment: Any, observations: spaces.Space[Any], sizes: Sequence[int], before_reset: Callable[[], None]
) -> Source:
    """Where the masks of an environment's agents are; empty if there are none.

    Resets the environment if the source code of its classes contains the word.
    """
    if not sizes:
        return ""
    if isinstance(observations, spaces.Dict) and ACTION_MASK in observations.spaces:
        return "observation"
    if not any(map(mentions_mask, _classes(environment))):
        return ""
    before_reset()
    try:
        _, infos = environment.reset(seed=0)
        has_mask = any(isinstance(info, Mapping) and ACTION_MASK in info for info in infos.values())
    except FAILURES:
        # A reset that fails here fails again where the error is reported.
        return ""
    return "info" if has_mask else ""


def _classes(environment: Any) -> Iterator[type]:
    """The classes of an environment and its wrappers, without PettingZoo's base classes."""
    seen: list[Any] = []
    while environment is not None and not any(environment is each for each in seen):
        seen.append(environment)
        yield from (each for each in type(environment).__mro__ if each.__module__ not in _OF_ALL)
        wrapped = (getattr(environment, name, None) for name in _WRAPPED)
        environment = next((each for each in wrapped if each is not None), None)


def _with_parts(
    environment_id: str, observations: spaces.Space[Any], further: Mapping[str, spaces.Space[Any]]
) -> spaces.Space[Any]:
    if not isinstance(observations, spaces.Dict):
        return spaces.Dict({_OBSERVATION: observations, **further})
    for key in further.keys() & observations.spaces.keys():
        setting = _SETTINGS[key]
        raise UserError(
            f"environment {environment_id}: {setting} adds the key {key!r} to observations, which have it already; "
            f"leave {setting} out, or rename the key"
        )
    return spaces.Dict({**observations.spaces, **further})
