"""Selects the fastest scheme on this processor: times the real policies on the actor's batch size, in turns."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy
from actorq.domain.policy import FP32, SCHEMES, Policy, PolicyDescriptor
from actorq.domain.spaces import ArraySpec
from actorq.errors import ActorQError, InvalidInputError, UnavailableError
from actorq.timing import HOPELESS, fastest, time_calls

# Maps calls by name to the seconds of one call.
Timer = Callable[[Mapping[str, Callable[[], object]]], dict[str, float]]


@dataclass(frozen=True)
class Selection:
    """The chosen scheme with its reasons.

    scheme: the chosen scheme.
    seconds: time of one call by scheme; empty if there was only one candidate.
    dropped: the reason against each dropped scheme.
    held_back: whether the fidelity gate refused a candidate or some of its layers. A later selection may then differ.
    """

    scheme: str
    seconds: dict[str, float]
    dropped: dict[str, str] = field(default_factory=dict)
    held_back: bool = False

    def __str__(self) -> str:
        measured = ", ".join(f"{scheme} {seconds * 1e6:.1f} us" for scheme, seconds in self.seconds.items())
        dropped = "".join(f"; not {scheme}: {reason}" for scheme, reason in self.dropped.items())
        return f"{self.scheme}{f' of {measured}' if measured else ''}{dropped}"


def candidates(
    get: Callable[[str, int], Policy], avoided: Collection[str], version: int = 0, same_version: bool = False
) -> tuple[list[Policy], dict[str, ActorQError]]:
    """The policies of all schemes that are not avoided, and the error of each scheme that has none.

    get: returns the policy of a scheme and a version, as `QuantizerClient.get`. Raises its UnavailableError.
    version: 0 for the newest of each scheme. same_version: all policies have the first one's version, even if newer
        versions come meanwhile.
    """
    policies: list[Policy] = []
    missing: dict[str, ActorQError] = {}
    for scheme in SCHEMES:
        if scheme in avoided:
            continue
        try:
            policies.append(get(scheme, version))
        except UnavailableError:
            raise
        except ActorQError as error:
            missing[scheme] = error
        else:
            version = policies[-1].descriptor.version if same_version else version
    return policies, missing


def select(
    policies: Iterable[Policy],
    observations: ArraySpec,
    batch: int,
    actions: int = 0,
    incumbent: str = FP32,
    timer: Timer | None = None,
) -> Selection:
    """Choose the fastest scheme for actors that step `batch` environments as one, from policies of one version.

    Each policy is loaded and run as in an actor. A difference in time may be only noise (actorq.timing.NOISE). Then
    `incumbent` wins, then fp32, then the earlier scheme in actorq.domain.policy.SCHEMES, which changes the policy less.
    A policy is dropped if the fidelity gate refused it, if no layer is quantized, or if it cannot be loaded here.

    observations, actions: see OnnxPolicy.
    timer: replaces actorq.timing.time_calls, which needs at most 0.2 s unless the policies are huge.

    Raises InvalidInputError when no policy is left.
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
    calls = {scheme: partial(policy, inputs) for scheme, policy in loaded.items()}
    seconds = timer(calls) if timer else time_calls(calls, hopeless=HOPELESS)
    return Selection(fastest(seconds, (incumbent, *SCHEMES)), seconds, dropped, held_back)


def _unfit(descriptor: PolicyDescriptor) -> str:
    """The reason why a policy is no candidate; empty for a candidate."""
    if not descriptor.fidelity.passed:
        return "the fidelity gate refused it"
    if descriptor.effective_scheme != descriptor.scheme:
        return f"it is {descriptor.effective_scheme}: no layer is quantized"
    return ""


def _some(observations: ArraySpec, batch: int) -> NDArray[Any]:
    """Random observations for timing, neither constant nor denormal, because such values would distort the times."""
    rng, shape, dtype = np.random.default_rng(0), (batch, *observations.shape), np.dtype(observations.dtype)
    if observations.leaves:
        return np.ones(shape, np.uint8)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
