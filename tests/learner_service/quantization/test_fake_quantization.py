"""Only a policy's layers are replaced, and only inside the context."""

import logging
import re

import pytest
import torch
from torch import Tensor, nn

from actorq.config.algorithms import DQNConfig
from actorq.config.run_config import RunConfig
from actorq.domain.policy import FLOAT32, INT4_PER_BLOCK, INT8_PER_CHANNEL, INT8_PER_TENSOR, LayerReport
from learner_service.algorithms.dqn import DQN
from learner_service.networks import QNetwork
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.quantization.fake_quantization import FakeQuantization
from tests.learner_service.learner_parts import SPEC


def reports(*names: str, weights: str = INT8_PER_CHANNEL) -> tuple[LayerReport, ...]:
    return tuple(LayerReport(name, weights) for name in names)


@pytest.fixture
def policy() -> QNetwork:
    torch.manual_seed(0)
    return QNetwork(SPEC, (32, 32), dueling=True)


def outputs(policy: nn.Module, rows: int = 9) -> Tensor:
    observations = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        result: Tensor = policy(observations)
    return result


def test_the_policy_is_quantized_only_inside_the_context(policy: QNetwork) -> None:
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int8", reports("torso.2", "value"))
    assert fake.layers == ("torso.2", "value")
    before, names = outputs(policy), list(policy.state_dict())
    with fake.applied():
        inside = outputs(policy)
        assert list(policy.state_dict()) == names
    assert not torch.equal(inside, before)
    torch.testing.assert_close(inside, before, rtol=0.05, atol=0.05)
    assert torch.equal(outputs(policy), before)
    assert all("forward" not in vars(module) for module in policy.modules())


@pytest.mark.parametrize("scheme", ["int8-weights", "int8"])
def test_fewer_bits_change_the_outputs_more(policy: QNetwork, scheme: str) -> None:
    before = outputs(policy)
    errors: dict[int | None, float] = {}
    for bits in (None, 4, 2):
        fake = FakeQuantization(policy, export_policy_graph(policy, SPEC), bits)
        fake.follow(scheme, reports("torso.2", weights=INT8_PER_TENSOR))
        with fake.applied():
            errors[bits] = float((outputs(policy) - before).abs().mean())
    assert 0 < 5 * errors[None] < errors[4] < errors[2]


def test_an_error_inside_the_context_restores_the_policy(policy: QNetwork) -> None:
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int8", reports("torso.2"))
    before = outputs(policy)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), fake.applied():
        policy(torch.zeros(1, 5))
    assert torch.equal(outputs(policy), before)


def test_graph_and_snapshot_are_those_of_the_float_policy(policy: QNetwork) -> None:
    topology, parameters = export_policy_graph(policy, SPEC).digest, snapshot_parameters(policy)
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int8", reports("torso.0", "torso.2", "advantage", "value"))
    with fake.applied():
        policy(torch.ones(2, 4)).sum().backward()
        inside = snapshot_parameters(policy)
    assert export_policy_graph(policy, SPEC).digest == topology
    assert all((inside[name] == value).all() for name, value in parameters.items())


def test_gradients_arrive_in_the_flat_vector_of_an_algorithm() -> None:
    dqn = DQN(RunConfig(dqn=DQNConfig(hidden_sizes=(32, 32))), SPEC, torch.device("cpu"))
    fake = FakeQuantization(dqn.policy, export_policy_graph(dqn.policy, SPEC))
    fake.follow("int8", reports("torso.0", "torso.2", "advantage", "value", weights=INT8_PER_TENSOR))
    flat = dqn.policy.get_parameter("torso.0.weight").grad
    assert flat is not None
    with fake.applied():
        dqn.policy(torch.randn(16, 4)).square().sum().backward()
    for name, parameter in dqn.policy.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0, name
    # Where it was: the vector that the optimizer reads.
    assert dqn.policy.get_parameter("torso.0.weight").grad is flat


