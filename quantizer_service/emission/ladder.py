"""The ladder below the fidelity gate: what a version tries until it passes, most quantized first, float32 last.

A rung is a set of layers that the gate has put in float. The lowest has none, the last has all: the fp32 scheme's plan.
A version starts at the rung at which the one before it passed, so nearly every version is emitted and run once. One
that does not pass puts more layers in float, the most sensitive first.

How sensitive a layer is tells the error of the policy in which it alone is quantized, with the rest in float, as in
partial quantization (Wu et al., "Integer Quantization for Deep Learning Inference", arXiv 2004.09602, section 6.1). The
other way round, one layer in float and the rest quantized, says little when two layers are ruined: the policy is as bad
without either. Rungs double in size, 1, 2, 4 layers more, so that deep policies do not try too many.

A rung below is tried again after `FIRST_WAIT` versions without a change; each time that this was too early, at once or
before it has held for as long, the wait doubles, to `LONGEST_WAIT` at most. So a bad early policy does not cost speed
for ever, and one that is bad for good costs a second emission in one of `LONGEST_WAIT` versions.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from actorq.config.sections import GateConfig
from actorq.domain.policy import FIDELITY_GATE, FidelityReport, LayerReport, RefusedRung
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes.base import Emission, Options, Plan, Scheme
from actorq.quantization.schemes.fp32 import Fp32
from actorq.quantization.statistics import Observed, Statistics
from quantizer_service.emission.fidelity import measure, unfit
from quantizer_service.emission.gate import judge, severity
from quantizer_service.emission.job import OverdueError, current_job
from quantizer_service.emission.origin import Origin

_log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 8, 256
# Of a deeper policy neighbouring layers are measured and put in float together: each measurement is an emission.
MAX_MEASURED = 32
# Each holds a copy of the weights that it emitted last. Two are in turn use: the rung that passes, and the one below.
_MAX_PLANS = 2

# Names of the layers that the gate keeps in float; None is for all, which is the fp32 scheme's plan.
Rung = frozenset[str] | None
_LOWEST: Rung = frozenset()


@dataclass(frozen=True)
class _Attempt:
    """A version at one rung."""

    rung: Rung
    emission: Emission
    report: FidelityReport
    passed: bool
    reason: str

    @property
    def quantized(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.emission.layers if not layer.in_float)

    @property
    def refused(self) -> RefusedRung:
        report = self.report
        return RefusedRung(
            report.float_layers, report.relative_mean_error, report.relative_max_error, report.argmax_agreement
        )


class Ladder:
    """Emits the versions of one topology in one scheme such that all pass the gate; not safe for several threads.

    widths: units of layers that lost some, published and left, by the layer's name; reports tell them.
    """

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        options: Options,
        thresholds: GateConfig,
        widths: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self._graph = graph
        self._widths = widths or {}
        self._scheme = scheme
        self._options = options
        self._thresholds = thresholds
        self._plans: dict[Rung, Plan] = {}
        # Those that the scheme itself leaves in float, with its reasons.
        self._unquantized: Mapping[str, str] = {}
        self._observed: set[Observed] = set()
        # The rungs from the lowest to the one that passed last.
        self._path: list[Rung] = [_LOWEST]
        self._wait = FIRST_WAIT
        # The version at which the rung changed last, or a lower one was tried.
        self._changed_at = 0
        self._came_down = False

    @property
    def observed(self) -> frozenset[Observed]:
        """The statistics that the next version takes unless the rung changes, and those that others took before."""
        return frozenset(self._observed).union(self._plan(self._path[-1]).observed)

    def emit(self, origin: Origin) -> tuple[Emission, FidelityReport]:
        """Emit a version at the first rung that passes, and report on it and on those that did not.

        Raises InvalidInputError when the policy cannot be run even in float; then the ladder stays at its rung.
        """
        refused: list[RefusedRung] = []
        attempt = self._below(origin, refused) or self._attempt(origin, self._path[-1])
        if not attempt.passed:
            attempt = self._climb(origin, attempt, refused)
        return attempt.emission, replace(attempt.report, refused=tuple(refused))

    def follow(self, other: "Ladder") -> None:
        """Go on at the rung of a ladder of the same scheme and layers, which may have other widths."""
        self._path = list(other._path)
        self._wait, self._changed_at, self._came_down = other._wait, other._changed_at, other._came_down
        self._unquantized = self._unquantized or other._unquantized

    def _below(self, origin: Origin, refused: list[RefusedRung]) -> _Attempt | None:
        """Try the rung below when it is time; None when it is not, or it did not pass."""
        version = origin.checkpoint.version
        if version - self._changed_at < self._wait:
            return None
        if self._came_down:
            self._came_down, self._wait = False, FIRST_WAIT
        if len(self._path) == 1:
            return None
        self._changed_at = version
        attempt = self._attempt(origin, self._path[-2])
        if attempt.passed:
            self._path.pop()
            self._came_down = True
            self._tell(logging.INFO, origin, attempt, "comes down")
            return attempt
        refused.append(attempt.refused)
        self._waited_too_little()
        return None

    def _climb(self, origin: Origin, attempt: _Attempt, refused: list[RefusedRung]) -> _Attempt:
        path = list(self._path)
        for rung in self._above(origin, attempt):
            refused.append(attempt.refused)
            self._tell(logging.WARNING, origin, attempt, "is not let through")
            attempt = self._attempt(origin, rung)
            path.append(rung)
            if attempt.passed:
                break
        self._tell(logging.INFO, origin, attempt, "is served")
        self._path = path
        self._changed_at = origin.checkpoint.version
        if self._came_down:
            self._came_down = False
            self._waited_too_little()
        return attempt

    def _waited_too_little(self) -> None:
        self._wait = min(2 * self._wait, LONGEST_WAIT)

    def _above(self, origin: Origin, refused: _Attempt) -> Iterator[Rung]:
        """The rungs above one that did not pass, the last of them all in float."""
        groups = _groups(refused.quantized)
        if refused.rung is not None and len(groups) > 1:
            alone = {group: self._alone(origin, refused, group) for group in groups}
            ordered = sorted(groups, key=lambda group: severity(alone[group], self._thresholds), reverse=True)
            count = 1
            while count < len(ordered):
                yield refused.rung.union(*ordered[:count])
                count *= 2
        yield None

    def _alone(self, origin: Origin, refused: _Attempt, group: tuple[str, ...]) -> FidelityReport:
        """The report on the policy in which only these layers are quantized."""
        assert refused.rung is not None
        rung = refused.rung | (frozenset(refused.quantized) - frozenset(group))
        # Not kept: it is for one measurement, and holds all weights.
        return self._run(origin, rung, self._new_plan(rung)).report

    def _attempt(self, origin: Origin, rung: Rung) -> _Attempt:
        return self._run(origin, rung, self._plan(rung))

    def _run(self, origin: Origin, rung: Rung, plan: Plan) -> _Attempt:
        checkpoint = origin.checkpoint
        layers: tuple[LayerReport, ...] = ()
        current_job().check()
        try:
            statistics = self._statistics(origin, plan)
            emission = plan.emit(origin.parameters, statistics, origin.run_id, checkpoint.version)
            emission = replace(emission, layers=self._explained(rung, emission.layers))
            layers = emission.layers
            report = measure(emission, origin.outputs, origin.batch, self._graph.source)
        except InvalidInputError as error:
            if rung is None or isinstance(error, OverdueError):
                raise
            # The FP32 policy runs, so it is quantization that made this unfit to run, such as by an overflow.
            report = unfit(layers, origin.batch, self._graph.source)
            return _Attempt(rung, Emission(b"", layers), report, False, str(error))
        verdict = judge(report, self._thresholds)
        return _Attempt(rung, emission, report, verdict.passed, verdict.reason)

    def _statistics(self, origin: Origin, plan: Plan) -> Statistics:
        """What the plan needs; asked for with what the plans before it needed, so that it is measured in one run."""
        self._observed |= set(plan.observed)
        return origin.statistics(self._observed) if plan.observed else {}

    def _explained(self, rung: Rung, layers: tuple[LayerReport, ...]) -> tuple[LayerReport, ...]:
        """The layers with their widths and the gate as the reason where it is; remembers the scheme's own reasons."""
        if rung == _LOWEST:
            self._unquantized = {layer.name: layer.reason for layer in layers if layer.in_float}
        layers = tuple(
            replace(layer, reason=self._unquantized.get(layer.name, FIDELITY_GATE)) if layer.in_float else layer
            for layer in layers
        )
        return tuple(
            replace(layer, published_units=self._widths[layer.name][0], units=self._widths[layer.name][1])
            if layer.name in self._widths
            else layer
            for layer in layers
        )

    def _plan(self, rung: Rung) -> Plan:
        plan = self._plans.pop(rung, None) or self._new_plan(rung)
        self._plans[rung] = plan
        while len(self._plans) > _MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        return plan

    def _new_plan(self, rung: Rung) -> Plan:
        if rung is None:
            return Plan(self._graph, Fp32(), self._options)
        options = replace(self._options, keep_float=self._options.keep_float | rung)
        return Plan(self._graph, self._scheme, options)

    def _tell(self, level: int, origin: Origin, attempt: _Attempt, what: str) -> None:
        kept = "all layers" if attempt.rung is None else f"layers {sorted(attempt.rung)}" if attempt.rung else "nothing"
        version = origin.checkpoint.version
        _log.log(
            level,
            "version %d in %s %s with %s put in float: %s",
            version,
            self._scheme.name,
            what,
            kept,
            attempt.reason,
        )


def _groups(layers: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Neighbouring layers together, so that there are at most `MAX_MEASURED` groups; in the order of the graph."""
    size = -(-len(layers) // MAX_MEASURED) or 1
    remaining = iter(layers)
    return list(iter(lambda: tuple(islice(remaining, size)), ()))
