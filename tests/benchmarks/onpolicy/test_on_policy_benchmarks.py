"""The on-policy benchmarks: equal settings on both sides, verdicts, actors that lag."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor_service.environments import describe_environment
from actorq.config.run_config import RunConfig
from actorq.process import parse_arguments
from benchmarks.libraries.parity import OURS, THEIRS
from benchmarks.onpolicy import correction, wide
from benchmarks.onpolicy.correction import CORRECTED, REFERENCE, UNCORRECTED
from benchmarks.onpolicy.lagging_actor import LAG, LaggingLoader
from benchmarks.onpolicy.ppo import verdicts
from benchmarks.onpolicy.ppo_plot import plot
from benchmarks.onpolicy.settings import TASKS, Task
from benchmarks.speedup.actorq import flags_of
from tests.actor_service.actor_policies import constant_policy


def _config(flags: Sequence[str]) -> RunConfig:
    # The module of the actors is a setting of the command.
    at = flags.index("--actor-module") if "--actor-module" in flags else len(flags)
    (config,) = parse_arguments("actorq train", "", (RunConfig,), [*flags[:at], *flags[at + 2 :]])
    assert isinstance(config, RunConfig)
    return config


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_both_sides_learn_with_the_same_hyperparameters(task: Task) -> None:
    config, theirs = _config(task.actorq()), task.stable_baselines()
    ours = config.ppo
    assert (theirs["batch_size"], theirs["n_epochs"]) == (ours.batch_size, ours.epochs)
    assert (theirs["gamma"], theirs["gae_lambda"]) == (ours.discount, ours.gae_lambda)
    # Their loss of values is the squared error, ours is half of it.
    assert (theirs["ent_coef"], 2 * theirs["vf_coef"]) == (ours.entropy_cost, ours.value_cost)
    assert theirs["max_grad_norm"] == ours.max_gradient_norm
    assert theirs["n_steps"] * task.environments == ours.rollout_size
    assert (config.actors, config.environments_per_actor) == (1, task.environments)
    assert (ours.hidden_sizes, ours.value_sizes, ours.activation) == ((64, 64), (64, 64), "tanh")
    assert (ours.learning_rate_end, ours.clip_end) == (
        0.0 if task.anneal else None,
        0.0 if task.anneal_clip else None,
    )
    # Stable-Baselines3 bounds no change of values, and draws no other initial weights.
    assert (ours.value_clip, ours.orthogonal) == (None, True)
    # Their standard deviation is 1 in the environment's units, at first.
    spec = describe_environment(task.environment)
    if not spec.discrete_actions:
        assert np.exp(ours.log_std) * spec.actions.high[0] == pytest.approx(1.0)
    assert config.normalize_observations is config.queue.normalize_rewards is task.normalize


def _run(side: str, seed: int, mean_return: float, seconds: float) -> dict[str, Any]:
    final = {"mean_return": mean_return, "episodes": 20, "scheme": "int8"}
    return {
        "task": "ppo/CartPole-v1",
        "side": side,
        "seed": seed,
        "environment_steps": 1_000,
        "seconds": seconds,
        "final": final,
    }


def test_returns_may_be_a_standard_deviation_below_and_steps_must_be_twice_as_many(tmp_path: Path) -> None:
    theirs = [_run(THEIRS, seed, mean, 1.0) for seed, mean in enumerate((480.0, 490.0, 500.0))]
    runs = [*theirs, *(_run(OURS, seed, 481.0, 0.4) for seed in range(3))]
    targets = verdicts("ppo/CartPole-v1", runs)
    assert [target.met for target in targets] == [True, True]
    assert targets[0].bound == pytest.approx(480.0)
    assert targets[1].measured == pytest.approx(2.5)
    slow = [*theirs, *(_run(OURS, seed, 479.0, 0.6) for seed in range(3))]
    assert [target.met for target in verdicts("ppo/CartPole-v1", slow)] == [False, False]
    plot(runs, tmp_path / "returns.png")
    assert (tmp_path / "returns.png").stat().st_size > 1_000


def test_one_seed_gives_no_verdict_about_returns() -> None:
    returns, speed = verdicts("ppo/CartPole-v1", [_run(THEIRS, 1, 400.0, 1.0), _run(OURS, 1, 500.0, 0.4)])
    assert returns.refused
    assert not returns.met
    assert speed.met


@pytest.mark.parametrize("task", wide.TASKS, ids=lambda task: task.name)
def test_wide_runs_have_valid_settings(task: Any) -> None:
    config = _config(flags_of(task, "cpu"))
    assert config.ppo.hidden_sizes == (task.width,) * 3


@pytest.mark.parametrize("task", correction.TASKS, ids=lambda task: task.name)
def test_uncorrected_runs_differ_from_corrected_ones_in_their_weights_only(task: correction.Task) -> None:
    corrected, uncorrected = (_config(task.of(variant)) for variant in (CORRECTED, UNCORRECTED))
    section = getattr(uncorrected, task.algorithm)
    assert not section.correct
    assert getattr(corrected, task.algorithm) == section.model_copy(update={"correct": True})
    assert corrected.scheme == uncorrected.scheme == ("int8" if task.lags else "int4")
    assert _config(task.of(REFERENCE)).scheme == ("int8" if task.lags else "fp32")
    assert ("--actor-module" in task.of(CORRECTED)) is task.lags
    assert "--actor-module" not in task.of(REFERENCE)


def _corrections(task: correction.Task, **means: float) -> list[dict[str, Any]]:
    """Three seeds of each variant around a mean, with standard deviation 10."""
    return [
        {"task": task.name, "side": side, "seed": seed, "mean_return": mean + offset}
        for side, mean in means.items()
        for seed, offset in enumerate((-10.0, 0.0, 10.0))
    ]


@pytest.mark.parametrize(
    ("corrected", "uncorrected", "met"), [(495.0, 450.0, True), (495.0, 495.0, False), (450.0, 400.0, False)]
)
def test_weights_against_rounding_count_where_they_prevent_harm(
    corrected: float, uncorrected: float, met: bool
) -> None:
    task = correction.TASKS[0]
    runs = _corrections(task, reference=500.0, corrected=corrected, uncorrected=uncorrected)
    (target,) = correction.verdicts([task], runs)
    assert target.met is met


@pytest.mark.parametrize(("corrected", "met"), [(495.0, True), (480.0, False)])
def test_stale_data_may_cost_a_standard_deviation(corrected: float, met: bool) -> None:
    task = next(task for task in correction.TASKS if task.lags)
    runs = _corrections(task, reference=500.0, corrected=corrected, uncorrected=300.0)
    (target,) = correction.verdicts([task], runs)
    assert target.met is met
    assert "without V-trace: 20.0" in target.name


def test_a_lagging_actor_acts_with_the_policy_of_some_versions_before() -> None:
    load, spec = LaggingLoader(), describe_environment("CartPole-v1")
    versions = [
        load(constant_policy([0.0, 1.0], version=version), spec, 1).descriptor.version for version in range(1, LAG + 4)
    ]
    assert versions == [1] * (LAG + 1) + [2, 3]
    assert np.diff(versions).max() == 1
