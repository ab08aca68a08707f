"""ActorQ's table: which tasks are compared, what the ratios decide, and what one seed cannot."""

from pathlib import Path
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.process import Sources, argument_parser
from benchmarks.harness import ONE_SEED
from benchmarks.processor import DOT_PRODUCT, NO_DOT_PRODUCT
from benchmarks.speedup.actorq import SCHEMES, TASKS, flags_of, interval, rows, tasks_of, verdicts
from benchmarks.speedup.actorq_plot import plot
from tests.actorq_apps.comparison.comparison_parts import comparison, run

WIDE = next(task for task in TASKS if task.form == "short")
NARROW = next(task for task in TASKS if task.width == 256)
# Steps per second, and so seconds to a target that is reached after equally many steps.
_SPEEDS = {"torch": 100.0, "fp32": 200.0, "int8": 900.0, "int4": 1000.0}


def result(seeds: int, speeds: dict[str, float] = _SPEEDS, starved: float = 0.9, int4: float = 480.0) -> dict[str, Any]:
    """What a comparison of runs of 5,000 steps comes to."""
    made = comparison(*(_run(scheme, seed, speeds[scheme], starved) for scheme in SCHEMES for seed in range(seeds)))
    found = made.to_json(lambda planned: planned.name)
    for variant in found["variants"]:
        for place, each in enumerate(variant["runs"]):
            each["confirmed"] = {"mean_return": (int4 if variant["scheme"] == "int4" else 480.0) + place}
    return {"task": WIDE.name, "width": WIDE.width, **found}


def _run(scheme: str, seed: int, speed: float, starved: float) -> Any:
    seconds = 5_000 / speed
    return run(
        scheme,
        seed,
        speed=speed,
        environment_steps=5_000,
        last_transition_s=5.0 + seconds,
        starved_s=starved * seconds,
        evaluations=[{"wall_clock_s": 5.0 + seconds, "environment_steps": 5_000, "mean_return": 480.0}],
    )


def test_the_better_of_int8_and_int4_decides_by_its_time() -> None:
    torch, fp32, _, _, starved, carbon, returns = verdicts(WIDE, result(3), "long")
    assert (round(torch.measured, 3), round(fp32.measured, 3)) == (10.0, 5.0)
    assert "int4, time to the target over torch" in torch.name
    assert all(target.met is True for target in (torch, fp32, starved, carbon, returns))


def test_too_slow_actors_miss() -> None:
    torch, fp32, *_ = verdicts(WIDE, result(3, {**_SPEEDS, "int8": 700.0, "int4": 700.0}), "long")
    assert not torch.met
    assert not fp32.met


def test_a_processor_without_a_dot_product_has_lower_bounds() -> None:
    speeds = verdicts(WIDE, result(3, {**_SPEEDS, "int8": 650.0, "int4": 700.0}), "short")[:4]
    assert [target.needs for target in speeds] == [DOT_PRODUCT] * 2 + [NO_DOT_PRODUCT] * 2
    assert [target.met for target in speeds] == [False, False, True, True]


def test_a_return_below_the_interval_of_fp32_misses() -> None:
    *_, returns = verdicts(WIDE, result(3, int4=470.0), "long")
    assert not returns.met


def test_learners_that_did_not_starve_miss() -> None:
    _, _, _, _, starved, *_ = verdicts(WIDE, result(3, starved=0.4), "long")
    assert not starved.met


def test_the_short_form_decides_steps_per_second_and_nothing_else() -> None:
    torch, fp32, _, _, starved = verdicts(WIDE, result(1), "short")
    assert "steps/s over torch" in torch.name
    assert torch.met
    assert fp32.met
    assert starved.met


def test_one_seed_decides_no_time_to_a_target() -> None:
    assert {target.refused for target in verdicts(WIDE, result(1), "long")} == {ONE_SEED}


def test_a_target_that_a_seed_did_not_reach_gives_no_speed_up() -> None:
    found = result(2)
    for variant in found["variants"]:
        for ratio in variant["ratios"]:
            ratio["time_to_target"]["seeds"] = 1
    torch, *_ = verdicts(WIDE, found, "long")
    assert torch.measured == 0.0


def test_nothing_is_asked_of_narrow_policies() -> None:
    assert verdicts(NARROW, result(3), "long") == []


def test_the_interval_is_students() -> None:
    low, high = interval([1.0, 2.0, 3.0])
    # 2 -+ 4.3027 / sqrt(3), from a table.
    assert (round(low, 3), round(high, 3)) == (-0.484, 4.484)
    assert interval([5.0]) == (5.0, 5.0)


def test_the_table_has_a_row_for_each_scheme() -> None:
    lines = rows(result(3))
    assert [line.split()[0] for line in lines[2:]] == list(SCHEMES)
    assert "10.0 (10.0 to 10.0)" in lines[-1]


def test_the_forms_have_their_tasks() -> None:
    short, long = tasks_of("short", None), tasks_of("long", None)
    assert len(short) == 2
    assert set(short) < set(long)
    assert {task.width for task in short} == {2048}
    assert [task.name for task in tasks_of("short", ["dqn/Acrobot*/256"])] == ["dqn/Acrobot-v1/256"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_each_task_is_a_valid_run(task: Any, device: str) -> None:
    parser = argument_parser("actorq train", "", (RunConfig,))
    config = Sources.read((RunConfig,), parser.parse_args(flags_of(task, device))).resolve(RunConfig)
    assert (config.target_return, config.learner.device) == (task.target, device)
    if device == "cpu":
        assert (config.actors, config.environments_per_actor) == (1, 1)


def test_names_of_tasks_differ() -> None:
    assert len({task.folder for task in TASKS}) == len(TASKS)


@pytest.mark.parametrize("measure", ["time_to_target", "throughput"])
def test_the_plot_shows_every_task(tmp_path: Path, measure: str) -> None:
    plot([result(3), result(1)], tmp_path / "actorq.png", measure)
    assert (tmp_path / "actorq.png").read_bytes().startswith(b"\x89PNG")
