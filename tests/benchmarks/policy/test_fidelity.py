"""The fidelity benchmark compares policies as the quantizer's gate does, and keeps what it trained."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.policies import checkpoint_of, emit, environment_spec, fidelity_of, vector_network
from benchmarks.policy.fidelity import VARIANTS, compare, measure, targets
from benchmarks.policy.fidelity_plot import plot
from benchmarks.policy.figures import Errors, Figures
from benchmarks.policy.trained.pong import shrink
from benchmarks.policy.trained.task import Act, Progress, TrainedPolicy
from benchmarks.policy.trained.walker import LinearController


@pytest.fixture(scope="module")
def policy() -> TrainedPolicy:
    return Untrained().train(print)


class Untrained:
    """A task whose policy is as it was initialized and whose episodes are one step long."""

    name = "untrained"
    trained_by = "nothing"
    spec = environment_spec((24,), "float32", 6, False)
    episodes = 3

    def train(self, progress: Progress) -> TrainedPolicy:
        network = vector_network("mlp", 64)
        graph, checkpoint = checkpoint_of(network)
        return TrainedPolicy(graph, checkpoint, network.calibration[:65])

    def returns(self, act: Act) -> list[float]:
        return [float(row.sum()) for row in act(np.ones((self.episodes, 24), np.float32))]


def test_a_trained_policy_is_the_same_after_it_was_kept(policy: TrainedPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path / "cache" / "policy.npz")
    loaded = TrainedPolicy.load(tmp_path / "cache" / "policy.npz")
    assert loaded.graph == policy.graph
    assert loaded.checkpoint.topology == policy.checkpoint.topology
    assert loaded.checkpoint.parameters.keys() == policy.checkpoint.parameters.keys()
    for name, array in policy.checkpoint.parameters.items():
        np.testing.assert_array_equal(loaded.checkpoint.parameters[name], array)
    np.testing.assert_array_equal(
        loaded.checkpoint.calibration["observations"], policy.checkpoint.calibration["observations"]
    )
    np.testing.assert_array_equal(loaded.held_out, policy.held_out)


def test_fp32_is_no_different_from_itself_and_int8_is(policy: TrainedPolicy) -> None:
    fp32, int8 = (measure(Untrained(), policy, *VARIANTS[name]) for name in ("fp32", "int8"))
    assert fp32.quantized == {}
    assert fp32.errors == {32: Errors(0.0, 0.0, None), 1: Errors(0.0, 0.0, None)}
    assert len(int8.quantized) == 2
    assert 0 < int8.errors[32].mean_error < int8.errors[32].max_error < 0.2
    assert len(int8.returns) == 3
    assert int8.size_bytes < fp32.size_bytes


def test_errors_are_those_that_the_quantizer_reports(policy: TrainedPolicy) -> None:
    observations = {"observations": policy.held_out}
    emission = emit(policy.graph, policy.checkpoint, "int8-weights")
    report = fidelity_of(policy.graph, policy.checkpoint, emission, observations)
    figures = measure(Untrained(), policy, "int8-weights", VARIANTS["int8-weights"][1])
    # Here the rows that do not fill a batch of 32 are left out: one of 65.
    assert figures.errors[1].mean_error == pytest.approx(report.relative_mean_error, rel=0.05)


def test_errors_are_relative_to_the_span_of_each_action() -> None:
    expected = np.array([[0.0, 10.0], [1.0, 30.0]])
    got = expected + np.array([[0.1, 0.0], [0.0, 2.0]])
    errors = compare(got, expected, False, (1.0, 20.0))
    assert (errors.mean_error, errors.max_error) == pytest.approx((0.05, 0.1))
    assert errors.agreement is None
    assert compare(got, expected, False, ()).max_error == pytest.approx(2.0 / 30.0)


def test_agreement_is_the_share_of_rows_with_the_same_best_action() -> None:
    expected = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    got = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    errors = compare(got, expected, True, ())
    assert errors.agreement == 0.75
    # In the second row it takes the action that is worth 1 less, of a range of 3.
    assert errors.lost_value == pytest.approx(1 / 3)


def test_targets_and_plot_cover_discrete_and_continuous_policies(tmp_path: Path) -> None:
    discrete, continuous = Errors(0.1, 0.2, 0.97), Errors(0.01, 0.3, None)
    figures = {
        name: {variant: Figures(1, {}, {32: errors, 1: errors}, [1.0]) for variant in VARIANTS}
        for name, errors in (("CartPole DQN", discrete), ("Pong CNN", discrete), ("walker", continuous))
    }
    assert {target.name: (target.measured, target.met) for target in targets(figures)} == {
        "CartPole DQN: agreement of int8": (0.97, False),
        "CartPole DQN: agreement of int8-static": (0.97, True),
        "Pong CNN: agreement of int8": (0.97, False),
        "Pong CNN: agreement of int8-static": (0.97, False),
        "walker: mean action error of int8": (0.01, True),
        "walker: mean action error of int8-static": (0.01, False),
    }
    plot(figures, 0.98, 0.02, tmp_path / "fidelity.png")
    assert (tmp_path / "fidelity.png").stat().st_size > 10_000


def test_a_field_shrinks_to_what_stands_out_of_it() -> None:
    field = np.full((160, 160), 87, np.uint8)
    field[10:12, 20:24] = 147
    field[100, 0] = 0
    frame = shrink(field)
    assert frame.shape == (84, 84)
    assert frame.dtype == np.uint8
    assert np.argwhere(frame).tolist() == [[7, 12], [7, 13]]
    assert frame[7, 12] == 240


def test_a_linear_controller_keeps_to_the_action_range() -> None:
    controller = LinearController(np.full((6, 24), 3.0), np.ones(24), np.full(24, 0.5))
    actions = controller(np.stack([np.ones(24), np.full(24, 2.0)]))
    np.testing.assert_array_equal(actions, np.stack([np.zeros(6), np.ones(6)]))
