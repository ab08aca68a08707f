"""KL divergence between the action distributions of the FP32 policy and an emitted policy."""

import functools
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import cast

import numpy as np
from numpy.typing import NDArray

from actorq.domain.signature import Role, Signature
from actorq.errors import UserError
from actorq.plugins import load
from actorq.text import reason_of
from quantizer_service.emission.reference import Outputs

Array = NDArray[np.float64]
Divergence = Callable[..., Array]

# A larger divergence counts as infinite: the distributions have nothing in common.
LARGEST = 1e12


def tells_distribution(outputs: Outputs, signature: Signature) -> bool:
    """Whether the outputs describe a distribution of the actions.

    Discrete actions need logits of at least two choices. Continuous actions need the outputs of one entry of
    `DIVERGENCES`, such as mean and log_std. Each output must have the shape of the actions. Outputs of another shape,
    such as those of an auxiliary head, do not describe the actions.
    """
    return _is_categorical(outputs, signature) or _continuous(outputs, signature) is not None


def divergence(
    expected: Outputs, emitted: Outputs, signature: Signature, parts: Sequence[slice] = (slice(None),)
) -> Array | None:
    """KL(expected || emitted) of each row in nats, float64[B], up to infinity; None without distributions.

    The logits of each row are one softmax, or one for each of several discrete parts. The divergence of continuous
    actions comes from `DIVERGENCES`. The result is the sum over all parts. All outputs are finite. Raises UserError
    when an installed package's divergence cannot be loaded, or fails.
    """
    found: Array | None = None
    if _is_categorical(expected, signature):
        logits, others = (outputs[signature.acting.name] for outputs in (expected, emitted))
        found = np.sum([_categorical(logits[:, part], others[:, part]) for part in parts], axis=0)
    if (told := _continuous(expected, signature)) is not None:
        names, divergence_of = told
        further = divergence_of(*(outputs[name] for outputs in (expected, emitted) for name in names))
        found = further if found is None else found + further
    # Rounding may leave a tiny negative number.
    return None if found is None else np.where(found <= LARGEST, np.maximum(found, 0.0), np.inf)


def _is_categorical(outputs: Outputs, signature: Signature) -> bool:
    # A softmax over a single logit has no choice: its divergence is always 0.
    return signature.acting.role is Role.LOGITS and outputs[signature.acting.name].shape[1] > 1


def _continuous(outputs: Outputs, signature: Signature) -> tuple[list[str], Divergence] | None:
    """The outputs that describe the distribution of continuous actions, and its divergence; None if there are none."""
    for roles, divergence_of in (*DIVERGENCES.items(), *installed_divergences().items()):
        names = [signature.output(role) or "" for role in (*roles, Role.ACTIONS)]
        if {*names} <= outputs.keys() and len({outputs[name].shape for name in names}) == 1:
            return names[:-1], divergence_of
    return None


@functools.cache
def installed_divergences() -> dict[tuple[str, ...], Divergence]:
    """The divergences of installed packages. Each process searches once, and loads only the divergence that it uses."""
    points = entry_points(group=ENTRY_POINTS)
    return {tuple(point.name.split(",")): functools.partial(_of_package, point) for point in points}


def _of_package(point: EntryPoint, *arrays: Array) -> Array:
    divergence_of = load(point.value, f"divergence {point.name}")
    try:
        return np.asarray(cast(Divergence, divergence_of)(*arrays), np.float64).reshape(len(arrays[0]))
    except Exception as error:
        # A user's package may raise any exception, or return an invalid result.
        reason = f"{type(error).__name__}: {reason_of(error)}"
        raise UserError(f"divergence {point.name}: {point.value} cannot be used: {reason}") from error


def _categorical(expected: Array, emitted: Array) -> Array:
    """sum_a p(a) (log p(a) - log q(a))"""
    log_p, log_q = _log_softmax(expected), _log_softmax(emitted)
    found: Array = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    return found


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _gaussian(mean: Array, log_std: Array, emitted_mean: Array, emitted_log_std: Array) -> Array:
    """sum_j ln(s'/s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2, with s = exp(log_std), and s', m' of the emitted policy

    A Gaussian with independent components.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = 2 * (log_std - emitted_log_std)
        shift = mean - emitted_mean
        # A scale that overflows must not turn equal means into NaN.
        shift = np.where(shift == 0, 0.0, shift * np.exp(-emitted_log_std))
        found: Array = 0.5 * (np.expm1(ratio) - ratio + shift**2).sum(axis=1)
    return found


DIVERGENCES: dict[tuple[str, ...], Divergence] = {(Role.MEAN, Role.LOG_STD): _gaussian}
"""KL divergences of continuous actions, float64[B], by the roles or names of the outputs that describe a distribution.

Each output has the shape of the actions. The FP32 policy's outputs come first, then the emitted policy's. Installed
packages add entries with entry points of the group `ENTRY_POINTS`, whose name is "NAME,NAME".
"""
ENTRY_POINTS = "actorq.divergences"