def test_layers_in_float_are_not_changed(policy: QNetwork) -> None:
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int8", (LayerReport("torso.0", FLOAT32, "first layer"), *reports("torso.2")))
    assert fake.layers == ("torso.2",)
    # Another report replaces the previous one.
    fake.follow("int8", (LayerReport("torso.0", FLOAT32, "first layer"), LayerReport("torso.2", FLOAT32, "gate")))
    assert not fake.layers
    before = outputs(policy)
    with fake.applied():
        assert torch.equal(outputs(policy), before)


class OwnPolicy(nn.Module):
    """A user's policy: its own weight and a layer of torch.nn, and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 16))
        self.inner = nn.Linear(16, 16)
        self.grow = nn.ConvTranspose1d(1, 1, 2)

    def forward(self, observations: Tensor) -> Tensor:
        x = self.inner(observations @ self.weight)
        result: Tensor = self.grow(x.unsqueeze(1)).squeeze(1)[:, :2]
        return result


def test_a_users_policy_is_followed_as_far_as_its_layers_are_of_torch(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    policy = OwnPolicy()
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    with caplog.at_level(logging.WARNING):
        fake.follow("int8-weights", reports("weight", "inner", "grow"))
    assert fake.layers == ("inner",)
    weight, grow = [line for line in caplog.messages if "float" in line]
    assert re.search("layer weight .*no module", weight)
    assert re.search("layer grow .*ConvTranspose1d", grow)


def test_a_scheme_that_is_not_installed_here_is_trained_in_float(
    policy: QNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int2", reports("torso.2", weights="2 bits"))
    assert fake.layers == ()
    assert re.search("2 bits .*int2", caplog.text)


def test_calibrated_ranges_clip_larger_values(policy: QNetwork) -> None:
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int8-static", reports("torso.0", "torso.2", "advantage", "value"))
    near = torch.randn(64, 4)
    fake.calibrate(near)
    far = (100 * near).requires_grad_()
    with fake.applied():
        near_outputs, far_outputs = policy(near).detach(), policy(far)
    assert float(far_outputs.detach().abs().max()) < 3 * float(near_outputs.abs().max())
    far_outputs.sum().backward()
    assert far.grad is not None
    # Clipped values have no gradient; a few observations are near 0.
    assert float((far.grad == 0).float().mean()) > 0.9
    assert policy(far.detach()).abs().max() > 10 * near_outputs.abs().max()


def test_calibration_runs_on_the_device_of_the_policy(policy: QNetwork) -> None:
    """Observations come from the replay, on another device perhaps. "meta" has shapes and no numbers to be moved."""
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int8-static", reports("torso.2"))
    with pytest.raises(NotImplementedError, match="copy out of meta"):
        fake.calibrate(torch.zeros(3, 4, device="meta"))


def test_every_calibration_measures_the_ranges_again(policy: QNetwork) -> None:
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int8-static", reports("torso.2"))
    observations = torch.randn(64, 4)
    fake.calibrate(observations)
    with fake.applied():
        first = outputs(policy)
    fake.calibrate(10 * observations)
    with fake.applied():
        assert not torch.equal(outputs(policy), first)


def test_a_layer_that_has_become_too_narrow_for_its_scheme_waits_for_the_next_report(policy: QNetwork) -> None:
    fake = FakeQuantization(policy, export_policy_graph(policy, SPEC))
    fake.follow("int4", reports("torso.2", weights=INT4_PER_BLOCK))
    with torch.no_grad():
        # Of 32 inputs 8 are left, and int4 needs at least 16.
        policy.get_parameter("torso.2.weight")[:, 8:] = 0.0
    fake.calibrate(torch.randn(64, 4))
    before = outputs(policy)
    with fake.applied():
        inside = outputs(policy)
    assert not torch.equal(inside, before)
    torch.testing.assert_close(inside, before, rtol=0.3, atol=0.3)
