"""Training runs the policy as its actors run it: the same numbers from torch and from ONNX Runtime."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actorq.config.memory import MemoryConfig
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.quantization.emission import weights
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Emission, Options, int4, int8, int8_static, scheme_named
from actorq.quantization.schemes.base import Plan
from learner_service.networks import QNetwork, SoftmaxPolicy
from learner_service.networks.torso import Remembering
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters, state_size_of
from learner_service.quantization import fake_quantization
from learner_service.quantization.fake_quantization import FakeQuantization
from learner_service.quantization.straight_through import Grid, Weights
from quantizer_service.emission.inference import open_session
from quantizer_service.emission.prepared_graph import PreparedGraph
from tests.builders.processors import exact_here

pytestmark = pytest.mark.usefixtures("operators_parsed_once")

VECTORS = EnvironmentSpec("Vectors-v0", ArraySpec((24,), "float32"), ArraySpec((), "int64"), sizes=(4,))
IMAGES = EnvironmentSpec("Images-v0", ArraySpec((36, 36, 4), "uint8"), ArraySpec((), "int64"), sizes=(4,))
QUANTIZED = ("int8-weights", "int8", "int8-static", "int4")
# The arrays of a policy's inputs by name, and those of its outputs in order, [B, ...] each.
Batch = dict[str, NDArray[Any]]
Outputs = tuple[NDArray[np.float32], ...]


class D4PGPolicy(nn.Sequential):
    """LayerNorm and tanh after the first layer, ELU, tanh output, as in Acme."""

    def __init__(self) -> None:
        layers = [nn.Linear(24, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 64), nn.ELU()]
        super().__init__(*layers, nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 4), nn.Tanh())


class ConvolutionalPolicy(nn.Module):
    """Frames in 0 to 255, or scaled to 1; two heads that share the convolutions' outputs."""

    def __init__(self, activation: type[nn.Module], pool: bool, scaled: bool) -> None:
        super().__init__()
        self.scaled = scaled
        self.torso = nn.Sequential(
            nn.Conv2d(4, 16, 5, stride=2),
            activation(),
            nn.MaxPool2d(2) if pool else nn.Identity(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=2),
            activation(),
            nn.Conv2d(16, 8, 3, padding="same", bias=False),
            activation(),
        )
        units = int(np.prod(self.torso(torch.zeros(1, 4, 36, 36)).shape))
        self.hidden = nn.Linear(units, 64)
        self.advantage, self.value = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, observations: Tensor) -> Tensor:
        x = observations.permute(0, 3, 1, 2).to(torch.float32)
        x = self.torso(x / 255 if self.scaled else x)
        x = torch.relu(self.hidden(x.flatten(1)))
        result: Tensor = self.advantage(x) + self.value(x)
        return result


