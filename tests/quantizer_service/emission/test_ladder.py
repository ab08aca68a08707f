"""Policies that quantization ruins make the ladder climb; good ones come down again."""

import logging
import re
from itertools import islice
from typing import Any

import numpy as np
import pytest

from actorq.config.sections import GateConfig
from actorq.domain.policy import FIDELITY_GATE, FidelityReport, PolicyDescriptor, PolicyGraph
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import SCHEMES, Emission, Options, scheme_named
from quantizer_service.emission.gate import FidelityGate
from quantizer_service.emission.job import Job, OverdueError
from quantizer_service.emission.ladder import FIRST_WAIT, LONGEST_WAIT, MAX_MEASURED, Attempt, Ladder, Rung
from quantizer_service.emission.prepared_graph import SchemePlans
from quantizer_service.emission.reference import Reference, ReferenceRun
from tests.builders.graphs import resigned
from tests.quantizer_service.policy_graphs import GRAPHS, Tensors, mlp
from tests.quantizer_service.policy_runs import (
    all_outputs_of,
    checkpoint,
    fp32_outputs,
    outputs_of,
    random_inputs,
    random_observations,
    random_parameters,
)
from tests.quantizer_service.ruined_policies import DEEP, INNER, dead_observations, deep_parameters

QUANTIZED_SCHEMES = [name for name in SCHEMES if name != "fp32"]
ALL_LAYERS = tuple(f"layers.{i}" for i in range(5))
THRESHOLDS = GateConfig(min_agreement=0.5)


class CountingReference(Reference):
    """Counts its runs."""

    runs = 0

    def observe(self, *arguments: Any) -> Any:
        self.runs += 1
        return super().observe(*arguments)


class Climber:
    """A ladder, and the versions that go up and down on it.

    quantized: the rungs at which the last version was quantized.
    """

    def __init__(
        self,
        scheme: str = "int8",
        source: PolicyGraph = DEEP,
        thresholds: GateConfig = THRESHOLDS,
        options: Options | None = None,
    ) -> None:
        self.graph = Graph.parse(source)
        self.reference = CountingReference(self.graph)
        self.plans = SchemePlans(self.graph, scheme_named(scheme), options or Options())
        self.ladder = Ladder(scheme)
        self.thresholds = thresholds
        self.version = 0
        self.quantized: list[Rung] = []

    def emit(self, parameters: Tensors, observations: Tensors | None = None) -> tuple[Attempt, FidelityReport]:
        self.version += 1
        self.quantized.clear()
        calibration = observations if observations is not None else dead_observations()
        taken = checkpoint(self.graph.source, self.version, parameters=parameters, calibration=calibration)
        observed = self.plans.observed(self.ladder.rung)
        run = ReferenceRun("run", taken, self.reference, self.reference, parameters, observed)
        self.gate = FidelityGate(self.graph.signature, run, self.thresholds)

        def quantize(rung: Rung) -> Emission:
            self.quantized.append(rung)
            return self.plans.quantize(run, rung)

        passed = self.ladder.first_passing(self.version, quantize, self.gate)
        return passed, passed.report

    def report(self, *ruined: str) -> FidelityReport:
        return self.emit(deep_parameters(ruined=ruined))[1]


def strict(source: PolicyGraph = DEEP) -> PolicyGraph:
    """The same policy with continuous actions, whose errors are not rounded to rows."""
    return resigned(source, discrete=False)


@pytest.mark.parametrize("scheme", QUANTIZED_SCHEMES)
def test_a_good_policy_passes_at_once(scheme: str) -> None:
    report = Climber(scheme).report()

    assert (report.passed, report.refused, report.gated_layers) == (True, (), ())
    assert len(report.float_layers) < 5


