"""The ladder of the fidelity gate: puts more layers in float until a version passes the gate.

A rung is a set of layers that the gate has put in float. The lowest rung has none. The last rung has all layers, and
uses the fp32 scheme's plan. A version starts at the rung where the previous version passed, so most versions are
emitted only once. If a version does not pass, more layers are put in float, the most sensitive first.

A layer's sensitivity is the error of the policy in which only that layer is quantized (Wu et al., "Integer Quantization
for Deep Learning Inference", arXiv 2004.09602, section 6.1). The reverse test, with one layer in float, fails when two
layers are bad: one bad layer always remains. The next rungs have 1, 2, 4 more layers in float, which limits the
attempts for deep policies.

After `FIRST_WAIT` versions without a change, the ladder tries the rung below. If that rung fails, or fails again within
as many versions, the wait doubles, up to `LONGEST_WAIT`. Therefore a bad early policy does not slow down the whole run.
A permanently bad policy costs a second emission in one of `LONGEST_WAIT` versions.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice

from actorq.domain.policy import FIDELITY_GATE, FidelityReport, LayerReport, RefusedRung
from actorq.errors import InvalidInputError
from actorq.quantization.schemes import Emission
from quantizer_service.emission.gate import FidelityGate, Verdict
from quantizer_service.emission.job import OverdueError, current_job

_log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 8, 256
# Deeper policies measure neighboring layers together, because each measurement is an emission.
MAX_MEASURED = 32

# Names of the layers that the gate keeps in float; None for all layers (the fp32 scheme's plan).
Rung = frozenset[str] | None
_LOWEST: Rung = frozenset()


@dataclass(frozen=True)
class Attempt:
    """A version emitted in a scheme at one rung, with the gate's verdict."""

    scheme: str
    rung: Rung
    model: bytes
    report: FidelityReport
    verdict: Verdict

    @property
    def quantized(self) -> tuple[str, ...]:
        """Names of the layers that are not in float."""
        return tuple(layer.name for layer in self.report.layers if not layer.in_float)

    @property
    def refused(self) -> RefusedRung:
        """The entry for this rung in the final report."""
        return RefusedRung(**{each.name: getattr(self.report, each.name) for each in fields(RefusedRung)})


_Try = Callable[[Rung], Attempt]


class Ladder:
    """Finds the rung for each version of one graph in one scheme. Not thread-safe."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        # Layers that the scheme itself leaves in float, and the reasons.
        self._unquantized: Mapping[str, str] = {}
        # The rungs from the lowest to the last one that passed.
        self._path: list[Rung] = [_LOWEST]
        self._wait = FIRST_WAIT
        # The version at which the rung last changed or a lower rung was tried.
        self._changed_at = 0
        self._came_down = False

    @property
    def rung(self) -> Rung:
        """The last rung that passed."""
        return self._path[-1]

    def first_passing(self, version: int, quantize: Callable[[Rung], Emission], gate: FidelityGate) -> Attempt:
        """Emit a version at the first rung that passes. The report lists the refused rungs.

        Raises InvalidInputError, and keeps its rung, when the policy does not run even in float.
        """
        attempt = partial(self._attempt, quantize=quantize, gate=gate)
        refused: list[RefusedRung] = []
        found = self._below(version, attempt, refused) or attempt(self.rung)
        if not found.verdict.passed:
            found = self._climb(version, attempt, found, refused)
        report = replace(found.report, layers=self._explained(found.report.layers), refused=tuple(refused))
        return replace(found, report=report)

    def _below(self, version: int, attempt: _Try, refused: list[RefusedRung]) -> Attempt | None:
        """Try the rung below when it is due. None when it is not due or the version does not pass."""
        if version - self._changed_at < self._wait:
            return None
        if self._came_down:
            self._came_down, self._wait = False, FIRST_WAIT
        if len(self._path) == 1:
            return None
        self._changed_at = version
        found = attempt(self._path[-2])
        if found.verdict.passed:
            self._path.pop()
            self._came_down = True
            self._tell(logging.INFO, version, found, "passes again")
            return found
        refused.append(found.refused)
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        return None

    def _climb(self, version: int, attempt: _Try, found: Attempt, refused: list[RefusedRung]) -> Attempt:
        path = list(self._path)
        for rung in _above(found, attempt):
            refused.append(found.refused)
            self._tell(logging.WARNING, version, found, "is refused")
            found = attempt(rung)
            path.append(rung)
            if found.verdict.passed:
                break
        self._tell(logging.INFO, version, found, "is served")
        self._path = path
        self._changed_at = version
        if self._came_down:
            self._came_down, self._wait = False, min(2 * self._wait, LONGEST_WAIT)
        return found

    def _attempt(self, rung: Rung, quantize: Callable[[Rung], Emission], gate: FidelityGate) -> Attempt:
        emission = Emission(b"", ())
        current_job().check()
        try:
            emission = quantize(rung)
            report, verdict = gate.check(emission)
        except InvalidInputError as error:
            if rung is None or isinstance(error, OverdueError):
                raise
            # The FP32 policy runs, so quantization caused the failure, for example an overflow.
            report, verdict = gate.refuse(emission.layers, str(error))
        if rung == _LOWEST and emission.layers:
            self._unquantized = {layer.name: layer.reason for layer in emission.layers if layer.in_float}
        return Attempt(self.scheme, rung, emission.model, report, verdict)

    def _explained(self, layers: tuple[LayerReport, ...]) -> tuple[LayerReport, ...]:
        """The layers, each with the reason why it is in float: the scheme's own reason, or the gate."""
        return tuple(
            replace(layer, reason=self._unquantized.get(layer.name, FIDELITY_GATE)) if layer.in_float else layer
            for layer in layers
        )

    def _tell(self, level: int, version: int, attempt: Attempt, what: str) -> None:
        kept = "all layers" if attempt.rung is None else f"layers {sorted(attempt.rung)}" if attempt.rung else "nothing"
        message = "version %d in %s %s with %s in float: %s"
        _log.log(level, message, version, self.scheme, what, kept, attempt.verdict.reason)


def _above(refused: Attempt, attempt: _Try) -> Iterator[Rung]:
    """The rungs above a refused one. The last has all layers in float."""
    groups = _groups(refused.quantized)
    if refused.rung is not None and len(groups) > 1:
        quantized = frozenset(refused.quantized)
        # The severity of the policy in which only this group is quantized.
        severity = {group: attempt(refused.rung | (quantized - frozenset(group))).verdict.severity for group in groups}
        ordered = sorted(groups, key=severity.__getitem__, reverse=True)
        count = 1
        while count < len(ordered):
            yield refused.rung.union(*ordered[:count])
            count *= 2
    yield None


def _groups(layers: tuple[str, ...]) -> list[tuple[str, ...]]:
    """At most `MAX_MEASURED` groups of neighboring layers, in the order of the graph."""
    size = -(-len(layers) // MAX_MEASURED)
    remaining = iter(layers)
    return list(iter(lambda: tuple(islice(remaining, size)), ()))