class PooledWithoutRelu(nn.Module):
    """Pooled values have another range than the convolution's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 5, stride=2), nn.Conv2d(8, 8, 3)
        self.last = nn.Linear(8 * 6 * 6, 4)

    def forward(self, observations: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.first(observations.permute(0, 3, 1, 2) / 255), 2)
        result: Tensor = self.last(torch.relu(self.second(x)).flatten(1))
        return result


def mlp() -> nn.Module:
    sizes = (24, 64, 48, 200)
    hidden = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(200, 4))


def sparse(without_inputs: bool, left: tuple[int, int, int] = (41, 20, 18)) -> nn.Module:
    """Of the units of its hidden layers these are `left`: others have no inputs, or nothing reads them."""
    policy = nn.Sequential(nn.Linear(24, 64), nn.ELU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32, bias=False))
    policy.extend([nn.Tanh(), nn.Linear(32, 4)])
    generator = torch.Generator().manual_seed(3)
    layers = [layer for layer in policy if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer, reader, units in zip(layers, layers[1:], left, strict=False):
            gone = torch.randperm(layer.out_features, generator=generator)[units:]
            if without_inputs:
                layer.weight[gone] = 0.0
            else:
                reader.weight[:, gone] = 0.0
            # Scales and ranges that change with the live units.
            layer.weight[gone] *= 3.0
        layers[1].weight[:, 5] = 0.0
    return policy


def remembering(policy: type[Remembering], kind: Any, **options: Any) -> Remembering:
    """Hidden layers, a cell and heads."""
    return policy(VECTORS, (64, 48), memory=MemoryConfig(kind=kind, units=40), **options)


def sparse_memory() -> nn.Module:
    """An LSTM of which some hidden units before the cell have no inputs, and the cell does not read some others."""
    policy = remembering(SoftmaxPolicy, "lstm", activation="tanh")
    assert policy.memory is not None
    first, second = (module for module in policy.torso.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        first.weight[::3] = 0.0
        second.weight[::4] = 0.0
        policy.memory.input.weight[:, 1::4] = 0.0
        # Ranges that change with the live units.
        second.weight[1::4] *= 3.0
        policy.memory.recurrent.weight[::5] = 0.0
        policy.memory.recurrent.weight[:, ::7] = 0.0
    return policy


POLICIES: dict[str, tuple[Callable[[], nn.Module], EnvironmentSpec]] = {
    "MLP": (mlp, VECTORS),
    "dueling": (lambda: QNetwork(VECTORS, (64, 64), dueling=True), VECTORS),
    "LayerNorm, ELU and tanh": (D4PGPolicy, VECTORS),
    "units without inputs": (lambda: sparse(without_inputs=True), VECTORS),
    "units that nothing reads": (lambda: sparse(without_inputs=False), VECTORS),
    "CNN": (lambda: ConvolutionalPolicy(nn.ReLU, pool=False, scaled=True), IMAGES),
    "CNN that pools": (lambda: ConvolutionalPolicy(nn.ReLU, pool=True, scaled=False), IMAGES),
    "CNN with ELU": (lambda: ConvolutionalPolicy(nn.ELU, pool=True, scaled=True), IMAGES),
    "CNN without Relu": (PooledWithoutRelu, IMAGES),
    "flattened frames": (lambda: QNetwork(IMAGES, (32, 32), dueling=False), IMAGES),
    "GRU": (lambda: remembering(QNetwork, "gru", dueling=True), VECTORS),
    "LSTM": (lambda: remembering(SoftmaxPolicy, "lstm"), VECTORS),
    "LSTM that reads few units": (sparse_memory, VECTORS),
}


def inputs(policy: nn.Module, spec: EnvironmentSpec, rows: int, seed: int, spread: float = 3.0) -> Batch:
    """Random observations, and states before them if the policy has a memory."""
    rng = np.random.default_rng(seed)
    shape = (rows, *spec.observations.shape)
    if spec.observations.dtype == "uint8":
        batch: Batch = {OBSERVATIONS: rng.integers(256, size=shape, dtype=np.uint8)}
    else:
        batch = {OBSERVATIONS: np.float32(spread) * rng.standard_normal(shape, np.float32)}
    if size := state_size_of(policy):
        batch[Role.STATE] = np.float32(spread / 3) * rng.standard_normal((rows, size), np.float32)
    return batch


@dataclass(frozen=True)
class Trained:
    """A policy with weights that are not those of an initialization, its graph and a calibration batch."""

    policy: nn.Module
    source: PolicyGraph
    calibration: Batch

    @classmethod
    def of(cls, policy: nn.Module, spec: EnvironmentSpec) -> "Trained":
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in policy.parameters():
                # Zeros of sparse weights stay.
                kept = parameter != 0 if parameter.ndim == 2 else torch.ones_like(parameter)
                parameter.mul_(1.3).add_(0.02 * kept * torch.randn(parameter.shape, generator=generator))
        return cls(policy, export_policy_graph(policy, spec), inputs(policy, spec, 64, seed=6))

    def emitted(self, scheme: str, options: Options) -> Emission:
        parameters = snapshot_parameters(self.policy)
        published = Checkpoint(1, 0, self.source.digest, parameters, self.calibration, 0.0)
        version = PreparedGraph(Graph.parse(self.source)).without_dead_units(published)
        # As runs with quantization-aware training have it: see RunConfig.resolved_quantizer.
        plan = Plan(version.form.graph, scheme_named(scheme), replace(options, compensate=False))
        _, statistics = version.form.reference.observe(version.parameters, self.calibration, plan.observed)
        return plan.emit(version.parameters, statistics, "run", 1)

    def faked(self, scheme: str, emission: Emission) -> FakeQuantization:
        fake = FakeQuantization(self.policy, self.source)
        fake.follow(scheme, emission.layers)
        fake.calibrate(*self.arguments(self.calibration))
        return fake

    def arguments(self, batch: Batch) -> list[Tensor]:
        """The arguments of the policy's forward pass."""
        return [torch.from_numpy(batch[port.name]) for port in self.source.signature.inputs]

    def outputs(self, batch: Batch, fake: FakeQuantization | None = None) -> Outputs:
        with torch.no_grad(), nullcontext() if fake is None else fake.applied():
            outputs = self.policy(*self.arguments(batch))
        return tuple(np.asarray(each) for each in (outputs if isinstance(outputs, tuple) else (outputs,)))