def test_an_overdue_emission_stops_quantizing() -> None:
    climber, job, quantized = Climber(), Job(), list[Rung]()
    climber.report()
    job.cancel("overdue")

    def quantize(rung: Rung) -> Emission:
        quantized.append(rung)
        return Emission(b"", ())

    with job.current(), pytest.raises(OverdueError, match="overdue"):
        climber.ladder.first_passing(2, quantize, climber.gate)
    assert quantized == []


@pytest.mark.parametrize("scheme", QUANTIZED_SCHEMES)
@pytest.mark.parametrize("ruined", INNER)
def test_one_ruined_layer_is_found_and_put_in_float_alone(scheme: str, ruined: str) -> None:
    climber = Climber(scheme, strict())
    parameters = deep_parameters(ruined=(ruined,))

    emission, report = climber.emit(parameters)

    assert report.gated_layers == (ruined,)
    assert report.passed
    (refused,) = report.refused
    assert ruined not in refused.float_layers
    assert refused.relative_mean_error > THRESHOLDS.max_mean_error > report.relative_mean_error
    expected = fp32_outputs(climber.graph, parameters, dead_observations())
    errors = np.abs(outputs_of(emission.model, dead_observations()) - expected)
    assert report.mean_error == pytest.approx(errors.mean())


@pytest.mark.parametrize("scheme", QUANTIZED_SCHEMES)
def test_a_policy_whose_every_layer_is_ruined_ends_in_float(scheme: str) -> None:
    climber = Climber(scheme, strict())
    parameters = deep_parameters(ruined=ALL_LAYERS)

    emission, report = climber.emit(parameters)

    assert report.passed
    assert report.float_layers == ALL_LAYERS
    assert len(report.refused) >= 2
    assert [len(rung.float_layers) for rung in report.refused] == sorted({len(r.float_layers) for r in report.refused})
    assert report.relative_max_error < 1e-5
    reasons = {layer.name: layer.reason for layer in report.layers}
    assert all(reasons[layer] == FIDELITY_GATE for layer in INNER)
    descriptor = PolicyDescriptor("run", 1, 1, scheme, b"", len(emission.model), 1, 0.0, report)
    assert descriptor.effective_scheme == "fp32"


def test_the_schemes_own_reasons_are_kept() -> None:
    report = Climber(source=strict()).report(*ALL_LAYERS)
    lowest = Climber(source=strict()).report()

    reasons, own = ({layer.name: layer.reason for layer in r.layers} for r in (report, lowest))
    assert [reasons[layer] for layer in ALL_LAYERS] == [own["layers.0"], *[FIDELITY_GATE] * 3, own["layers.4"]]


@pytest.mark.parametrize("scheme", QUANTIZED_SCHEMES)
def test_the_next_version_starts_where_the_last_one_passed(scheme: str) -> None:
    climber = Climber(scheme, strict())
    climber.report("layers.2")

    report = climber.report("layers.2")

    assert (report.gated_layers, report.refused) == (("layers.2",), ())


@pytest.mark.parametrize("scheme", QUANTIZED_SCHEMES)
@pytest.mark.parametrize("bad", [("layers.2",), ALL_LAYERS])
def test_a_policy_that_recovers_returns_to_a_lower_rung(scheme: str, bad: tuple[str, ...]) -> None:
    climber = Climber(scheme, strict())
    climber.report(*bad)
    raised = len(climber.report().gated_layers)
    assert raised

    heights = [len(climber.report().gated_layers) for _ in range(FIRST_WAIT * 5)]

    assert heights == sorted(heights, reverse=True)
    assert heights[FIRST_WAIT - 3 : FIRST_WAIT - 1] == [raised, heights[FIRST_WAIT - 1]]
    assert heights[FIRST_WAIT - 1] < raised
    assert heights[-1] == 0


def test_a_lower_rung_is_tried_less_often_after_each_failure() -> None:
    climber = Climber(source=strict())
    climber.report("layers.2")

    tried = [version for version in range(1, 800) if climber.report("layers.2").refused]

    waits = [FIRST_WAIT * 2**i for i in range(6)]
    assert waits[-1] == LONGEST_WAIT
    assert np.diff([0, *tried]).tolist() == [*waits, LONGEST_WAIT]


