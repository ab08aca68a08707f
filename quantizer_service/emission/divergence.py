"""KL divergence between the action distributions that the FP32 policy and an emitted policy tell."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import LOG_STD_OUTPUT, LOGITS_OUTPUT, MEAN_OUTPUT
from quantizer_service.emission.reference import Outputs

Array = NDArray[np.float64]

# A larger divergence counts as infinite: the distributions have nothing in common.
LARGEST = 1e12


def tells_distribution(outputs: Outputs, discrete_actions: bool) -> bool:
    """Whether the acting output is a distribution: logits of at least two actions, or mean and log_std of a Gaussian.

    Logits must be the first output. Mean and log_std must have the shape of the first output, the continuous actions.
    Other outputs of these names, such as those of an auxiliary head, say nothing of the actions.
    """
    return _is_categorical(outputs) or _is_gaussian(outputs, discrete_actions)


def divergence(
    expected: Outputs, emitted: Outputs, discrete_actions: bool, parts: Sequence[slice] = (slice(None),)
) -> Array | None:
    """KL(expected || emitted) of each row in nats, float64[B], up to infinity; None without distributions.

    The logits of B rows are a softmax each, or one for each of several discrete parts; their divergences add up, also
    with that of a Gaussian beside them. Mean and log_std are a Gaussian each with independent components, so its
    divergence is the sum over components. All outputs are finite.
    """
    if _is_categorical(expected):
        logits, others = expected[LOGITS_OUTPUT], emitted[LOGITS_OUTPUT]
        found = np.sum([_categorical(logits[:, part], others[:, part]) for part in parts], axis=0)
        if {MEAN_OUTPUT, LOG_STD_OUTPUT} <= expected.keys():
            found = found + _gaussian_of(expected, emitted)
    elif _is_gaussian(expected, discrete_actions):
        found = _gaussian_of(expected, emitted)
    else:
        return None
    # Rounding may leave a tiny negative number.
    return np.where(found <= LARGEST, np.maximum(found, 0.0), np.inf)


def _is_categorical(outputs: Outputs) -> bool:
    first = next(iter(outputs))
    # A softmax over a single logit has no choice: its divergence is always 0.
    return first == LOGITS_OUTPUT and outputs[first].shape[1] > 1


def _is_gaussian(outputs: Outputs, discrete_actions: bool) -> bool:
    if discrete_actions or not {MEAN_OUTPUT, LOG_STD_OUTPUT} <= outputs.keys():
        return False
    actions = next(iter(outputs.values()))
    return actions.shape == outputs[MEAN_OUTPUT].shape == outputs[LOG_STD_OUTPUT].shape


def _categorical(expected: Array, emitted: Array) -> Array:
    """sum_a p(a) (log p(a) - log q(a))"""
    log_p, log_q = _log_softmax(expected), _log_softmax(emitted)
    found: Array = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    return found


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _gaussian_of(expected: Outputs, emitted: Outputs) -> Array:
    return _gaussian(expected[MEAN_OUTPUT], expected[LOG_STD_OUTPUT], emitted[MEAN_OUTPUT], emitted[LOG_STD_OUTPUT])


def _gaussian(mean: Array, log_std: Array, emitted_mean: Array, emitted_log_std: Array) -> Array:
    """sum_j ln(s'/s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2, with s = exp(log_std), and s', m' of the emitted policy"""
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = 2 * (log_std - emitted_log_std)
        shift = mean - emitted_mean
        # A scale that overflows must not turn equal means into NaN.
        shift = np.where(shift == 0, 0.0, shift * np.exp(-emitted_log_std))
        found: Array = 0.5 * (np.expm1(ratio) - ratio + shift**2).sum(axis=1)
    return found
