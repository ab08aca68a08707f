"""One policy in every scheme, side by side: size, speed, errors, and what the fidelity gate made of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from actorq.config.schemes import scheme_names
from actorq.config.sections import GateConfig
from actorq.domain.policy import FP32, Checkpoint, FidelityReport
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options, scheme_named
from actorq.quantization.statistics import Observed
from actorq.timing import fastest
from quantizer_service.command.timing import time_models
from quantizer_service.emission.ladder import Ladder
from quantizer_service.emission.origin import Origin
from quantizer_service.emission.topology import Topology

RUN_ID = "quantize"


@dataclass(frozen=True)
class Emitted:
    """A policy in one scheme as a quantizer would serve it.

    seconds: of one call, by batch.
    """

    scheme: str
    model: bytes
    report: FidelityReport
    seconds: dict[int, float]

    @property
    def is_float(self) -> bool:
        """Whether no layer is quantized, so that it is FP32 under another name."""
        return bool(self.report.layers) and all(layer.in_float for layer in self.report.layers)


@dataclass(frozen=True)
class Comparison:
    """A policy in the schemes, in their order, and why others could not be emitted."""

    emitted: tuple[Emitted, ...]
    failed: dict[str, str]

    def fastest(self, batch: int) -> str:
        """What `auto` takes at that batch: as an actor that acts with fp32 chooses."""
        seconds = {
            item.scheme: item.seconds[batch]
            for item in self.emitted
            if item.scheme == FP32 or (item.report.passed and not item.is_float)
        }
        return fastest(seconds, scheme_names())

    def of(self, scheme: str) -> Emitted:
        """The policy in that scheme; raises InvalidInputError that says why there is none."""
        for item in self.emitted:
            if item.scheme == scheme:
                return item
        raise InvalidInputError(f"{scheme}: {self.failed.get(scheme, 'not emitted')}")


def compare(
    graph: Graph,
    parameters: Mapping[str, NDArray[Any]],
    observations: Mapping[str, NDArray[Any]],
    batches: tuple[int, ...],
    options: Options,
    thresholds: GateConfig,
) -> Comparison:
    """Emit a policy in all schemes, each through the gate and its ladder, and run and time what came out.

    observations: rows for every data input, to calibrate, to measure errors and to time with.
    batches: rows of a call that are timed. Raises InvalidInputError when the policy itself is not valid.
    """
    graph.check_parameters(parameters)
    graph.check_calibration(observations)
    topology = Topology(graph)
    observations = topology.footprint.fitting(observations)
    checkpoint = Checkpoint(1, 0, graph.topology, dict(parameters), observations, 0.0)
    form, left = topology.form(checkpoint.parameters)
    ladders = {
        name: Ladder(form.graph, scheme_named(name), options, thresholds, form.widths) for name in scheme_names()
    }
    observed = frozenset[Observed]().union(*(ladder.observed for ladder in ladders.values()))
    origin = Origin.of(RUN_ID, checkpoint, topology.reference, observed, left)
    emissions, failed = {}, {}
    for name, ladder in ladders.items():
        try:
            emissions[name] = ladder.emit(origin)
        except InvalidInputError as error:
            if name == FP32:
                raise
            failed[name] = str(error)
    models = {name: emission.model for name, (emission, _) in emissions.items()}
    seconds = time_models(models, observations, batches)
    emitted = (Emitted(name, emission.model, report, seconds[name]) for name, (emission, report) in emissions.items())
    return Comparison(tuple(emitted), failed)
