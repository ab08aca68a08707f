"""Converts the observations, masks and actions of one agent, with the rules for environments of a single agent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from actor_service.environments.failures import FAILURES, MisfitError, kind_of
from actor_service.environments.spaces.actions import JointActions, sizes_of, with_one_action
from actor_service.environments.spaces.critics import CriticParts
from actor_service.environments.spaces.described import spec_of, with_one_observation, wrapper_of
from actor_service.environments.spaces.packing import PackedObservations, Source, mentions_mask
from actorq.domain.environments import AgentIdentity
from actorq.domain.leaves import ACTION_MASK
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError

# Keys of an observation with the agent's identity. A Dict of the environment keeps its own keys.
_OBSERVATION, _AGENT = "observation", "agent"
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
    ) -> None:
        """mask: where the mask is. agent: index of the agent among `agents`. identity: see `EnvironmentArguments`."""
        self._number = None if identity == "none" else agent
        self._is_dict = isinstance(observations, spaces.Dict)
        if self._number is not None:
            observations = _with_identity(environment_id, observations, agents)
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

    def observation(self, value: Any, info: Mapping[str, Any], acts: bool) -> NDArray[Any]:
        """An observation as one array. The next call may overwrite it. acts: whether the agent acts after it.

        Raises MisfitError when it does not fit its space.
        """
        if self._number is not None:
            value = {**value, _AGENT: self._number} if self._is_dict else {_OBSERVATION: value, _AGENT: self._number}
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


def _with_identity(environment_id: str, observations: spaces.Space[Any], agents: int) -> spaces.Space[Any]:
    number = spaces.Discrete(agents)
    if not isinstance(observations, spaces.Dict):
        return spaces.Dict({_OBSERVATION: observations, _AGENT: number})
    if _AGENT in observations.spaces:
        raise UserError(
            f"environment {environment_id}: agents.identity adds the key {_AGENT!r} to observations, which have it "
            "already; leave agents.identity out, or rename the key"
        )
    return spaces.Dict({**observations.spaces, _AGENT: number})