def run(emission: Emission, batch: Batch) -> Outputs:
    return tuple(map(np.asarray, open_session(exact_here(emission.model), "emitted policy").run(None, batch)))


@pytest.fixture(scope="module", params=POLICIES)
def trained(request: pytest.FixtureRequest) -> Trained:
    make, spec = POLICIES[request.param]
    torch.manual_seed(1)
    return Trained.of(make(), spec)


def spec_of(trained: Trained) -> EnvironmentSpec:
    return VECTORS if trained.calibration[OBSERVATIONS].dtype == np.float32 else IMAGES


def disagreeing_rows(ours: Outputs, theirs: Outputs) -> float:
    """Share of the rows of which any output differs by more than float32 sums in another order do.

    torch and ONNX Runtime add products in different orders, which changes a sum by some 1e-7 of its largest terms;
    after a few layers that is below 1e-5 of the largest output. Where an activation lies as close as that to the middle
    between two levels, the two round it to different ones: a row in which this happens differs by much more, about as
    much as quantization does altogether. So nearly all rows must agree to 1e-5, and a few need not.
    """
    differ = [(np.abs(a - b) > 1e-5 * np.abs(b).max()).any(axis=1) for a, b in zip(ours, theirs, strict=True)]
    return float(np.any(differ, axis=0).mean())


@pytest.mark.parametrize("per_tensor", [False, True], ids=["per channel", "per tensor"])
@pytest.mark.parametrize("ends", [False, True], ids=["inner layers", "all layers"])
@pytest.mark.parametrize("scheme", QUANTIZED)
def test_the_fake_quantized_policy_computes_what_actors_run(
    trained: Trained, scheme: str, ends: bool, per_tensor: bool
) -> None:
    emission = trained.emitted(scheme, Options(ends=ends, per_tensor_error=1.0 if per_tensor else 0.0))
    fake = trained.faked(scheme, emission)
    assert set(fake.layers) == {layer.name for layer in emission.layers if not layer.in_float}
    # Beyond the calibration batch too, so that static ranges clip.
    batch = inputs(trained.policy, spec_of(trained), 64, seed=7, spread=6.0)
    theirs, ours, exact = run(emission, batch), trained.outputs(batch, fake), trained.outputs(batch)
    # Flattened frames are rounded at thousands of places a row, which makes it likelier that one is in the middle.
    assert disagreeing_rows(ours, theirs) <= 0.15
    if fake.layers:
        for our, their, float_output in zip(ours, theirs, exact, strict=True):
            assert np.abs(our - their).max() <= 2 * np.abs(float_output - their).max()
            # What is compared is there to be seen.
            assert disagreeing_rows((float_output,), (their,)) > 0.9


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("scheme", ["int8-weights", "int8-static", "int4"])
def test_training_through_time_computes_the_states_of_actors(scheme: str, kind: str) -> None:
    # Without int8: training computes its ranges over the products of all steps, actors over those of one step.
    torch.manual_seed(1)
    policy, steps, rows = remembering(SoftmaxPolicy, kind), 20, 16
    trained = Trained.of(policy, VECTORS)
    emission = trained.emitted(scheme, Options())
    fake = trained.faked(scheme, emission)
    assert {"memory.input", "memory.recurrent"} <= set(fake.layers)
    given = inputs(policy, VECTORS, steps * rows, seed=7)
    observations = given[OBSERVATIONS].reshape(steps, rows, -1)
    first, begins = given[Role.STATE][:rows], np.random.default_rng(8).random((steps, rows)) < 0.1
    session, states = open_session(exact_here(emission.model), "emitted policy"), [first]
    for t in range(steps):
        states[t] = states[t] * ~begins[t, :, None]
        states.append(session.run(None, {OBSERVATIONS: observations[t], Role.STATE: states[t]})[-1])
    arguments = [torch.from_numpy(each) for each in (observations, first, begins)]
    found = [policy.unrolled(*arguments).states]
    with fake.applied():
        found.append(policy.unrolled(*arguments).states)
    # The first state is given.
    theirs = (np.concatenate(states[1:]),)
    exact, ours = ((each[1:].flatten(0, 1).numpy(),) for each in found)
    # A row that rounds to another level changes all later states of its episode.
    assert disagreeing_rows(ours, theirs) <= 0.15
    # States of zeros begin a tenth of the steps.
    assert disagreeing_rows(exact, theirs) > 0.8


