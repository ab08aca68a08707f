"""The table of bits: its quantizers, the rounded forms of a policy, the kept return, and the fewest bits."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actor_service.environments import describe_environment, make_environments
from actorq.domain.policy import FP32, Checkpoint
from actorq.quantization.emission.weights import quantize_int8
from actorq.quantization.graph import Graph
from actorq.quantization.schemes.int8 import dynamic_grid
from benchmarks.harness import ONE_SEED
from benchmarks.policies import checkpoint_of, emit, vector_network
from benchmarks.policy.bits.__main__ import AWARE, targets
from benchmarks.policy.bits.evaluation import Evaluation, evaluated, random_return
from benchmarks.policy.bits.forms import CORRECTED, FORMS, OUTPUT, Form, RoundedPolicy, forms_of
from benchmarks.policy.bits.quantizers import activations, components, quarl, symmetric
from benchmarks.policy.bits.summary import fewest, share, summarized
from learner_service.networks import QNetwork
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.quantization.straight_through import Weights
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.inference import open_session
from quantizer_service.store.store import PolicyStore

Array = NDArray[np.float32]


def random_weight(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_quarl_divides_the_range_around_zero_into_equal_steps_and_clips_nothing() -> None:
    weight = np.array([[-1.0, 0.6, 3.0], [0.4, 0.2, -0.1]], np.float32)
    # From -1 to 3 in 4 steps of 1: the levels -1 to 3 are one more than 2 bits can number.
    assert quarl(weight, 2, per_channel=False).tolist() == [[-1.0, 1.0, 3.0], [0.0, 0.0, 0.0]]
    # The second row has its own range of 0.5: steps of 0.125.
    each = quarl(weight, 2, per_channel=True)
    np.testing.assert_allclose(each, [[-1.0, 1.0, 3.0], [0.375, 0.25, -0.125]])
    # The range contains 0, where all weights are positive too.
    np.testing.assert_allclose(quarl(np.array([[1.0, 3.0]], np.float32), 2, per_channel=False), [[0.75, 3.0]])


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_quarl_rounds_a_convolution_channel_by_channel(bits: int) -> None:
    weight = random_weight(3, 2, 4, 4)
    whole = quarl(weight, bits, per_channel=True)
    for channel, rounded in zip(weight, whole, strict=True):
        np.testing.assert_array_equal(quarl(channel[None], bits, per_channel=False)[0], rounded)
    steps = (np.ptp(weight.reshape(3, -1), axis=1) / 2**bits).reshape(3, 1, 1, 1)
    assert np.all(np.abs(whole - weight) <= steps / 2 * 1.0001)


def test_symmetric_weights_of_8_bits_are_those_of_the_scheme_int8() -> None:
    weight = random_weight(7, 5)
    weight[2] = 0.0
    expected = quantize_int8(weight)
    np.testing.assert_allclose(symmetric(weight, 8), expected.values * expected.scale[:, None], rtol=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_symmetric_weights_are_those_of_quantization_aware_training(bits: int) -> None:
    weight = random_weight(6, 9)
    trained = Weights.of(torch.from_numpy(weight), per_channel=True, bits=bits)
    np.testing.assert_allclose(symmetric(weight, bits), trained.values.numpy(), rtol=1e-5, atol=1e-7)
    levels = trained.levels.abs().amax(1)
    assert levels.tolist() == [2 ** (bits - 1) - 1] * len(weight)


def test_two_bits_leave_three_levels_of_a_weight() -> None:
    weight = np.array([[-2.0, 0.9, 1.1, 2.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
    assert symmetric(weight, 2).tolist() == [[-2.0, 0.0, 2.0, 2.0], [0.0] * 4]


@pytest.mark.parametrize("seen", [(-1.3, 4.2), (0.0, 3.0), (0.5, 3.0), (-2.0, -1.0)])
def test_activations_of_8_bits_have_the_grid_of_the_scheme_int8(seen: tuple[float, float]) -> None:
    grid, (scale, zero_point) = activations(*seen, 8), dynamic_grid(*seen)
    assert float(grid.step) == pytest.approx(scale)
    assert (float(grid.offset), grid.first, grid.last) == (0.0, -zero_point, 255 - zero_point)


def test_few_bits_of_activations_keep_zero() -> None:
    grid = activations(-1.0, 2.0, 2)
    assert (float(grid.step), grid.first, grid.last) == (1.0, -1, 2)
    # Nothing was seen but zeros.
    assert (float(activations(0.0, 0.0, 4).step), activations(0.0, 0.0, 4).first) == (1.0, 0)


def test_components_have_grids_of_their_own_with_both_ends() -> None:
    grid = components(np.array([-1.0, 5.0]), np.array([2.0, 5.0]), 2)
    assert grid.offset.tolist() == [-1.0, 5.0]
    assert grid.step.tolist() == [1.0, 1.0]
    assert (grid.first, grid.last) == (0, 3)


LOW, HIGH = np.full(6, -1.0, np.float32), np.full(6, 1.0, np.float32)
GRID = np.linspace(-1, 1, 2**3)


def on_grid(values: Array, low: Array, high: Array, bits: int) -> Array:
    """Independent of the nodes: the nearest of all levels between low and high."""
    levels = low + (high - low) * np.arange(2**bits)[:, None, None] / (2**bits - 1)
    nearest: Array = np.take_along_axis(levels, np.abs(levels - values).argmin(0)[None], 0)[0]
    return nearest


def affine(values: Array, seen: Array, bits: int) -> Array:
    """Independent of the nodes: rounded over the range of `seen` and 0, with 0 as a level."""
    low, high = min(0.0, float(seen.min())), max(0.0, float(seen.max()))
    scale = (high - low) / (2**bits - 1)
    zero = np.rint(-low / scale)
    rounded: Array = (np.clip(np.rint(values / scale) + zero, 0, 2**bits - 1) - zero) * scale
    return rounded


def hidden(weights: list[Array], biases: list[Array], rows: Array, bits: int | None, seen: list[Array]) -> list[Array]:
    """Inputs of the inner layers, then the output of an MLP with ReLU, with rounded inputs of inner layers."""
    found: list[Array] = []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        rows = np.maximum(rows @ weight.T + bias, 0)
        rows = rows if bits is None else affine(rows, seen[len(found)], bits)
        found.append(rows)
    return [*found, rows @ weights[-1].T + biases[-1]]


@pytest.mark.parametrize(
    "form",
    [
        Form(),
        Form(weights=3),
        Form(weights=3, quarl=True),
        Form(inner=3),
        Form(inputs=3),
        Form(outputs=3),
        Form(4, 4, 3, 3),
    ],
    ids=str,
)
def test_a_rounded_policy_computes_what_numpy_does(form: Form) -> None:
    graph, checkpoint = checkpoint_of(vector_network("mlp", 16))
    ((name, calibration),) = checkpoint.calibration.items()
    policy = RoundedPolicy(Graph.parse(graph), checkpoint.parameters, {name: calibration[:64]}, (LOW, HIGH))
    session = open_session(policy.model(form), "rounded")
    rows = calibration[64:] * np.float32(1.5)
    got = session.run([graph.signature.acting.name], {name: rows})[0]

    weights = [value for value in checkpoint.parameters.values() if value.ndim == 2]
    biases = [value for value in checkpoint.parameters.values() if value.ndim == 1]
    assert [weight.shape[1] for weight in weights] == [24, 16, 16, 16]
    seen = hidden(weights, biases, calibration[:64], None, [])
    if form.inputs:
        rows = on_grid(rows, calibration[:64].min(0), calibration[:64].max(0), form.inputs)
    if form.weights:
        own = form.weights
        weights = [quarl(each, own, False) if form.quarl else symmetric(each, own) for each in weights]
    expected = hidden(weights, biases, rows, form.inner, seen)[-1]
    if form.outputs:
        expected = on_grid(expected, LOW, HIGH, form.outputs)
        assert np.abs(got[:, :, None] - GRID).min(-1).max() < 1e-6
    # In float32, a value between two levels may round to the other one.
    close = np.isclose(got, expected, rtol=1e-4, atol=1e-4).all(1)
    assert close.mean() > 0.9


def test_corrected_weights_of_8_bits_are_those_of_the_scheme_int8_weights() -> None:
    graph, checkpoint = checkpoint_of(vector_network("mlp", 16))
    ((name, rows),) = checkpoint.calibration.items()
    policy = RoundedPolicy(Graph.parse(graph), checkpoint.parameters, checkpoint.calibration, (LOW, HIGH))
    emitted = emit(graph, checkpoint, "int8-weights").model
    ours, nearest, expected = (
        open_session(model, "policy").run([graph.signature.acting.name], {name: rows})[0]
        for model in (policy.model(FORMS[CORRECTED](8)), policy.model(Form(weights=8)), emitted)
    )
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    assert np.abs(nearest - expected).max() > 1e-4


def make_run(folder: Path, returns: Sequence[float | None] = (None,)) -> None:
    """A run's folder with an untrained policy of CartPole. It has a version for each return, ten updates apart."""
    torch.manual_seed(0)
    spec = describe_environment("CartPole-v1")
    network = QNetwork(spec, (8, 8), dueling=True)
    graph = export_policy_graph(network, spec)
    rows = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    calibration = {graph.signature.inputs[0].name: rows}
    store = PolicyStore(folder / "policies", retain_newest=5, retain_best=1)
    emitter = Emitter(store)
    emitter.catalog.claim("benchmark")
    emitter.add_graph(graph)
    for version, mean_return in enumerate(returns, start=1):
        parameters = snapshot_parameters(network)
        emitter.publish(Checkpoint(version, 10 * version, graph.digest, parameters, calibration, 0.0), [FP32])
        if mean_return is not None:
            store.add_evaluation(version, mean_return)


