"""Messages between a simulator and the actor through which it plays."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actorq.domain import limits
from actorq.domain.leaves import Leaf
from actorq.domain.spaces import ArraySpec
from actorq.errors import InvalidInputError
from actorq.v1 import external_pb2, trajectory_pb2
from actorq.wire import bounds
from actorq.wire.fields import Pair, many, nested
from actorq.wire.tensors import (
    ARRAY_SPEC,
    array_spec_from_proto,
    array_spec_to_proto,
    duration,
    tensor_from_proto,
    tensor_to_proto,
)
from actorq.wire.trajectories import LEAF_KIND

PROTOCOL = 1
"""Number of the protocol of `Play`. It changes when a simulator with the earlier number would be misread."""


@dataclass(frozen=True)
class PlayOpening:
    """A simulator and its spaces: `PlayOpen` in protos/actorq/v1/external.proto."""

    protocol: int
    environments: int
    observations: tuple[Leaf, ...]
    actions: ArraySpec
    sizes: tuple[int, ...] = ()
    max_episode_steps: int = 0
    reward_threshold: float | None = None
    frame_stack: int = 1
    explore: bool = True


# Steps and answers are tuples, because a frozen dataclass takes several times as long to make.
class PlayStep(NamedTuple):
    """A step of all n environments of a stream, as the simulator sent it: `PlayStep` in the same file.

    observations: [n, *shape] of each array. rewards: float64[n]. terminated, truncated: bool[n].
    successes: bool[n], or empty if the simulator does not report success.
    """

    observations: tuple[NDArray[Any], ...]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    successes: NDArray[np.bool_]


@dataclass(frozen=True)
class PlayReady:
    """The answer to a simulator that the actor accepts: `PlayReady` in the same file."""

    protocol: int
    run_id: str
    environment_id: str
    timeout_s: float


class PlayAnswer(NamedTuple):
    """The actions for a step of n environments: `PlayAction` in the same file.

    actions: [n, *action]. policy_versions: int64[n]. evaluating: bool[n].
    """

    actions: NDArray[Any]
    policy_versions: NDArray[np.int64]
    scheme: str
    evaluating: NDArray[np.bool_]


def _leaf(**fields: Any) -> Leaf:
    leaf = Leaf(**fields)
    if fault := leaf.fault:
        raise InvalidInputError(f"open.observations: {leaf.name or 'the array'}: {fault}")
    return leaf


# The only array of an observation needs no name.
_LEAF = Pair(
    trajectory_pb2.Leaf,
    _leaf,
    {
        bounds.optional_name: "name",
        LEAF_KIND: "kind",
        bounds.between(0, 2**31 - 1): "categories",
        bounds.anything: "critic",
    },
    prefix="open.observations.",
)


def _leaf_to_proto(leaf: Leaf) -> trajectory_pb2.Leaf:
    return _LEAF.to_proto(leaf, spec=array_spec_to_proto(ArraySpec(leaf.shape, leaf.dtype)))


def _leaf_from_proto(message: trajectory_pb2.Leaf) -> Leaf:
    spec = array_spec_from_proto(message.spec)
    return _LEAF.from_proto(message, shape=spec.shape, dtype=spec.dtype)


def _opening(explore: bool | None, frame_stack: int, **fields: Any) -> PlayOpening:
    return PlayOpening(explore=explore is not False, frame_stack=max(1, frame_stack), **fields)


play_opening_to_proto, play_opening_from_proto = Pair(
    external_pb2.PlayOpen,
    _opening,
    {
        bounds.anything: "protocol max_episode_steps explore",
        bounds.between(1, limits.MAX_ENVIRONMENTS): "environments",
        many(nested(_leaf_to_proto, _leaf_from_proto), limits.MAX_LEAVES): "observations",
        ARRAY_SPEC: "actions",
        many(bounds.between(1, limits.MAX_DISCRETE_ACTIONS), limits.MAX_PARTS): "sizes",
        bounds.figure: "reward_threshold",
        bounds.between(0, limits.MAX_FRAME_STACK): "frame_stack",
    },
    prefix="open.",
).both

play_ready_to_proto = Pair(
    external_pb2.PlayReady,
    PlayReady,
    {
        bounds.anything: "protocol",
        bounds.optional_name: "run_id",
        bounds.name: "environment_id",
        duration(0.0, limits.MAX_SECONDS): "timeout_s=timeout",
    },
    prefix="ready.",
).to_proto


# Written by hand, because each step of each simulator is such a message.
def play_step_to_proto(step: PlayStep) -> external_pb2.PlayStep:
    """Encode a step."""
    return external_pb2.PlayStep(
        observations=[tensor_to_proto(values) for values in step.observations],
        rewards=step.rewards.tolist(),
        terminated=step.terminated.tolist(),
        truncated=step.truncated.tolist(),
        successes=step.successes.tolist(),
    )


def play_step_from_proto(message: external_pb2.PlayStep) -> PlayStep:
    """Decode a step. The receiver checks it against the spaces of the stream."""
    observations = bounds.items("step.observations", message.observations, limits.MAX_LEAVES)
    # A slice is a list, which numpy converts faster than a repeated field.
    return PlayStep(
        tuple(map(tensor_from_proto, observations)),
        np.array(bounds.items("step.rewards", message.rewards, limits.MAX_ENVIRONMENTS)[:], np.float64),
        _flags("step.terminated", message.terminated),
        _flags("step.truncated", message.truncated),
        _flags("step.successes", message.successes),
    )


def _flags(what: str, values: Any) -> NDArray[np.bool_]:
    if not values:
        return _no_flags(0)
    given = bounds.items(what, values, limits.MAX_ENVIRONMENTS)[:]
    return np.array(given, np.bool_) if True in given else _no_flags(len(given))


@lru_cache(maxsize=256)
def _no_flags(count: int) -> NDArray[np.bool_]:
    """Flags that are all false, as in most steps; read-only, because steps share them."""
    flags = np.zeros(count, np.bool_)
    flags.setflags(write=False)
    return flags


def play_answer_to_proto(answer: PlayAnswer) -> external_pb2.PlayAction:
    """Encode the actions for a step."""
    return external_pb2.PlayAction(
        actions=tensor_to_proto(answer.actions),
        policy_versions=answer.policy_versions.tolist(),
        scheme=answer.scheme,
        evaluating=answer.evaluating.tolist(),
    )
