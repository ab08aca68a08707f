"""The spaces of a simulator: the spec of its environment, and the form of observations in segments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq import wire
from actorq.config.segments import most_environments
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.leaves import ACTION_MASK, CRITIC_VECTOR, VECTOR, Leaf, fault_of, packed_nbytes, views
from actorq.domain.limits import LARGEST_NUMBER, all_within_numbers, within_numbers
from actorq.domain.spaces import ArraySpec, EnvironmentSpec, slices_of
from actorq.errors import InvalidInputError


@dataclass(frozen=True)
class SimulatorSpaces:
    """The spaces of one stream.

    spec: of its environment, as the learner gets it. sent: the arrays of an observation, as the simulator sends them.
    """

    spec: EnvironmentSpec
    sent: tuple[Leaf, ...]

    @classmethod
    def of(
        cls,
        opening: wire.PlayOpening,
        environment_id: str,
        arguments: EnvironmentArguments,
        further: Sequence[str] = (),
    ) -> "SimulatorSpaces":
        """The spaces of a simulator in a run on this environment. further: the run's large columns.

        Raises InvalidInputError when no policy supports them.
        """
        leaves = _leaves(opening)
        if leaves:
            observations = ArraySpec((packed_nbytes(leaves),), "uint8", leaves=leaves)
        else:
            observations = ArraySpec(opening.observations[0].shape, opening.observations[0].dtype)
        spec = EnvironmentSpec(
            environment_id=environment_id,
            observations=observations,
            actions=_actions(opening),
            sizes=opening.sizes,
            max_episode_steps=opening.max_episode_steps,
            reward_threshold=opening.reward_threshold,
            frame_stack=opening.frame_stack,
            environment_arguments=arguments,
        )
        # The learner decodes the same message, so this finds everything that it would refuse.
        spec = wire.environment_from_proto(wire.environment_to_proto(spec))
        if opening.environments > (most := most_environments(spec, further)):
            raise InvalidInputError(
                f"open.environments: a message holds the observations of {most} environments, got "
                f"{opening.environments}; open more streams with fewer environments"
            )
        return cls(spec, opening.observations)

    def for_policy(self, needed: EnvironmentSpec) -> "SimulatorSpaces":
        """The spaces with those facts of a policy's environment that its actions do not depend on.

        needed: the policy's environment. A simulator that only asks for actions need not know its time limit, for
            example.
        """
        own = self.spec
        same = own.actions.shape == needed.actions.shape and all(
            np.array_equal(*pair) for pair in zip(own.actions.bounds(), needed.actions.bounds(), strict=True)
        )
        seen = replace(own.observations, low=needed.observations.low, high=needed.observations.high)
        if needed.leaves and not own.leaves:
            # The run packed several arrays, but critics alone saw the others.
            leaves = tuple(_joined(self.sent))
            seen = replace(needed.observations, shape=(packed_nbytes(leaves),), leaves=leaves)
        spec = replace(
            needed,
            observations=seen,
            actions=needed.actions if same and own.actions.dtype == needed.actions.dtype else own.actions,
            sizes=own.sizes,
            frame_stack=own.frame_stack,
        )
        return replace(self, spec=spec)

    def packed(self, step: wire.PlayStep, count: int, unused: NDArray[np.bool_]) -> NDArray[Any]:
        """The observations of `count` environments as segments have them, [count, *observation].

        unused: bool[count], where no action follows, so a mask may be without a legal choice.

        Raises InvalidInputError when they do not fit the spaces.
        """
        if len(step.observations) != len(self.sent):
            raise InvalidInputError(
                f"step.observations: expected {len(self.sent)} arrays as in `open`, got {len(step.observations)}"
            )
        for (leaf, dtype, is_checked), values in zip(self._forms, step.observations, strict=True):
            shape = (count, *leaf.shape)
            if values.shape != shape or values.dtype != dtype:
                raise InvalidInputError(
                    f"step.observations: {leaf.name or 'the array'} must be {leaf.dtype}{list(shape)}, got "
                    f"{values.dtype}{list(values.shape)}"
                )
            if is_checked and not all_within_numbers(values):
                good = within_numbers(values)
                environment = int(np.flatnonzero(~good.reshape(count, -1).all(axis=1))[0])
                raise InvalidInputError(
                    f"step.observations: {leaf.name or 'the array'} must be from {-LARGEST_NUMBER:g} to "
                    f"{LARGEST_NUMBER:g}, got {values[~good][0]:g} in environment {environment}"
                )
        return self._pack(step.observations, count, unused) if self.spec.leaves else step.observations[0]

    @cached_property
    def _forms(self) -> tuple[tuple[Leaf, np.dtype[Any], bool], ...]:
        """Each array with its dtype, and whether its numbers must be within the limits."""
        dtypes = [np.dtype(leaf.dtype) for leaf in self.sent]
        return tuple(
            (leaf, dtype, leaf.kind == "numbers" and dtype.itemsize > 1)
            for leaf, dtype in zip(self.sent, dtypes, strict=True)
        )

    def _pack(self, arrays: Sequence[NDArray[Any]], count: int, unused: NDArray[np.bool_]) -> NDArray[np.uint8]:
        packed = np.zeros((count, *self.spec.observations.shape), np.uint8)
        places, starts = views(self.spec.leaves, packed), {VECTOR: 0, CRITIC_VECTOR: 0}
        for leaf, values in zip(self.sent, arrays, strict=True):
            if leaf.kind == "numbers":
                vector = _vector_of(leaf)
                start, starts[vector] = starts[vector], starts[vector] + leaf.shape[0]
                places[vector][:, start : starts[vector]] = values
            elif leaf.kind == "mask":
                places[ACTION_MASK][...] = self._mask(values, unused)
            else:
                places[leaf.name][...] = values
        if fault := fault_of(self.spec.leaves, packed):
            raise InvalidInputError(f"step.observations: {fault}")
        return packed

    def _mask(self, given: NDArray[np.bool_], unused: NDArray[np.bool_]) -> NDArray[np.bool_]:
        mask = given.copy()
        for part in slices_of(self.spec.sizes):
            empty = ~mask[:, part].any(axis=1)
            if (empty & ~unused).any():
                raise InvalidInputError(
                    "step.observations: an action mask must allow at least one choice of each part, got none in "
                    f"environment {int(np.flatnonzero(empty & ~unused)[0])}"
                )
            mask[empty, part] = True
        return mask


def _leaves(opening: wire.PlayOpening) -> tuple[Leaf, ...]:
    """The arrays of a packed observation; empty if an observation is one vector or one image."""
    sent = opening.observations
    if not sent:
        raise InvalidInputError("open.observations: expected at least one array, got none")
    if all(leaf.critic or leaf.kind == "mask" for leaf in sent):
        raise InvalidInputError("open.observations: expected an array for the policy besides masks and critics' arrays")
    if len(sent) == 1 and sent[0].kind in ("numbers", "image"):
        return ()
    names = [leaf.name for leaf in sent]
    reserved = {leaf.name for leaf in sent if leaf.kind != "mask"} & {VECTOR, CRITIC_VECTOR, ACTION_MASK}
    if "" in names or len({*names}) < len(names) or reserved:
        raise InvalidInputError(
            f"open.observations: each of several arrays needs a name of its own, other than {VECTOR}, {CRITIC_VECTOR} "
            f"and {ACTION_MASK}, got {', '.join(map(repr, names[:8]))}"
        )
    return tuple(_joined(sent))


def _joined(sent: Sequence[Leaf]) -> Iterator[Leaf]:
    """The arrays in the order of a packed observation: the vectors of numbers, then the others, the mask last."""
    for vector in (VECTOR, CRITIC_VECTOR):
        if size := sum(leaf.shape[0] for leaf in sent if leaf.kind == "numbers" and _vector_of(leaf) == vector):
            yield Leaf(vector, "numbers", (size,), "float32", critic=vector == CRITIC_VECTOR)
    yield from (leaf for leaf in sent if leaf.kind in ("image", "category"))
    yield from (replace(leaf, name=ACTION_MASK) for leaf in sent if leaf.kind == "mask")


def _vector_of(leaf: Leaf) -> str:
    """The vector that has the numbers of an array."""
    return CRITIC_VECTOR if leaf.critic else VECTOR


def _actions(opening: wire.PlayOpening) -> ArraySpec:
    """The spec of one action. Raises InvalidInputError for actions that no policy supports."""
    actions, sizes = opening.actions, opening.sizes
    if sizes and actions.dtype == "int64" and actions.shape in ((), (len(sizes),)):
        return ArraySpec(actions.shape, "int64")
    continuous = replace(actions, shape=(actions.shape[0] - len(sizes),)) if len(actions.shape) == 1 else actions
    if actions.dtype == "float32" and len(actions.shape) == 1 and continuous.shape[0] > 0:
        with np.errstate(over="ignore"):
            low, high = (bound[len(sizes) :] for bound in actions.bounds())
        part = ArraySpec(continuous.shape, "float32", tuple(map(float, low)), tuple(map(float, high)))
        if part.bounded and max(np.abs(low).max(), np.abs(high).max()) <= LARGEST_NUMBER:
            return actions
    raise InvalidInputError(
        "open.actions: expected int64 of shape [] or [parts] with `sizes`, or float32 of one axis with `low` and "
        f"`high` from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, got {actions.dtype}{list(actions.shape)} with "
        f"{len(sizes)} sizes, {len(actions.low)} low and {len(actions.high)} high"
    )
