"""The start of quantization-aware training, and the layers that it follows."""

import functools
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actorq.domain.policy import FLOAT32, INT8_PER_CHANNEL, FidelityReport, LayerReport, PolicyDescriptor, PolicyGraph
from learner_service.networks import QNetwork
from learner_service.policy.policy_graph import export_policy_graph
from learner_service.quantization.fake_quantization import FakeQuantization
from learner_service.quantization.quantization_aware import QuantizationAware
from tests.learner_service.learner_parts import SPEC

OBSERVATIONS = np.random.default_rng(0).standard_normal((16, 4), np.float32)


def emitted(scheme: str = "int8", weights: str = INT8_PER_CHANNEL, layer: str = "torso.2") -> PolicyDescriptor:
    layers = (LayerReport("torso.0", FLOAT32, "first layer"), LayerReport(layer, weights))
    fidelity = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, None, layers)
    return PolicyDescriptor("run", 1, 0, scheme, b"", 1, 1, 0.0, fidelity)


@functools.cache
def graph() -> PolicyGraph:
    """Of all policies here: they differ in their weights only."""
    return export_policy_graph(QNetwork(SPEC, (32, 32), dueling=False), SPEC)


class Training:
    """A policy that updates would train."""

    def __init__(self, starts_at: float | None) -> None:
        torch.manual_seed(0)
        self.policy = QNetwork(SPEC, (32, 32), dueling=False)
        self.aware = QuantizationAware(FakeQuantization(self.policy, graph()), starts_at)
        self.exact = self.outputs()

    def outputs(self) -> Tensor:
        with torch.no_grad():
            result: Tensor = self.policy(torch.from_numpy(OBSERVATIONS))
            return result

    def is_quantized(self, updates: int, environment_steps: int) -> bool:
        with self.aware.applied(updates, environment_steps):
            inside = self.outputs()
        assert torch.equal(self.outputs(), self.exact)
        return not torch.equal(inside, self.exact)


def test_it_starts_at_its_environment_step_and_records_the_update() -> None:
    training = Training(starts_at=1000.0)
    training.aware.follow(emitted())
    assert not training.is_quantized(updates=96, environment_steps=999)
    assert training.aware.since is None
    assert training.is_quantized(updates=104, environment_steps=1000)
    assert training.is_quantized(updates=112, environment_steps=1010)
    assert training.aware.since == 104


def test_it_may_be_on_from_the_start_but_waits_for_the_first_receipt() -> None:
    training = Training(starts_at=0.0)
    assert not training.is_quantized(0, 0)
    assert training.aware.since is None
    training.aware.follow(emitted())
    assert training.is_quantized(8, 0)
    assert training.aware.since == 8


def test_without_a_start_it_is_never_on() -> None:
    training = Training(starts_at=None)
    training.aware.follow(emitted())
    assert not training.is_quantized(10**6, 10**9)
    assert training.aware.since is None


def test_it_follows_the_layers_that_the_gate_passes() -> None:
    training = Training(starts_at=0.0)
    training.aware.follow(emitted())
    assert training.is_quantized(0, 0)
    training.aware.follow(emitted(weights=FLOAT32))
    assert not training.is_quantized(8, 0)
    training.aware.follow(emitted(layer="advantage"))
    assert training.is_quantized(16, 0)
    assert training.aware.since == 0


def test_an_fp32_policy_of_another_scheme_is_trained_in_float() -> None:
    training = Training(starts_at=0.0)
    training.aware.follow(emitted(scheme="fp32", weights=FLOAT32))
    assert not training.is_quantized(0, 0)


@pytest.mark.parametrize("first", ["receipt", "publication"])
def test_calibrated_ranges_are_those_of_the_newest_publication(first: str) -> None:
    training = Training(starts_at=0.0)

    def inside() -> Tensor:
        with training.aware.applied(0, 0):
            return training.outputs()

    def publish(scale: float) -> None:
        training.aware.published(np.float32(scale) * OBSERVATIONS)

    if first == "publication":
        publish(1.0)
        training.aware.follow(emitted(scheme="int8-static"))
    else:
        training.aware.follow(emitted(scheme="int8-static"))
        publish(1.0)
    near = inside()
    assert (near - training.exact).abs().max() < 0.01
    publish(0.05)
    # Nearly everything is clipped now.
    assert (inside() - training.exact).abs().max() > 0.05
    publish(1.0)
    assert torch.equal(inside(), near)


def restored(state: dict[str, Any], starts_at: float | None) -> Training:
    training = Training(starts_at)
    training.aware.load_state(json.loads(json.dumps(state)))
    return training


def test_a_resumed_run_is_quantization_aware_before_the_first_receipt() -> None:
    training = Training(starts_at=100.0)
    training.aware.follow(emitted())
    assert training.is_quantized(40, 100)
    again = restored(training.aware.state(), starts_at=100.0)
    assert again.aware.since == 40
    assert again.is_quantized(48, 100)
    # A budget that was raised later does not end it.
    assert restored(training.aware.state(), starts_at=1000.0).is_quantized(48, 100)


def test_a_run_that_is_resumed_without_it_trains_in_float() -> None:
    training = Training(starts_at=0.0)
    training.aware.follow(emitted())
    assert training.is_quantized(40, 100)
    again = restored(training.aware.state(), starts_at=None)
    assert not again.is_quantized(48, 200)
    assert again.aware.since is None


def test_a_run_that_is_resumed_before_it_began_begins_later() -> None:
    state = Training(starts_at=100.0).aware.state()
    again = restored(state, starts_at=100.0)
    assert not again.is_quantized(8, 200)
    again.aware.follow(emitted())
    assert again.is_quantized(16, 200)
    assert again.aware.since == 16
