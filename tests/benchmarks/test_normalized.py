"""The comparison of XQC with SAC: its verdict, its returns over time, and the errors of a run's policy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor_service.environments import describe_environment
from actorq.config.run_config import RunConfig
from actorq.domain.policy import Checkpoint
from actorq.process import Sources, argument_parser
from benchmarks.training.normalized.__main__ import targets
from benchmarks.training.normalized.errors import errors_of
from benchmarks.training.normalized.summary import cells, compared, return_after
from benchmarks.training.normalized.systems import SCHEMES, SYSTEMS, TASKS
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from tests.builders.stored_policies import stored_run
from tests.learner_service.algorithms.algorithm_parts import random_batch, trained
from tests.learner_service.algorithms.xqc_reference import make_xqc

TASK = "Walker2d-v5"
CONDITIONS: dict[str, Any] = {"commit": "c", "changes": None, "machine": {}}


def run(system: str, mean_return: float, seed: int = 1, **more: Any) -> dict[str, Any]:
    confirmed = {"mean_return": mean_return, "episodes": 20, "scheme": "int8"}
    own = {"task": TASK, "system": system, "seed": seed, "confirmed": confirmed, "conditions": CONDITIONS}
    return {**own, **more}


def runs(system: str, *returns: float) -> list[dict[str, Any]]:
    return [run(system, each, seed) for seed, each in enumerate(returns, start=1)]


SAC = runs("sac", 90.0, 95.0, 100.0, 105.0, 110.0)


@pytest.mark.parametrize(
    ("returns", "met"),
    [((150.0, 160.0, 170.0, 180.0, 190.0), True), ((80.0, 90.0, 95.0, 100.0, 120.0), True), ((40.0,) * 5, False)],
    ids=["better", "alike", "worse"],
)
def test_only_a_clearly_worse_return_misses_the_target(returns: tuple[float, ...], met: bool) -> None:
    (target,) = targets({"runs": [*SAC, *runs("xqc", *returns)], "random": {TASK: 10.0}})
    assert (target.met, target.refused) == (met, "")


def test_too_few_seeds_or_a_sac_that_learns_nothing_give_no_verdict() -> None:
    few, one = runs("xqc", 90.0, 99.0), runs("xqc", 90.0)
    for ours, random in ((few, 0.0), (one, 0.0), (few, 200.0)):
        (target,) = targets({"runs": [*SAC, *ours], "random": {TASK: random}})
        assert target.refused
    assert targets({"runs": SAC, "random": {TASK: 0.0}}) == []


def test_each_system_is_compared_with_sac_relative_to_random_actions() -> None:
    found = compared([*SAC, *runs("xqc-two-atoms", *[150.0] * 5)], {TASK: 50.0}, TASK, "xqc-two-atoms")
    assert found is not None
    assert float(found.share.value) == pytest.approx(2.0)
    assert float(found.improvement.value) == 1.0


def test_the_return_after_a_part_of_the_time_is_that_of_the_last_evaluation_before() -> None:
    evaluations = [{"wall_clock_s": seconds, "mean_return": seconds / 10} for seconds in (30.0, 49.0, 99.0)]
    timed = run("xqc", 0.0, evaluations=evaluations, limit_s=100.0)
    assert [return_after(timed, part) for part in (0.25, 0.5, 0.75, 1.0)] == [None, 4.9, 4.9, 9.9]


def test_cells_have_the_order_of_the_systems() -> None:
    found = list(cells([*runs("xqc", 1.0), *SAC]))
    assert [(task, system, len(own)) for task, system, own in found] == [(TASK, "sac", 5), (TASK, "xqc", 1)]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_each_system_changes_one_setting_of_its_preset(system: Any) -> None:
    def config(*flags: str) -> dict[str, Any]:
        arguments = ("--algorithm", system.algorithm, "--environment", TASKS[-1].environment, "--preset", "auto")
        given = argument_parser("test", "", (RunConfig,)).parse_args([*arguments, *flags])
        return Sources.read((RunConfig,), given).resolve(RunConfig).model_dump()

    preset, changed = config(), config(*system.flags)
    own = {name for name, value in changed[system.algorithm].items() if preset[system.algorithm][name] != value}
    assert len(own) == len(system.flags)
    assert {**changed, system.algorithm: {}} == {**preset, system.algorithm: {}}


def test_fewer_bits_have_larger_errors(tmp_path: Path) -> None:
    environment = "Pendulum-v1"
    spec = describe_environment(environment)
    xqc = trained(make_xqc(spec, policy_sizes=(64, 64)), spec)
    graph = export_policy_graph(xqc.policy, spec, xqc.takes_noise)
    rows = random_batch(np.random.default_rng(1), spec, 128).observations
    calibration = calibration_batch(rows, spec, xqc.takes_noise, seed=0)
    version = Checkpoint(1, 5, graph.digest, snapshot_parameters(xqc.policy), calibration, 0.0)
    stored_run(tmp_path / "run", graph, [version], spec=spec, algorithm="xqc")
    found = errors_of(tmp_path / "run", environment, episodes=2)
    assert tuple(found) == SCHEMES
    assert 0 < found["int8"]["mean"] < found["int4"]["mean"] < 0.5
    assert all(each["mean"] < each["max"] for each in found.values())
