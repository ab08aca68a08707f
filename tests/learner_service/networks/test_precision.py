"""learner.precision: the decision, the log, and the parts that stay float32."""

import logging
import re
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms import make_algorithm
from learner_service.algorithms.base import Algorithm
from learner_service.batch import Batch
from learner_service.kernels.convolution import Conv2d
from learner_service.kernels.parameters import FlatParameters
from learner_service.kernels.sparse_products import ActiveWeights
from learner_service.networks import Linear, mlp
from learner_service.networks.precision import (
    Convolution,
    Seconds,
    Shape,
    Work,
    has_instructions,
    measure,
    use_precision,
)
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters

DISCRETE = EnvironmentSpec("Discrete-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), sizes=(3,))
CONTINUOUS = EnvironmentSpec(
    "Continuous-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0, -1.0), (1.0, 1.0)), ()
)
SIZES = {
    "dqn": {"hidden_sizes": (128, 136)},
    "d4pg": {"policy_sizes": (128, 136), "critic_sizes": (128, 136)},
    "td3": {"hidden_sizes": (128, 136)},
    "sac": {"hidden_sizes": (128, 136)},
}
BATCH = 512


def config(precision: str, algorithm: str = "dqn", **learner: Any) -> RunConfig:
    section = {"batch_size": BATCH, "n_step": 1, **SIZES[algorithm]}
    return RunConfig.model_validate(
        {"algorithm": algorithm, algorithm: section, "learner": {"precision": precision, **learner}}
    )


def made(algorithm: str, precision: str) -> Algorithm:
    spec = DISCRETE if algorithm == "dqn" else CONTINUOUS
    return make_algorithm(config(precision, algorithm), spec)


def updated(algorithm: Algorithm, updates: int = 3) -> Algorithm:
    """The algorithm after some updates, on the same random transitions in each call."""
    rng = np.random.default_rng(0)
    discrete = algorithm.name == "dqn"

    def numbers(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal((BATCH, *shape), np.float32)

    for _ in range(updates):
        batch = Batch(
            observations=numbers(3),
            actions=rng.integers(3, size=BATCH) if discrete else np.clip(numbers(2), -1, 1),
            returns=numbers(),
            bootstrap_discounts=np.full(BATCH, 0.9, np.float32),
            bootstrap_observations=numbers(3),
            policy_versions=np.ones(BATCH, np.int64),
        )
        algorithm.update(batch, np.ones(BATCH, np.float32))
    return algorithm


def network(*sizes: int) -> FlatParameters:
    torch.manual_seed(0)
    return FlatParameters(mlp(sizes))


def in_bf16(parameters: FlatParameters) -> list[bool]:
    """Of each layer."""
    layers = (part for module in parameters.modules for part in module.modules() if isinstance(part, Linear))
    return [layer.bf16_weight is not None for layer in layers]


class Timer:
    """Returns given times, and records the measured shapes."""

    def __init__(self, fp32: float, bf16: float) -> None:
        self.seconds = Seconds(fp32, bf16)
        self.shapes: list[Work] = []

    def __call__(self, shape: Work, device: torch.device) -> Seconds:
        self.shapes.append(shape)
        return self.seconds


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "learner_service.networks.precision")
    return caplog


@pytest.mark.parametrize(("bf16", "chosen"), [(1.0, "bf16"), (1.8, "bf16"), (1.9, "fp32"), (11.0, "fp32")])
def test_auto_chooses_bf16_if_it_is_a_tenth_faster(bf16: float, chosen: str, logged: pytest.LogCaptureFixture) -> None:
    wide, timer = network(8, 128, 256, 512), Timer(2.0, bf16)
    used = use_precision(config("auto"), BATCH, (network(8, 128, 128), wide), lambda _: True, timer)
    assert used == chosen
    assert in_bf16(wide) == [False, *[chosen == "bf16"] * 2]
    assert timer.shapes == [(BATCH, 256, 512)]
    (line,) = logged.messages
    assert re.search(rf"auto: {chosen}.*2e\+03 ms in fp32, {re.escape(f'{1000 * bf16:.3g}')} ms in bf16", line)


def test_auto_measures_nothing_on_a_processor_without_bf16(logged: pytest.LogCaptureFixture) -> None:
    wide, timer = network(8, 256, 256), Timer(2.0, 1.0)
    assert use_precision(config("auto"), BATCH, (wide,), lambda _: False, timer) == "fp32"
    assert in_bf16(wide) == [False, False]
    assert timer.shapes == []
    (line,) = logged.messages
    assert re.match(r"learner\.precision auto: fp32.*processor", line)


@pytest.mark.parametrize("has_bf16", [True, False])
def test_slow_bf16_is_used_with_a_warning_about_its_cost(has_bf16: bool, logged: pytest.LogCaptureFixture) -> None:
    wide = network(8, 256, 256)
    assert use_precision(config("bf16"), BATCH, (wide,), lambda _: has_bf16, Timer(1.0, 5.91)) == "bf16"
    assert in_bf16(wide) == [False, True]
    (record,) = logged.records
    assert record.levelno == logging.WARNING
    assert re.search(r"bf16 .*5\.9 times", record.getMessage())


def test_fast_bf16_is_used_without_a_warning(logged: pytest.LogCaptureFixture) -> None:
    wide = network(8, 256, 256)
    assert use_precision(config("bf16"), BATCH, (wide,), lambda _: True, Timer(1.0, 0.9)) == "bf16"
    assert in_bf16(wide) == [False, True]
    assert [each.levelno for each in logged.records] == [logging.INFO]


def test_the_checked_instructions_are_those_of_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, has in (({"avx512_bf16": True}, True), ({"amx_bf16": True, "avx512_bf16": False}, True), ({}, False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert has_instructions(torch.device("cpu")) is has


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [((8, 64, 64), 3000), ((256, 256), 3000), ((8, 128, 128), 500)],
    ids=["narrow", "first", "few rows"],
)
def test_bf16_is_not_used_if_no_layer_gains_from_it(
    sizes: tuple[int, ...], rows: int, logged: pytest.LogCaptureFixture
) -> None:
    narrow, timer = network(*sizes), Timer(2.0, 1.0)
    assert use_precision(config("bf16"), rows, (narrow,), lambda _: True, timer) == "fp32"
    assert not any(in_bf16(narrow))
    (line,) = logged.messages
    assert re.search("fp32.*128 inputs", line)


def test_sparse_layers_keep_their_own_products() -> None:
    parameters = network(8, 256, 256, 256)
    sparse = parameters.modules[0].get_submodule("2")
    assert isinstance(sparse, Linear)
    sparse.active = ActiveWeights()
    assert use_precision(config("bf16"), BATCH, (parameters,), lambda _: True, Timer(2.0, 1.0)) == "bf16"
    assert in_bf16(parameters) == [False, False, True]


def test_fp32_is_the_default_and_logs_nothing(logged: pytest.LogCaptureFixture) -> None:
    wide = network(8, 256, 256)
    assert use_precision(RunConfig(), BATCH, (wide,), lambda _: True, Timer(2.0, 1.0)) == "fp32"
    assert in_bf16(wide) == [False, False]
    assert logged.messages == []


def test_a_measurement_is_of_both_precisions() -> None:
    seconds = measure(Shape(16, 128, 128), torch.device("cpu"))
    assert min(seconds) > 0


def test_a_convolution_is_measured_and_in_bf16() -> None:
    layer = Conv2d((9, 84, 84), units=32, kernel=8, stride=4)
    timer, parameters = Timer(2.0, 1.0), FlatParameters(nn.Sequential(layer, nn.ReLU()))
    assert use_precision(config("auto"), BATCH, (parameters,), lambda _: True, timer) == "bf16"
    assert timer.shapes == [Convolution(BATCH, layer)]
    assert timer.shapes[0].multiplications == BATCH * 32 * 20 * 20 * 9 * 8 * 8
    assert layer.bf16_weight is not None


def test_a_measurement_of_a_convolution_leaves_it_as_it_is() -> None:
    layer = Conv2d((3, 36, 36), units=32, kernel=8, stride=4)
    assert min(measure(Convolution(16, layer), torch.device("cpu"))) > 0
    assert layer.bf16_weight is None
    assert layer.weight.grad is None


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_compiled_losses_and_bf16_exclude_each_other(precision: str) -> None:
    with pytest.raises((UserError, ValueError), match=rf"learner\.compile .*learner\.precision {precision}"):
        config(precision, compile=True)


@pytest.mark.parametrize("name", SIZES)
class TestAlgorithms:
    def test_updates_are_close_to_those_of_fp32_and_repeat_to_the_last_bit(self, name: str) -> None:
        fp32, bf16, again = (updated(made(name, precision)) for precision in ("fp32", "bf16", "bf16"))
        assert getattr(bf16, "precision", None) == "bf16"
        state, expected, start = bf16.state(), fp32.state(), made(name, "fp32").state()
        for key, value in again.state().items():
            assert torch.equal(value, state[key]), key
        different = 0
        for key, value in expected.items():
            if not key.endswith(".parameters"):
                continue
            assert state[key].dtype == torch.float32
            # Adam's first steps are as long as the learning rate for any size of a gradient. So the few gradients whose
            # sign is rounded away step in the other direction.
            moved = (value - start[key]).norm()
            assert (state[key] - value).norm() < 0.3 * moved, key
            different += not torch.equal(state[key], value)
        assert different

    def test_the_published_policy_is_fp32_with_the_same_graph(self, name: str) -> None:
        spec = DISCRETE if name == "dqn" else CONTINUOUS
        fp32, bf16 = made(name, "fp32"), updated(made(name, "bf16"))
        graphs = [export_policy_graph(each.policy, spec, each.takes_noise).model for each in (fp32, bf16)]
        assert graphs[0] == graphs[1]
        published, expected = (snapshot_parameters(each.policy) for each in (bf16, fp32))
        assert published.keys() == expected.keys()
        for key, value in published.items():
            assert value.dtype == np.dtype(np.float32)
            assert value.shape == expected[key].shape

    def test_a_checkpoint_of_one_precision_continues_in_the_other(self, name: str) -> None:
        saved = updated(made(name, "bf16")).state()
        fp32, bf16 = made(name, "fp32"), made(name, "bf16")
        for each in (fp32, bf16):
            updated(each, 1)
            each.load_state(saved)
            for key, value in each.state().items():
                assert torch.equal(value, saved[key]), key
        going_on = made(name, "bf16")
        going_on.load_state(saved)
        # The copies of the previous weights must be gone.
        expected, actual = updated(going_on, 2).state(), updated(bf16, 2).state()
        for key, value in expected.items():
            assert torch.equal(value, actual[key]), key
