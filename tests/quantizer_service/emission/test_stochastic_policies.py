"""Policies that output a distribution, from a published version to a served policy: logits, or mean and log_std."""

from pathlib import Path

import numpy as np
import pytest

from actorq.config.sections import GateConfig, QuantizerConfig
from actorq.domain.policy import INT4_PER_BLOCK, INT8_PER_CHANNEL, SCHEMES, Policy, PolicyGraph
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import training_forms
from quantizer_service.emission.emitter import Emitter
from quantizer_service.store.store import PolicyStore
from tests.quantizer_service.policy_graphs import Tensors, categorical, gaussian
from tests.quantizer_service.policy_runs import all_outputs_of, checkpoint, random_observations, random_parameters

SOURCES = {"categorical": categorical(), "gaussian": gaussian()}
OBSERVATIONS = random_observations(64)


def published(
    folder: Path, source: PolicyGraph, parameters: Tensors, scheme: str, config: QuantizerConfig | None = None
) -> Policy:
    emitter = Emitter(PolicyStore(folder, 9, 0), config)
    emitter.catalog.claim("run")
    emitter.add_graph(source)
    version = checkpoint(source, 1, parameters=parameters, calibration=OBSERVATIONS)
    (policy,) = emitter.publish(version, [scheme])
    return policy


def outputs(policy: Policy) -> list[np.ndarray]:
    return all_outputs_of(policy.model, OBSERVATIONS)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", SOURCES)
def test_every_scheme_emits_stochastic_policies_close_to_fp32(
    tmp_path: Path, name: str, scheme: str, ends: bool
) -> None:
    source, parameters = SOURCES[name], random_parameters(SOURCES[name], 1)
    report = published(tmp_path, source, parameters, scheme, QuantizerConfig(quantize_ends=ends)).descriptor.fidelity
    assert (report.passed, report.refused) == (True, ())
    assert report.mean_kl is not None
    assert report.max_kl is not None
    assert 0 <= report.mean_kl <= report.max_kl < 0.01
    if scheme != "fp32":
        assert report.mean_kl > 1e-9
        in_float = ("0", "4") if not ends and scheme != "int8-weights" else ()
        # The first layer has too few inputs for blocks of 4 bits.
        assert report.float_layers == (("0",) if ends and scheme == "int4" else in_float)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_deviation_of_no_layer_is_exact_and_actions_are_the_clipped_mean(tmp_path: Path, scheme: str) -> None:
    parameters = random_parameters(SOURCES["gaussian"], 1)
    parameters["4.weight"] *= 8
    actions, mean, log_std = outputs(published(tmp_path, SOURCES["gaussian"], parameters, scheme))
    assert (log_std == parameters["log_std.value"]).all()
    assert log_std.shape == mean.shape == actions.shape
    assert np.abs(mean).max() > 1
    np.testing.assert_allclose(actions, 2 * np.clip(mean, -1, 1), rtol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", SOURCES)
def test_only_their_dead_units_are_removed(tmp_path: Path, name: str, scheme: str) -> None:
    source, parameters = SOURCES[name], random_parameters(SOURCES[name], 1)
    parameters["0.weight"][:10] = 0
    parameters["4.weight"][:, :14] = 0
    policy = published(tmp_path / "sparse", source, parameters, scheme)
    report = policy.descriptor.fidelity
    assert [(layer.published_units, layer.units) for layer in report.layers] == [(32, 22), (32, 18), (0, 0)]
    assert report.mean_kl is not None
    assert report.mean_kl < 0.001
    if name == "gaussian":
        assert (outputs(policy)[2] == parameters["log_std.value"]).all()


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "fp32"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_ruined_layer_is_found_by_the_divergence(tmp_path: Path, name: str, scheme: str) -> None:
    source, parameters = SOURCES[name], random_parameters(SOURCES[name], 1)
    # An input that is always nearly 0 has outgoing weights so large that on their scale the others are 0.
    parameters["0.weight"][0], parameters["0.bias"][0], parameters["2.weight"][:, 0] = 1e-9, 0, 1e5
    parameters["4.weight"] *= 3
    report = published(tmp_path, source, parameters, scheme, QuantizerConfig(quantize_ends=True)).descriptor.fidelity
    assert report.gated_layers == ("2",)
    assert report.mean_kl is not None
    thresholds = QuantizerConfig().gate
    assert report.mean_kl <= thresholds.max_mean_kl
    (refused,) = report.refused
    assert refused.mean_kl is not None
    assert refused.max_kl is not None
    assert refused.max_kl >= refused.mean_kl > thresholds.max_mean_kl


def test_nearly_equal_logits_pass_although_their_largest_one_changes(tmp_path: Path) -> None:
    parameters = random_parameters(SOURCES["categorical"], 1)
    # As in an untrained policy.
    parameters["4.weight"] *= 1e-3
    parameters["4.weight"] -= parameters["4.weight"].mean(axis=0)
    parameters["4.bias"][:] = 0
    config = QuantizerConfig(quantize_ends=True, gate=GateConfig(min_agreement=1.0))
    report = published(tmp_path, SOURCES["categorical"], parameters, "int4", config).descriptor.fidelity
    assert report.argmax_agreement is not None
    assert report.argmax_agreement < 1
    assert (report.passed, report.refused) == (True, ())


def test_the_deviation_decides_how_large_an_error_of_the_mean_may_be(tmp_path: Path) -> None:
    parameters = random_parameters(SOURCES["gaussian"], 1)
    found = {}
    for log_std in (0.0, -2.0, -6.0):
        parameters["log_std.value"][:] = log_std
        policy = published(tmp_path / str(log_std), SOURCES["gaussian"], parameters, "int8")
        refused = policy.descriptor.fidelity.refused
        found[log_std] = refused[0].mean_kl if refused else policy.descriptor.fidelity.mean_kl
        assert bool(refused) == (log_std == -6.0)
    # The divergence has the square of the deviation below the bar.
    assert found[-2.0] == pytest.approx(found[0.0] * np.exp(4), rel=0.01)
    assert found[-6.0] == pytest.approx(found[0.0] * np.exp(12), rel=0.01)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(("scheme", "weights"), [("int8", INT8_PER_CHANNEL), ("int4", INT4_PER_BLOCK)])
def test_training_gets_the_rounding_of_their_quantized_layers(name: str, scheme: str, weights: str) -> None:
    forms = training_forms(scheme, Graph.parse(SOURCES[name]), {"2": weights})
    assert set(forms) == {"2"}
    static = training_forms("int8-static", Graph.parse(SOURCES[name]), dict.fromkeys("24", INT8_PER_CHANNEL))
    assert set(static) == {"2", "4"}
    # An output of the policy stays float.
    assert static["4"].outputs is None
