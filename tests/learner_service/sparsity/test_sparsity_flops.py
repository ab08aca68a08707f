"""FLOPs are those that RLx2 publishes.

The figures are those of table 2 of arXiv 2205.15043 (OpenReview DJEEqoAq7to), in its submitted version: MuJoCo with
Gym, policies and critics of 256-256 units, two critics.
"""

from typing import Any

import pytest
import torch

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms import make_algorithm
from learner_service.sparsity import Cost, Flops
from learner_service.sparsity.flops import dense_flops
from learner_service.sparsity.weights import Weight

# The default of a learner's process. More threads only wait for each other on networks this small.
torch.set_num_threads(1)

# Numbers in an observation and in an action.
SIZES = {"HalfCheetah": (17, 6), "Hopper": (11, 3), "Walker2d": (17, 6), "Ant": (111, 8)}
# algorithm, environment, sparsity of the actor, of the critics, FLOPs of training, of testing.
TABLE_2 = [
    ("td3", "HalfCheetah", 0.90, 0.85, 0.138, 0.100),
    ("td3", "Hopper", 0.98, 0.95, 0.043, 0.020),
    ("td3", "Walker2d", 0.97, 0.95, 0.045, 0.030),
    ("td3", "Ant", 0.96, 0.88, 0.100, 0.040),
    ("sac", "HalfCheetah", 0.90, 0.80, None, 0.100),
    ("sac", "Hopper", 0.98, 0.95, None, 0.020),
    ("sac", "Walker2d", 0.90, 0.90, None, 0.100),
    ("sac", "Ant", 0.90, 0.75, None, 0.100),
]


def flops(algorithm: str, environment: str, **sparsity: Any) -> Flops:
    observations, actions = SIZES[environment]
    spec = EnvironmentSpec(
        environment,
        ArraySpec((observations,), "float32"),
        ArraySpec((actions,), "float32", (-1.0,) * actions, (1.0,) * actions),
    )
    config = RunConfig.model_validate({"algorithm": algorithm, "sparsity": sparsity})
    found: Flops = make_algorithm(config, spec).flops  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(("algorithm", "environment", "actor", "critic", "training", "testing"), TABLE_2)
def test_ratios_are_the_published_ones(
    algorithm: str, environment: str, actor: float, critic: float, training: float | None, testing: float
) -> None:
    """The testing column is published as 1 - sparsity; by the formula it is that to 1.1%, since 2 I - 1 is not 2 I.

    The training column agrees to the three digits it has, but for Ant: 0.102 by the formula, 0.100 published.
    """
    found = flops(algorithm, environment, method="rlx2", actor=actor, critic=critic)
    assert found.action.ratio == pytest.approx(testing, rel=0.011)
    if training is not None:
        assert found.update.ratio == pytest.approx(training, abs=0.0005 if environment != "Ant" else 0.002)


def test_a_forward_pass_is_counted_layer_by_layer() -> None:
    linear, convolution = Weight("linear", 0, units=3, inputs=4), Weight("convolution", 12, units=2, inputs=3)
    assert (dense_flops(linear, positions=1), dense_flops(convolution, positions=5)) == (7 * 3, 5 * 2 * 5)
    cost = Cost(now=50.0, dense=71.0)
    assert cost + 2 * cost == Cost(now=150.0, dense=213.0)


def test_updates_of_each_algorithm_are_counted_by_their_passes() -> None:
    """Dense networks of one hidden layer; the passes are those of the algorithms' docstrings."""
    observations, actions, units = 17, 6, 8

    def mlp(inputs: int, outputs: int) -> int:
        return (2 * inputs - 1) * units + (2 * units - 1) * outputs

    spec = EnvironmentSpec(
        "Arms-v0", ArraySpec((17,), "float32"), ArraySpec((6,), "float32", (-1.0,) * 6, (1.0,) * 6), ()
    )
    discrete = EnvironmentSpec("Levers-v0", ArraySpec((17,), "float32"), ArraySpec((), "int64"), sizes=(4,))

    def update(algorithm: str, **section: Any) -> float:
        config = RunConfig.model_validate({"algorithm": algorithm, algorithm: {"batch_size": 10, **section}})
        found = make_algorithm(config, discrete if algorithm == "dqn" else spec).flops  # type: ignore[attr-defined]
        assert found.update.now == found.update.dense
        return float(found.update.now)

    actor, critic = mlp(observations, actions), mlp(observations + actions, 1)
    assert update("td3", hidden_sizes=(units,), policy_delay=2) == pytest.approx(
        10 * (actor + 2 * critic + 6 * critic + (3 * actor + critic) / 2)
    )
    gaussian = mlp(observations, 2 * actions)
    assert update("sac", hidden_sizes=(units,)) == 10 * (4 * gaussian + (2 + 6 + 2) * critic)
    categorical = mlp(observations + actions, 51)
    sizes = {"policy_sizes": (units,), "critic_sizes": (units,)}
    assert update("d4pg", **sizes) == 10 * (4 * actor + 5 * categorical)
    assert update("d4pg", **sizes, policy_delay=4) == 10 * (1.75 * actor + 4.25 * categorical)
    values = mlp(observations, 4 + 1)
    assert update("dqn", hidden_sizes=(units,)) == 10 * 5 * values
    assert update("dqn", hidden_sizes=(units,), double=False) == 10 * 4 * values


def test_convolutions_count_at_every_place_of_their_output() -> None:
    frames = EnvironmentSpec(
        "Frames-v0", ArraySpec((84, 84), "uint8"), ArraySpec((), "int64"), sizes=(4,), frame_stack=4
    )
    config = RunConfig.model_validate({"algorithm": "dqn"})
    with torch.random.fork_rng(devices=()):
        found: Flops = make_algorithm(config, frames).flops  # type: ignore[attr-defined]
    convolutions = (2 * 4 * 64 - 1) * 32 * 20 * 20 + (2 * 32 * 16 - 1) * 64 * 9 * 9 + (2 * 64 * 9 - 1) * 64 * 7 * 7
    linear = (2 * 64 * 7 * 7 - 1) * 512 + (2 * 512 - 1) * (4 + 1)
    assert found.action.now == convolutions + linear


def test_tiny_networks_for_frames_are_compared_with_dense_ones() -> None:
    bounds = ((-1.0,) * 2, (1.0,) * 2)
    frames = EnvironmentSpec("Frames-v0", ArraySpec((4, 84, 84), "uint8"), ArraySpec((2,), "float32", *bounds), ())
    found = {}
    for method in ("dense", "tiny"):
        tree = {"algorithm": "d4pg", "sparsity": {"method": method, "actor": 0.1, "critic": 0.0}}
        with torch.random.fork_rng(devices=()):
            found[method] = make_algorithm(RunConfig.model_validate(tree), frames).flops  # type: ignore[attr-defined]
    assert found["tiny"].action.dense == found["dense"].action.dense == found["dense"].action.now
    assert found["tiny"].action.now < found["dense"].action.now
