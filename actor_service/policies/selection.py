"""Which scheme acts fastest on this processor: the real policies, run as they would act, timed beside each other."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy
from actorq.domain.policy import FP32, SCHEMES, Policy, PolicyDescriptor
from actorq.domain.trajectory import ArraySpec
from actorq.errors import InvalidInputError
from actorq.timing import HOPELESS, fastest, time_calls

# Seconds of one call of each, of calls by name.
Timer = Callable[[Mapping[str, Callable[[], object]]], dict[str, float]]


@dataclass(frozen=True)
class Selection:
    """What was chosen among the schemes, and on what grounds.

    scheme: the one to take.
    seconds: of one call of each candidate, by scheme; empty where there was only one.
    dropped: why the others were not, by scheme.
    held_back: whether the fidelity gate of this version kept layers of a candidate in float, or all of it away; then
        the choice may be another one for a later version.
    """

    scheme: str
    seconds: dict[str, float]
    dropped: dict[str, str] = field(default_factory=dict)
    held_back: bool = False

    def __str__(self) -> str:
        measured = ", ".join(f"{scheme} {seconds * 1e6:.1f} us" for scheme, seconds in self.seconds.items())
        dropped = "".join(f"; not {scheme}: {reason}" for scheme, reason in self.dropped.items())
        return f"{self.scheme}{f' of {measured}' if measured else ''}{dropped}"


def select(
    policies: Iterable[Policy],
    observations: ArraySpec,
    batch: int,
    actions: int = 0,
    incumbent: str = FP32,
    timer: Timer | None = None,
) -> Selection:
    """Choose among the emissions of one version for actors that step `batch` environments as one.

    Each is loaded and run as an actor does it, and the fastest is taken. Among those that are as fast but for noise
    (actorq.timing.NOISE) `incumbent` is preferred, then fp32, then the earlier one in actorq.domain.policy.SCHEMES,
    which changes the policy less. What the fidelity gate refused, what came out as fp32 all the same and what cannot be
    loaded here is dropped.

    observations, actions: as OnnxPolicy has them.
    timer: in the place of actorq.timing.time_calls, which takes 0.2 s at most for policies that are not huge.

    Raises InvalidInputError when nothing is left to choose from.
    """
    loaded: dict[str, OnnxPolicy] = {}
    dropped: dict[str, str] = {}
    held_back = False
    for policy in policies:
        descriptor = policy.descriptor
        fidelity = descriptor.fidelity
        held_back |= bool(fidelity.refused or fidelity.gated_layers) or not fidelity.passed
        if reason := _unfit(descriptor):
            dropped[descriptor.scheme] = reason
            continue
        try:
            loaded[descriptor.scheme] = OnnxPolicy(policy, observations, batch, actions)
        except InvalidInputError as error:
            dropped[descriptor.scheme] = str(error)
    if not loaded:
        reasons = "; ".join(f"{scheme}: {reason}" for scheme, reason in dropped.items())
        raise InvalidInputError(f"auto: expected a policy that this processor can act with, got none ({reasons})")
    if len(loaded) == 1:
        return Selection(next(iter(loaded)), {}, dropped, held_back)
    inputs = _some(observations, batch)
    calls = {scheme: _call(policy, inputs) for scheme, policy in loaded.items()}
    seconds = timer(calls) if timer else time_calls(calls, hopeless=HOPELESS)
    return Selection(fastest(seconds, (incumbent, *SCHEMES)), seconds, dropped, held_back)


def _unfit(descriptor: PolicyDescriptor) -> str:
    """Why a policy is no candidate; empty when it is one."""
    if not descriptor.fidelity.passed:
        return "the fidelity gate refused it"
    if descriptor.effective_scheme != descriptor.scheme:
        return f"it is {descriptor.effective_scheme}: no layer is quantized"
    return ""


def _call(policy: OnnxPolicy, inputs: NDArray[Any]) -> Callable[[], object]:
    return lambda: policy(inputs)


def _some(observations: ArraySpec, batch: int) -> NDArray[Any]:
    """Observations to time with: of no meaning, but neither all alike nor so small that processors stumble."""
    rng = np.random.default_rng(0)
    shape = (batch, *observations.shape)
    dtype = np.dtype(observations.dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
