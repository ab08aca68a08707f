"""Quantization-aware updates of XQC: the loss of the actors' policy, with a gradient through the folding."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from actorq.domain.policy import INT8_PER_TENSOR, LayerReport
from learner_service.algorithms.xqc import XQC
from learner_service.networks.continuous import sample_of
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.quantization.fake_quantization import FakeQuantization, is_fake_quantized
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    CONTINUOUS,
    assert_equal_states,
    of_the_cpu,
    ones,
    random_batch,
)
from tests.learner_service.algorithms.xqc_reference import make_xqc

pytestmark = of_the_cpu
AWARE: Any = {"learner": {"quantization_aware_after": 0.5}}


def trained() -> XQC:
    """After some updates, so that the running statistics are not those of the beginning."""
    xqc, rng = make_xqc(run=AWARE), np.random.default_rng(0)
    for _ in range(5):
        xqc.update(random_batch(rng, CONTINUOUS, BATCH), ones())
    return xqc


def rounding(xqc: XQC, observations: Tensor) -> FakeQuantization:
    """Fake quantization of all layers of the policy, calibrated."""
    fake = FakeQuantization(xqc.policy, export_policy_graph(xqc.policy, CONTINUOUS, takes_noise=True))
    layers = [name for name, module in xqc.policy.named_modules() if isinstance(module, torch.nn.Linear)]
    fake.follow("int8", [LayerReport(layer, INT8_PER_TENSOR) for layer in layers])
    assert set(fake.layers) == set(layers)
    fake.calibrate(observations)
    return fake


def gradients(xqc: XQC, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(xqc._pi.network.parameters()), retain_graph=True))


def test_without_rounding_loss_and_gradient_are_those_of_the_folded_policy() -> None:
    xqc, rng = trained(), np.random.default_rng(1)
    batch = random_batch(rng, CONTINUOUS, BATCH)
    observations, noise = torch.from_numpy(batch.observations), torch.randn(BATCH, 2)
    found, statistics = xqc._rounded_policy_loss(observations, noise)

    x, folded = observations, xqc._pi.network.body.folded()
    for weight, bias in zip(folded[:-2:2], folded[1:-2:2], strict=True):
        x = functional.linear(x, weight, bias).relu()
    actions, log_probabilities = sample_of(functional.linear(x, *folded[-2:]), noise)
    values = torch.softmax(xqc._folded_z(observations, actions), 2) @ xqc._support.values
    expected = (xqc.temperature.alpha * log_probabilities - values.amin(0)).mean()
    expected = expected + xqc.temperature.loss(log_probabilities)

    torch.testing.assert_close(found, expected)
    for own, wanted in zip(gradients(xqc, found), gradients(xqc, expected), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-6)
    # The running statistics follow the batch, as without quantization.
    assert torch.equal(statistics, xqc._pi.network(observations)[1])


def test_updates_within_fake_quantization_use_the_rounded_policy() -> None:
    batch = random_batch(np.random.default_rng(1), CONTINUOUS, BATCH)
    exact, aware = trained(), trained()
    assert_equal_states(exact, aware)
    fake = rounding(aware, torch.from_numpy(batch.observations))
    assert not is_fake_quantized(aware.policy)
    with fake.applied():
        assert is_fake_quantized(aware.policy)
        for _ in range(3):
            aware.update(batch, ones())
            # Each update folds its result, and the next one rounds the new weights.
            with torch.no_grad():
                rounded = aware.policy.computed(torch.from_numpy(batch.observations))
    for _ in range(3):
        exact.update(batch, ones())
    after, other = snapshot_parameters(aware.policy), snapshot_parameters(exact.policy)
    assert all(np.isfinite(value).all() for value in after.values())
    assert all(not np.array_equal(after[name], other[name]) for name in after if name.endswith("weight"))
    with torch.no_grad():
        computed = aware.policy.computed(torch.from_numpy(batch.observations))
    assert 0 < float((rounded - computed).abs().max()) < 0.2


def test_a_resumed_quantization_aware_run_continues_bit_for_bit() -> None:
    batch = random_batch(np.random.default_rng(1), CONTINUOUS, BATCH)
    original, resumed = trained(), make_xqc(run=AWARE, seed=9)
    resumed.load_state({name: value.clone() for name, value in original.state().items()})
    for xqc in (original, resumed):
        with rounding(xqc, torch.from_numpy(batch.observations)).applied():
            xqc.update(batch, ones())
    assert_equal_states(resumed, original)
