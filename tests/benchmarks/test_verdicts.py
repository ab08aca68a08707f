"""Verdicts that no stored result shows from both sides: what decides, what is missed, and what one seed cannot."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from actorq.config.presets import DATA_RICH, STANDARD
from benchmarks.harness import ONE_SEED, Target
from benchmarks.learner import precision
from benchmarks.learner.precision import BF16, FP32
from benchmarks.libraries import parity
from benchmarks.libraries.parity import OURS, THEIRS
from benchmarks.libraries.peers.process import Outcome
from benchmarks.libraries.peers.result import Evaluation, result
from benchmarks.libraries.peers.systems import ACTORQ, RLLIB, STABLE_BASELINES
from benchmarks.libraries.peers.targets import targets
from benchmarks.libraries.peers.tasks import Task
from benchmarks.onpolicy import correction, ppo
from benchmarks.speedup import actorq
from benchmarks.training import presets, returns, rlx2_tasks

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CARTPOLE = Task("dqn", "CartPole-v1", 475.0, 5_000, 300.0)
ENDED = Outcome(0, 90.0, False, 800.0)
Run = dict[str, Any]


def _returned(means: Sequence[float], **of_run: Any) -> list[Run]:
    """A run of each seed with this return, by any of the names that benchmarks have for it."""
    run = {"environment_steps": 1_000, "updates": 90, "updates_per_s": 9.0, "seconds": 1.0, **of_run}
    of_mean = [
        {"mean_return": mean, "confirmed": {"mean_return": mean}, "final": {"mean_return": mean}} for mean in means
    ]
    return [{**run, **found, "seed": seed} for seed, found in enumerate(of_mean)]


def _parity(ours: Sequence[float], theirs: Sequence[float]) -> list[Target]:
    return [parity.verdict("sac/Pendulum-v1", _returned(ours), _returned(theirs))]


def _precision(ours: Sequence[float], theirs: Sequence[float]) -> list[Target]:
    sides = ((FP32, theirs), (BF16, ours))
    runs = [run for name, means in sides for run in _returned(means, asked=name, precision=name)]
    return [precision.verdict(precision.TASKS[0], runs)]


def _ppo(ours: Sequence[float], theirs: Sequence[float]) -> list[Target]:
    return ppo.verdicts("ppo/CartPole-v1", [*_returned(theirs, side=THEIRS), *_returned(ours, side=OURS)])[:1]


def _stale(ours: Sequence[float], theirs: Sequence[float]) -> list[Target]:
    task = next(task for task in correction.TASKS if task.lags)
    sides = ((correction.REFERENCE, theirs), (correction.CORRECTED, ours), (correction.UNCORRECTED, ours))
    return correction.verdicts(
        [task], [run for side, means in sides for run in _returned(means, task=task.name, side=side)]
    )


@pytest.mark.parametrize("verdict", [_parity, _precision, _ppo, _stale])
def test_ours_may_be_below_theirs_by_the_standard_deviation_of_their_seeds(
    verdict: Callable[[Sequence[float], Sequence[float]], list[Target]],
) -> None:
    # The sample standard deviation is 20.
    theirs = (180.0, 200.0, 220.0)
    assert [verdict((mean - 5, mean + 5), theirs)[0].met for mean in (181.0, 179.0, 300.0)] == [True, False, True]
    assert verdict((300.0,), (200.0,))[0].refused == ONE_SEED


@pytest.mark.parametrize(
    ("corrected", "uncorrected", "met"), [(495.0, 450.0, True), (495.0, 495.0, False), (450.0, 400.0, False)]
)
def test_weights_against_rounding_count_where_they_prevent_harm(
    corrected: float, uncorrected: float, met: bool
) -> None:
    task, around = correction.TASKS[0], (-10.0, 0.0, 10.0)
    means = {correction.REFERENCE: 500.0, correction.CORRECTED: corrected, correction.UNCORRECTED: uncorrected}
    runs = [
        run
        for side, mean in means.items()
        for run in _returned([mean + each for each in around], task=task.name, side=side)
    ]
    assert [target.met for target in correction.verdicts([task], runs)] == [met]


def test_ppo_must_make_twice_as_many_steps() -> None:
    theirs = _returned((1.0, 2.0), side=THEIRS)
    found = [ppo.verdicts("x", [*theirs, *_returned((1.0, 2.0), side=OURS, seconds=s)])[1] for s in (0.4, 0.6)]
    assert [target.met for target in found] == [True, False]


def test_a_run_in_another_precision_than_asked_ends_the_benchmark() -> None:
    runs = [*_returned((1.0,), asked=FP32, precision=FP32), *_returned((1.0,), asked=BF16, precision=FP32)]
    with pytest.raises(SystemExit, match="expected a run in bf16, got one in fp32"):
        precision.verdict(precision.TASKS[0], runs)


def test_medians_of_presets_decide_and_a_missed_target_is_no_success() -> None:
    def run(preset: str, seed: int, seconds: float, reached: bool = True) -> Run:
        return {"preset": preset, "seed": seed, "seconds": seconds, "reached": reached}

    slow = [run(STANDARD, seed, 30.0 * seed) for seed in (1, 2, 3)]
    fast = [run(DATA_RICH, seed, 10.0 * seed) for seed in (1, 2, 3)]
    assert presets.verdict(presets.TASKS[0], [*slow, *fast]).measured == 3.0
    assert presets.verdict(presets.TASKS[0], [*slow, *fast[:2], run(DATA_RICH, 3, 1.0, False)]).measured == 0.0
    assert presets.verdict(presets.TASKS[0], [slow[0], fast[0]]).refused == ONE_SEED


def test_the_worst_seed_of_an_algorithm_decides() -> None:
    task = returns.Task("dqn", "CartPole-v1", 100.0, 475.0, 1_000, 2)
    assert [returns.verdict(task, _returned(means)).met for means in ((200.0, 100.0), (900.0, 99.0))] == [True, False]
    assert returns.verdict(task, _returned((200.0,))).refused == ONE_SEED


def test_a_sparse_run_is_settled_in_its_last_quarter() -> None:
    points = [{"environment_steps": steps, "mean_return": steps / 10} for steps in range(50, 1001, 100)]
    assert rlx2_tasks.settled(points, 1000) == pytest.approx((850 + 950) / 20)
    with pytest.raises(SystemExit, match="more --steps"):
        rlx2_tasks.settled(points[:3], 1000)


def test_the_first_confirmed_evaluation_with_the_target_ends_the_count() -> None:
    seen = [
        *(Evaluation(10.0, 5_000, 480.0, 0.5), Evaluation(12.0, 6_000, 90.0, 0.5)),
        *(Evaluation(23.0, 10_000, 475.0, 1.0), Evaluation(40.0, 15_000, 430.0), Evaluation(50.0, 20_000, 500.0)),
    ]
    found = result(CARTPOLE, seen, 3.0, ENDED)
    assert (found["reached"], found["seconds"], found["environment_steps"]) == (True, 23.0, 10_000)
    assert (found["steps_per_s"], found["evaluation_s"], len(found["evaluations"])) == (500.0, 2.0, 4)
    assert not result(CARTPOLE, seen[:3], 3.0, ENDED)["reached"]
    for missed in ([], [Evaluation(100.0, 5_000, 90.0)], [Evaluation(300.2, 5_000, 500.0)]):
        found = result(CARTPOLE, missed, None, ENDED)
        assert (found["reached"], found["seconds"]) == (False, 300.0)


def _beside(seconds: dict[str, float], seeds: int = 3, reached: bool = True) -> list[Run]:
    return [
        {"system": system, "task": CARTPOLE.name, "seed": seed}
        | result(CARTPOLE, [Evaluation(at, 9_000, 480.0 if reached else 90.0)] * 2, 3.0, ENDED)
        for seed in range(seeds)
        for system, at in seconds.items()
    ]


@pytest.mark.parametrize(("sb3", "rllib", "met"), [(11.0, 31.0, [True, True]), (9.0, 29.0, [False, False])])
def test_actorq_is_never_slower_than_one_and_three_times_as_fast_as_the_other(
    sb3: float, rllib: float, met: list[bool]
) -> None:
    runs = _beside({ACTORQ: 10.0, STABLE_BASELINES: sb3, RLLIB: rllib})
    found = targets(CARTPOLE, runs)
    assert [target.met for target in found] == met
    assert [target.measured for target in found] == pytest.approx([sb3 / 10.0, rllib / 10.0])
    missed = [*runs, *_beside({ACTORQ: 300.0}, 4, reached=False)]
    assert {target.measured for target in targets(CARTPOLE, missed)} == {0.0}
    assert {target.refused for target in targets(CARTPOLE, runs[:3])} == {ONE_SEED}


def test_a_speed_up_needs_every_seed_and_more_than_one() -> None:
    stored = json.loads((RESULTS / "actorq.json").read_text(encoding="utf-8"))["figures"]["tasks"][0]
    task = next(task for task in actorq.TASKS if task.name == stored["task"])
    assert actorq.verdicts(task, stored, "long")[0].measured > 1.0
    missed = deepcopy(stored)
    for variant in missed["variants"]:
        for ratio in variant["ratios"]:
            ratio["time_to_target"]["seeds"] -= 1
    assert actorq.verdicts(task, missed, "long")[0].measured == 0.0
    assert {target.refused for target in actorq.verdicts(task, {**stored, "seeds": [1]}, "long")} == {ONE_SEED}


def test_the_interval_is_students() -> None:
    # 2 -+ 4.3027 / sqrt(3), from a table.
    assert actorq.interval([1.0, 2.0, 3.0]) == pytest.approx((-0.484, 4.484), abs=1e-3)
    assert actorq.interval([5.0]) == (5.0, 5.0)