def test_all_forms_of_a_runs_policy_play_the_same_episodes(tmp_path: Path) -> None:
    make_run(tmp_path)
    found = evaluated(tmp_path, "CartPole-v1", episodes=3, bits=(2, 16))
    # A discrete action has no output bits.
    assert set(found["returns"]) == FORMS.keys() - {OUTPUT}
    assert found["returns"]["weights"]["16"] == found["fp32"]
    assert 8 <= found["fp32"] <= 500
    # Random actions balance the pole for 22 steps on average.
    assert 18 < found["random"] < 27


@pytest.mark.parametrize(("since", "version"), [(0, 1), (15, 3), (40, 4)])
def test_the_best_late_version_of_a_run_is_evaluated(tmp_path: Path, since: int, version: int) -> None:
    make_run(tmp_path, returns=(500.0, 90.0, 100.0, None))
    with closing(Evaluation(tmp_path, "CartPole-v1", 1, since)) as evaluation:
        assert evaluation.version == version


def test_random_actions_of_a_continuous_environment_are_within_its_bounds() -> None:
    environments = make_environments("Pendulum-v1", 10)
    try:
        # A pendulum that is never swung up costs 5 to 9 for each of its 200 steps.
        assert -2000 < random_return(environments) < -800
    finally:
        environments.close()