@cache
def with_an_empty_layer(without_inputs: bool) -> Trained:
    torch.manual_seed(1)
    return Trained.of(sparse(without_inputs, (41, 0, 18)), VECTORS)


@pytest.mark.parametrize("without_inputs", [True, False])
@pytest.mark.parametrize("scheme", QUANTIZED)
def test_the_fake_quantized_policy_matches_with_a_layer_without_live_units(scheme: str, without_inputs: bool) -> None:
    trained = with_an_empty_layer(without_inputs)
    emission = trained.emitted(scheme, Options(ends=True))
    batch = inputs(trained.policy, VECTORS, 64, seed=7)
    (ours,), (theirs,) = trained.outputs(batch, trained.faked(scheme, emission)), run(emission, batch)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("without_inputs", [True, False])
def test_removed_units_have_gradients_to_grow(without_inputs: bool) -> None:
    torch.manual_seed(1)
    trained = Trained.of(sparse(without_inputs), VECTORS)
    fake = trained.faked("int8", trained.emitted("int8", Options(ends=True)))
    arguments = trained.arguments(inputs(trained.policy, VECTORS, 64, seed=7))
    quantized: list[Any] = []
    exact: list[Any] = []
    for found, applied in ((quantized, fake.applied()), (exact, nullcontext())):
        with applied:
            trained.policy.zero_grad()
            trained.policy(*arguments).square().sum().backward()
        found += [parameter.grad for parameter in trained.policy.parameters()]
    for name, ours, theirs in zip(dict(trained.policy.named_parameters()), quantized, exact, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 0.1, name
    # Weights of 0 that might grow, between live units and removed units.
    zeros = [
        (parameter == 0) & (theirs != 0) for parameter, theirs in zip(trained.policy.parameters(), exact, strict=True)
    ]
    assert sum(int(each.sum()) for each in zeros) > 100


WRONG: dict[str, tuple[str, object, str, Any]] = {
    "no margin": ("int8-static", int8_static, "MARGIN", 1.0),
    "128 levels for weights": ("int8", weights, "INT8_LARGEST", 128.0),
    "256 levels for activations": ("int8", int8, "UINT8_LARGEST", 256.0),
    "smaller blocks": ("int4", int4, "_BLOCKS", (16,)),
    "units left in": ("int8", fake_quantization, "remaining_units", lambda policy, traced: {}),
    "units left in before a cell": ("int8", fake_quantization, "remaining_units", lambda policy, traced: {}),
}
# The policies for these formulas; D4PGPolicy for the others.
_WITH_UNITS = {"units left in": lambda: sparse(without_inputs=False), "units left in before a cell": sparse_memory}


@pytest.mark.parametrize("what", WRONG)
def test_the_comparison_sees_a_wrong_formula(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, target, name, wrong = WRONG[what]
    torch.manual_seed(1)
    trained = Trained.of(_WITH_UNITS.get(what, D4PGPolicy)(), VECTORS)
    emission = trained.emitted(scheme, Options(ends=True))
    batch = inputs(trained.policy, VECTORS, 64, seed=7)
    monkeypatch.setattr(target, name, wrong)
    ours = trained.outputs(batch, trained.faked(scheme, emission))
    assert disagreeing_rows(ours, run(emission, batch)) > 0.5


def halves(rows: int, inputs: int) -> NDArray[np.float32]:
    """Multiples of 1/2 from -101.5 to 153.5: over this range the scale is 1, and every odd one is a tie.

    The zero point is one too, and goes to 102, so that 153.5, which goes to 154, is clipped to 153.
    """
    values = np.random.default_rng(8).integers(-203, 308, (rows, inputs)).astype(np.float32) / np.float32(2)
    values.flat[:2] = -101.5, 153.5
    return values


def hard_cases(inputs: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(9)
    return {
        "ties": halves(16, inputs),
        "one row": rng.standard_normal((1, inputs), np.float32),
        "zeros": np.zeros((3, inputs), np.float32),
        "a constant": np.full((3, inputs), 0.7, np.float32),
        "above zero": 1 + rng.random((5, inputs), np.float32),
        "below zero": -1 - rng.random((5, inputs), np.float32),
        "nearly nothing": np.float32(1e-30) * rng.standard_normal((5, inputs), np.float32),
        "very much": np.float32(1e30) * rng.standard_normal((5, inputs), np.float32),
    }


class OneLayer(nn.Sequential):
    """A linear layer with ties among its weights, a channel of zeros, and one of next to nothing."""

    def __init__(self, inputs: int) -> None:
        layer = nn.Linear(inputs, 16)
        super().__init__(layer)
        with torch.no_grad():
            layer.weight.copy_(torch.randint(-253, 254, layer.weight.shape) / 2)
            layer.weight[:, 0] = 127.0
            layer.weight[1] = 0.0
            layer.weight[2] = 1e-39


HARD = EnvironmentSpec("Hard-v0", ArraySpec((32,), "float32"), ArraySpec((), "int64"), sizes=(16,))


@pytest.mark.parametrize("per_tensor", [False, True], ids=["per channel", "per tensor"])
@pytest.mark.parametrize("scheme", ["int8", "int8-static", "int4"])
def test_one_layer_is_the_same_to_the_last_bit(scheme: str, per_tensor: bool) -> None:
    torch.manual_seed(2)
    policy = OneLayer(32)
    source = export_policy_graph(policy, HARD)
    for name, rows in hard_cases(32).items():
        batch: Batch = {OBSERVATIONS: rows}
        trained = Trained(policy, source, batch)
        emission = trained.emitted(scheme, Options(ends=True, per_tensor_error=1.0 if per_tensor else 0.0))
        (ours,), (theirs,) = trained.outputs(batch, trained.faked(scheme, emission)), run(emission, batch)
        if scheme == "int4":
            # Blocks are summed in float32, where the order counts; a tie on the wrong side would be 1e-3 or more.
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-6 * np.abs(theirs).max(), err_msg=name)
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


def half_away(x: Tensor) -> Tensor:
    return x.sign() * (x.abs() + 0.5).floor()


def shifted(self: Grid, activations: Tensor) -> Tensor:
    return activations.div(self.scale).clamp_(self.lowest + 1, self.highest + 1).round_()


WRONG_BY_A_LEVEL: dict[str, tuple[type, str, Any]] = {
    "activations cut off": (Grid, "levels", lambda self, x: x.div(self.scale).clamp(self.lowest, self.highest).trunc()),
    "activations half away from zero": (
        Grid,
        "levels",
        lambda self, x: half_away(x.div(self.scale).clamp(self.lowest, self.highest)),
    ),
    "a zero point that is one off": (Grid, "levels", shifted),
    "weights half away from zero": (
        Weights,
        "of",
        lambda weight, per_channel, least, bits: Weights(half_away(weight), torch.ones(1, 1)),
    ),
}


@pytest.mark.parametrize("what", WRONG_BY_A_LEVEL)
def test_one_layer_shows_a_single_wrong_level(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    policy, batch = OneLayer(32), {OBSERVATIONS: halves(16, 32)}
    trained = Trained(policy, export_policy_graph(policy, HARD), batch)
    emission = trained.emitted("int8", Options(ends=True, per_tensor_error=1.0))
    theirs = run(emission, batch)
    np.testing.assert_array_equal(trained.outputs(batch, trained.faked("int8", emission)), theirs)
    target, name, wrong = WRONG_BY_A_LEVEL[what]
    monkeypatch.setattr(target, name, wrong)
    assert not np.array_equal(trained.outputs(batch, trained.faked("int8", emission)), theirs)