def test_the_wait_doubles_only_if_a_lower_rung_does_not_hold() -> None:
    climber = Climber(source=strict())
    climber.report("layers.2")

    def versions_until_down() -> int:
        return next(count for count in range(1, 1000) if not climber.report().gated_layers)

    assert versions_until_down() == FIRST_WAIT
    climber.report("layers.2")
    assert versions_until_down() == 2 * FIRST_WAIT
    climber.report("layers.2")
    assert versions_until_down() == 4 * FIRST_WAIT
    for _ in range(4 * FIRST_WAIT):
        climber.report()
    climber.report("layers.2")
    assert versions_until_down() == FIRST_WAIT


def test_a_failed_try_is_in_the_report_and_the_previous_rung_is_served() -> None:
    climber = Climber(source=strict())
    climber.report("layers.2")

    reports = [climber.report("layers.2") for _ in range(FIRST_WAIT)]

    assert [len(report.refused) for report in reports] == [0] * (FIRST_WAIT - 1) + [1]
    assert {report.gated_layers for report in reports} == {("layers.2",)}
    assert reports[-1].refused[0].float_layers == ("layers.0", "layers.4")


def test_worse_policies_climb_from_their_present_rung() -> None:
    climber = Climber(source=strict())
    climber.report("layers.2")

    report = climber.report("layers.2", "layers.1")

    assert report.gated_layers == ("layers.1", "layers.2")
    assert [rung.float_layers for rung in report.refused] == [("layers.0", "layers.2", "layers.4")]


@pytest.mark.parametrize("scheme", QUANTIZED_SCHEMES)
@pytest.mark.parametrize("name", GRAPHS)
def test_any_policy_graph_climbs_rung_by_rung_and_ends_in_float(name: str, scheme: str) -> None:
    source = strict(GRAPHS[name])
    least = dict.fromkeys(("max_mean_error", "max_error", "max_mean_kl", "max_kl"), 1e-12)
    climber = Climber(scheme, source, GateConfig(**least))
    parameters, inputs = random_parameters(source, 1), random_inputs(climber.graph)

    emission, report = climber.emit(parameters, inputs)

    heights = [len(rung.float_layers) for rung in report.refused]
    assert heights == sorted(set(heights))
    assert report.passed
    in_float = len(report.float_layers) == len(report.layers)
    # Layers that only other outputs read do not affect the action, which the gate compares.
    assert in_float or report.relative_max_error == 0
    expected = climber.reference.run(parameters, inputs)
    for output, values in islice(
        zip(all_outputs_of(emission.model, inputs), expected.values(), strict=True), None if in_float else 1
    ):
        assert np.allclose(output.reshape(values.shape), values, rtol=1e-4, atol=1e-5)


def test_discrete_actions_are_judged_by_agreement() -> None:
    climber = Climber(thresholds=GateConfig(min_agreement=0.95))
    report = climber.report("layers.1", "layers.3")

    assert report.argmax_agreement is not None
    assert report.argmax_agreement >= 0.95
    assert {"layers.1", "layers.3"} <= set(report.gated_layers)
    assert all(rung.argmax_agreement is not None and rung.argmax_agreement < 0.95 for rung in report.refused)


def test_raw_observations_of_a_huge_range_put_the_first_layer_in_float() -> None:
    source = strict(mlp(16, 16))
    parameters, observations = random_parameters(source, 1), random_observations(64)
    observations["observation"][:, 0] *= 1e5
    parameters["layers.0.weight"][:, 0] *= 1e-5

    _, report = Climber("int8", source, options=Options(ends=True)).emit(parameters, observations)

    assert "layers.0" in report.gated_layers
    assert len(report.gated_layers) < 3