def test_a_continuous_policy_has_output_bits_too() -> None:
    graph, _ = checkpoint_of(vector_network("mlp", 16))
    assert forms_of(Graph.parse(graph)) == list(FORMS)


def test_the_kept_share_is_relative_to_random_actions() -> None:
    assert share(-200.0, fp32=-150.0, random=-1150.0) == pytest.approx(0.95)
    assert share(20.0, fp32=500.0, random=20.0) == 0.0
    with pytest.raises(ValueError, match="above that of random actions, 20, got 20"):
        share(20.0, fp32=20.0, random=20.0)


@pytest.mark.parametrize(
    ("kept", "bits"),
    [
        ({2: 0.2, 3: 0.94, 4: 0.95, 6: 1.0, 8: 1.01}, 4),
        # 3 bits keep it by chance only: 4 do not.
        ({2: 0.2, 3: 0.99, 4: 0.5, 6: 0.97, 8: 1.0}, 6),
        ({2: 1.0, 3: 1.0, 8: 0.9}, None),
        ({2: 1.0, 8: 1.0}, 2),
        ({}, None),
    ],
)
def test_the_fewest_bits_are_those_from_which_all_larger_ones_keep_the_return(
    kept: dict[int, float], bits: int | None
) -> None:
    assert fewest(kept) == bits


Returns = dict[str, dict[str, float]]


def run(seed: int, fp32: float, returns: Returns, task: str = "dqn/CartPole-v1") -> dict[str, Any]:
    conditions: dict[str, Any] = {"commit": "c", "changes": None, "machine": {}}
    return {"task": task, "seed": seed, "fp32": fp32, "random": 20.0, "returns": returns, "conditions": conditions}


def test_returns_are_averaged_over_seeds_before_they_are_compared() -> None:
    runs = [run(1, 500, {"weights": {"2": 60.0, "8": 500.0}}), run(2, 100, {"weights": {"2": 100.0, "8": 90.0}})]
    aware = {"task": "dqn/CartPole-v1", "returns": {AWARE: {"2": 295.0}}}
    plain, trained = summarized([*runs, aware])
    assert (plain["seeds"], plain["fp32"], plain["random"]) == (2, 300.0, 20.0)
    assert plain["kept"] == pytest.approx({2: 60 / 280, 8: 275 / 280})
    assert plain["fewest"] == 8
    assert (trained["form"], trained["fewest"]) == (AWARE, 2)


def test_a_policy_that_is_no_better_than_random_actions_gives_no_verdict() -> None:
    ours = {"weights and activations": {"2": 9.0, "8": 9.0}}
    runs = [run(seed, 10.0, ours) for seed in (1, 2)] + [run(seed, 500.0, ours, "ppo/X") for seed in (1, 2)]
    useless, low = targets({"runs": runs})
    assert "FP32 is no better" in useless.refused
    assert low.measured < 0
    assert (low.met, low.refused) == (False, "")


def test_one_seed_gives_no_verdict() -> None:
    (found,) = targets({"runs": [run(1, 500.0, {"weights and activations": {"8": 500.0}})]})
    assert found.measured == 1.0
    assert found.refused == ONE_SEED
