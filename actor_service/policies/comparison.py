"""Compares a quantized policy with the FP32 policy, on this processor and on this actor's observations."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy
from actorq.client import QuantizerClient
from actorq.domain.policy import FLOAT_SCHEMES, FP32, FidelityReport, Policy, PolicyDescriptor
from actorq.errors import ActorQError, ConflictError

_log = logging.getLogger(__name__)

# The smallest number of observations for a comparison.
ROWS = 64
# A fidelity report on fewer observations is too noisy. The report on a run's first version has a single observation.
LEAST_REPORTED = 16
# The measured error may be at most this multiple of the reported error. Reported errors count as at least LEAST_ERROR.
FACTOR = 4.0
LEAST_ERROR = 0.01
# The share of equal best actions may be this far below the reported share, if the error is above FACTOR too.
MOST_DISAGREEMENT = 0.25
# Larger errors, and errors of outputs that are not finite, are reported as this value. A learner refuses larger values.
_LARGEST_ERROR = 1e6


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    error: mean |quantized - FP32| of the first output, relative to the fidelity report's range.
    reported: the same error, measured by the quantizer.
    agreement: share of observations with the same best action; None for continuous actions.
    reported_agreement: the same share, measured by the quantizer.
    """

    scheme: str
    error: float
    reported: float
    agreement: float | None = None
    reported_agreement: float | None = None

    @property
    def mismatch(self) -> bool:
        """Whether the error is far above the reported error."""
        if self.error > FACTOR * max(self.reported, LEAST_ERROR):
            return True
        if self.agreement is None or self.reported_agreement is None:
            return False
        disagrees = self.agreement < self.reported_agreement - MOST_DISAGREEMENT
        return disagrees and self.error > FACTOR * self.reported

    def __str__(self) -> str:
        agreement = "" if self.agreement is None else f", {self.agreement:.0%} of the actions equal fp32's"
        return f"{self.scheme}: mean error {self.error:.2%} of the range here{agreement}; reported {self.reported:.2%}"


def compare(
    quantized: OnnxPolicy,
    reference: OnnxPolicy,
    batches: Sequence[NDArray[Any]],
    discrete: bool,
    states: Sequence[NDArray[np.float32]] = (),
) -> Comparison:
    """Run both policies on batches of observations, and on the states before them for policies with memory."""
    outputs, expected = (_outputs(policy, batches, states) for policy in (quantized, reference))
    report = quantized.descriptor.fidelity
    error = float(np.abs(outputs - expected).mean()) / _range(report, expected)
    if not error <= _LARGEST_ERROR:
        error = _LARGEST_ERROR
    agreement = float((outputs.argmax(-1) == expected.argmax(-1)).mean()) if discrete else None
    scheme = quantized.descriptor.scheme
    return Comparison(scheme, error, report.relative_mean_error, agreement, report.argmax_agreement)


def _outputs(
    policy: OnnxPolicy, batches: Sequence[NDArray[Any]], states: Sequence[NDArray[np.float32]]
) -> NDArray[np.float32]:
    found = []
    for number, batch in enumerate(batches):
        if states:
            np.copyto(policy.state, states[number])
        found.append(policy(batch).copy())
    return np.stack(found)


def _range(report: FidelityReport, expected: NDArray[np.float32]) -> float:
    """The range behind the report's relative errors. If the report has no error, the range of these outputs."""
    if report.relative_mean_error > 0.0:
        return report.mean_error / report.relative_mean_error
    return float(expected.max() - expected.min()) or 1.0


@dataclass(eq=False)
class PolicyCheck:
    """Compares each quantized scheme once per graph, on the first observations of this actor.

    Only schemes with integer arithmetic are compared, because their results depend on the processor's instructions.

    load: loads a policy for the actor's batches.
    on_ready: called from the acting loop when there are enough observations.
    discrete: whether the action is the index of the best output.
    avoided: schemes that this processor is known to compute wrongly; comparisons add more.
    newest: the newest comparison; None before the first.
    """

    load: Callable[[Policy], OnnxPolicy]
    on_ready: Callable[[], None]
    discrete: bool
    avoided: tuple[str, ...] = ()
    newest: Comparison | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._graph_digest: bytes | None = None
        self._batches: list[NDArray[Any]] = []
        self._states: list[NDArray[np.float32]] = []
        self._compared: set[str] = set()
        self._failed_version = 0

    def watch(self, policy: OnnxPolicy) -> OnnxPolicy:
        """Pass a policy's observations to this check while the check needs more of them. Returns the same policy."""
        with self._lock:
            if policy.descriptor.graph_digest != self._graph_digest:
                self._graph_digest = policy.descriptor.graph_digest
                self._batches, self._states, self._compared = [], [], set()
            if not self._enough():
                policy.on_observations = self._observe
        return policy

    def is_due(self, descriptor: PolicyDescriptor) -> bool:
        """Whether this policy's scheme can be compared now and has not been compared yet."""
        with self._lock:
            return (
                descriptor.scheme not in FLOAT_SCHEMES
                and descriptor.effective_scheme == descriptor.scheme
                and descriptor.fidelity.observations >= LEAST_REPORTED
                and descriptor.graph_digest == self._graph_digest
                and descriptor.scheme not in self._compared
                and descriptor.version > self._failed_version
                and self._enough()
            )

    def run(self, client: QuantizerClient, due: PolicyDescriptor) -> bool:
        """Compare the newest policy of the due scheme with FP32. Blocks. Returns whether they do not match.

        A newer version is compared if a policy cannot be fetched or run, or if the newest policy has no quantized
        layer.
        """
        try:
            quantized = client.get(due.scheme)
            if not self.is_due(quantized.descriptor):
                raise ConflictError(f"the newest version {quantized.descriptor.version} does not fit a comparison")
            reference = client.get(FP32, quantized.descriptor.version)
            with self._lock:
                batches, states = list(self._batches), list(self._states)
            comparison = compare(self.load(quantized), self.load(reference), batches, self.discrete, states)
        except ActorQError as error:
            _log.info("%s version %d was not compared with fp32: %s", due.scheme, due.version, error)
            with self._lock:
                self._failed_version = due.version
            return False
        with self._lock:
            self.newest = comparison
            self._compared.add(due.scheme)
            if comparison.mismatch:
                self.avoided += (due.scheme,)
        _log.log(logging.WARNING if comparison.mismatch else logging.INFO, "%s", comparison)
        return comparison.mismatch

    def _observe(self, policy: OnnxPolicy, observations: NDArray[Any]) -> None:
        with self._lock:
            if not self._enough():
                self._batches.append(observations.copy())
                if policy.state_size:
                    self._states.append(policy.state.copy())
            enough = self._enough()
        if enough:
            policy.on_observations = None
            self.on_ready()

    def _enough(self) -> bool:
        return sum(map(len, self._batches)) >= ROWS