@pytest.mark.parametrize("scheme", QUANTIZED_SCHEMES)
def test_a_policy_that_overflows_when_quantized_climbs(scheme: str) -> None:
    source = strict(mlp(16, 16))
    parameters, observations = random_parameters(source, 1), random_observations(64)
    # Finite, but the range from lowest to highest is not.
    observations["observation"][:, 0] = np.where(np.arange(64) % 2, 3e38, -3e38)
    parameters["layers.0.weight"][:, 0] = 1e-38

    emission, report = Climber(scheme, source, options=Options(ends=True)).emit(parameters, observations)

    assert report.passed
    assert np.isfinite(outputs_of(emission.model, observations)).all()
    assert report.relative_mean_error < THRESHOLDS.max_mean_error


def test_a_version_that_passes_is_emitted_and_run_once() -> None:
    climber = Climber(source=strict())
    climber.report()
    runs = climber.reference.runs

    climber.report()

    assert (climber.quantized, climber.reference.runs - runs) == ([frozenset()], 1)


@pytest.mark.parametrize("scheme", QUANTIZED_SCHEMES)
def test_fp32_runs_once_per_version_at_any_number_of_rungs(scheme: str) -> None:
    climber = Climber(scheme, strict())
    climber.report("layers.1")
    before = climber.reference.runs

    for ruined in (ALL_LAYERS, (), ("layers.2",)):
        climber.report(*ruined)

    assert climber.reference.runs - before == 3


def test_deep_policies_try_and_measure_a_bounded_number_of_times() -> None:
    depth = 3 * MAX_MEASURED
    source = strict(mlp(*[4] * depth))
    hopeless = GateConfig(max_mean_error=1e-12, max_error=1e-12)
    parameters = random_parameters(source, 1)
    for i in range(1, depth):
        # So that the input also reaches the output through so many layers.
        parameters[f"layers.{i}.weight"] = np.eye(4, dtype=np.float32) + 0.01 * parameters[f"layers.{i}.weight"]
        parameters[f"layers.{i}.bias"][:] = 0
    climber = Climber("int8", source, hopeless)
    _, report = climber.emit(parameters)

    assert report.passed
    assert len(report.float_layers) == depth + 1
    assert len(report.refused) <= 2 + np.log2(MAX_MEASURED)
    assert len(climber.quantized) <= MAX_MEASURED + len(report.refused) + 1


def test_a_single_quantized_layer_is_put_in_float_at_once() -> None:
    source = strict(mlp(16, 16))
    climber = Climber(source=source, thresholds=GateConfig(max_mean_error=1e-12, max_error=1e-12))
    _, report = climber.emit(random_parameters(source, 1), random_observations())
    assert len(report.gated_layers) == 1
    assert climber.quantized == [frozenset(), None]


def test_each_decision_of_the_gate_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    climber = Climber(source=strict())
    with caplog.at_level(logging.INFO):
        climber.report("layers.2")
        climber.report("layers.2")
        for _ in range(FIRST_WAIT):
            climber.report()

    refused, served, passed = caplog.messages
    assert re.search("version 1 in int8 .*refused.*action error", refused)
    assert "['layers.2'] in float" in served
    assert "passes" in passed


@pytest.mark.parametrize("error", [InvalidInputError("does not run"), OverdueError("took too long")], ids=str)
def test_a_version_that_does_not_run_in_float_or_not_in_time_is_refused_and_the_rung_stays(
    error: InvalidInputError,
) -> None:
    climber = Climber(source=strict())
    climber.report("layers.2")
    rung = climber.ladder.rung
    tried: list[Rung] = []

    def quantize(rung: Rung) -> Emission:
        tried.append(rung)
        raise error

    with pytest.raises(InvalidInputError) as refused:
        climber.ladder.first_passing(2, quantize, climber.gate)

    assert refused.value is error
    # More layers in float may mend an error, but not a lack of time.
    assert tried == ([rung] if isinstance(error, OverdueError) else [rung, None])
    assert climber.ladder.rung == rung == frozenset({"layers.2"})
