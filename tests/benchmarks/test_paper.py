"""The paper's table: its flags, the scheme fp16, the order of the runs, its ratios, and the verdict about int8."""

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.config.run_config import RunConfig
from actorq.process import Sources, argument_parser
from actorq.quantization.graph import Graph
from actorq.quantization.schemes.base import Options
from actorq_apps.comparison.published import returns_of
from benchmarks.environments.random_returns import random_returns
from benchmarks.harness import Target
from benchmarks.policies import checkpoint_of, vector_network
from benchmarks.speedup.paper import making
from benchmarks.speedup.paper.half import FP16, Float16, offered
from benchmarks.speedup.paper.making import make_runs, read
from benchmarks.speedup.paper.summary import difference, over_tasks, seconds_to, summarized, targets
from benchmarks.speedup.paper.tasks import CONTINUOUS, SCHEMES, TASKS, Task, flags_of
from quantizer_service.emission.inference import open_session

BALANCE, STAND = "d4pg/dm_control/cartpole-balance", "d4pg/dm_control/walker-stand"


def run(task: str, scheme: str, seed: int, mean_return: float, **others: Any) -> dict[str, Any]:
    conditions: dict[str, Any] = {"commit": "c", "changes": None, "machine": {}}
    return {
        **{"task": task, "scheme": scheme, "seed": seed, "conditions": conditions, "environment_steps": 1_000},
        "confirmed": {"mean_return": mean_return, "scheme": scheme},
        **{"curve": [], "seconds": 10.0, "acted": {scheme: 1_000}, "wh": None, "co2_g": None},
        **others,
    }


def runs_of(task: str, scheme: str, returns: Sequence[float], **others: Any) -> list[dict[str, Any]]:
    return [run(task, scheme, seed, value, **others) for seed, value in enumerate(returns, start=1)]


def verdict(runs: list[dict[str, Any]], seeds: int = 5) -> Target:
    (found,) = targets({"runs": runs, "seeds": seeds})
    return found


def test_every_task_has_a_return_of_the_paper_and_one_of_random_actions_below_it() -> None:
    floors = random_returns()
    for task in TASKS:
        theirs = returns_of(task.environment)
        assert theirs is not None
        assert floors[task.environment] < theirs.fp32
    continuous = [{task.environment for task in TASKS if task.algorithm == name} for name in CONTINUOUS]
    assert continuous[0] == continuous[1]
    assert len(continuous[0]) == 8


def test_kinds_of_actors_differ_in_the_scheme_or_the_actor_only() -> None:
    for task in TASKS:
        of = {scheme: set(flags_of(task, scheme, 1)) for scheme in SCHEMES}
        for scheme in ("fp16", "int8", "int4"):
            assert of[scheme] ^ of["fp32"] == {f"--scheme={scheme}", "--scheme=fp32"}
        assert of["torch"] - of["fp32"] == {"--actor-module=benchmarks.speedup.torch_actor"}
        sources = Sources.read(
            (RunConfig,), argument_parser("train", "", (RunConfig,)).parse_args(flags_of(task, "int8", 1))
        )
        assert sources.resolve(RunConfig).max_environment_steps == task.steps


def test_fp16_rounds_weights_to_float16_and_computes_in_float32() -> None:
    source, checkpoint = checkpoint_of(vector_network("mlp", 16))
    ((name, rows),) = checkpoint.calibration.items()
    graph = Graph.parse(source)
    emission = Float16().plan(graph, Options()).emit(checkpoint.parameters, {}, {})
    assert {layer.weights for layer in emission.layers if not layer.reason} == {"float16"}
    rounded = {
        name: value.astype(np.float16).astype(np.float32) if value.ndim == 2 else value
        for name, value in checkpoint.parameters.items()
    }
    assert any(np.any(rounded[name] != value) for name, value in checkpoint.parameters.items())
    plain = Float16().plan(graph, Options(keep_float=frozenset(layer.name for layer in graph.layers)))
    outputs = graph.signature.acting.name
    ours, expected = (
        open_session(model, "policy").run([outputs], {name: rows})[0]
        for model in (emission.model, plain.emit(rounded, {}, {}).model)
    )
    np.testing.assert_array_equal(ours, expected)


def test_processes_find_fp16_as_the_scheme_of_an_installed_package() -> None:
    with offered() as variables:
        packages = variables["PYTHONPATH"].split(":")[0]
        (found,) = importlib.metadata.Distribution.discover(path=[packages])
        (point,) = found.entry_points
        assert (point.group, point.name, point.load()) == ("actorq.schemes", FP16, Float16)
    assert not Path(packages).exists()


def test_kinds_of_actors_take_turns_and_finished_runs_are_reported_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(task: Task, scheme: str, seed: int, folder: Path, variables: object) -> dict[str, Any]:
        folder.with_suffix(".json").touch()
        return {"task": task.name, "scheme": scheme, "seed": seed}

    monkeypatch.setattr(making, "_run", made)
    tasks = TASKS[:2]
    first, second = tasks[0].name, tasks[1].name
    schemes = ("fp32", "int8")
    found = [(each["task"], each["scheme"], each["seed"]) for each in make_runs(tasks, schemes, 1, tmp_path, {})]
    assert found == [(first, "int8", 1), (first, "fp32", 1), (second, "int8", 1), (second, "fp32", 1)]
    again = list(make_runs(tasks, schemes, 2, tmp_path, {}, finished_only=True))
    assert [each["seed"] for each in again] == [1, 1, 1, 1]
    later = [each["scheme"] for each in make_runs(tasks[:1], schemes, 2, tmp_path, {})]
    assert later == ["int8", "fp32", "fp32", "int8"]


def test_a_run_counts_from_its_first_transition() -> None:
    summary = {
        **{"state": "budget ended", "environment_steps": 100, "updates": 5, "first_transition_s": 2.0},
        **{"last_transition_s": 12.0, "starved_s": 1.0, "policy_bytes": None, "fidelity": None, "precision": "bf16"},
        "evaluations": [{"wall_clock_s": 7.0, "environment_steps": 50, "mean_return": 3.0}],
        "energy": {"kwh": 0.002, "co2_kg": 0.001, "method": "RAPL", "per_service": {}},
        **{"staleness": {"p50": 1.0, "p99": 2.0}, "transitions_by_scheme": {"int8": 100}},
        **{"confirmed": {"mean_return": 4.0}, "conditions": None},
    }
    found = read(summary, "int8", 1)
    assert (found["curve"], found["seconds"], found["wh"], found["co2_g"]) == ([(5.0, 50, 3.0)], 10.0, 2.0, 1.0)


def test_the_new_episodes_of_the_last_policy_confirm_the_last_evaluation() -> None:
    curve = [(5.0, 100, 10.0), (9.0, 200, 95.0)]
    assert seconds_to(run(BALANCE, "int8", 1, 90.0, curve=curve), 94.0) == 9.0
    assert seconds_to(run(BALANCE, "int8", 1, 80.0, curve=curve), 94.0) is None
    assert seconds_to(run(BALANCE, "int8", 1, 90.0, curve=curve), None) is None


def test_ratios_to_fp32_are_more_than_one_for_better_actors() -> None:
    floor = random_returns()["dm_control/cartpole-balance"]
    top = floor + 100
    fast, slow = ([(at, 100, top), (at + 5, 200, top)] for at in (20.0, 80.0))
    baseline = runs_of(BALANCE, "fp32", [top, top], curve=slow, wh=6.0, co2_g=3.0)
    ours = runs_of(BALANCE, "int8", [floor + 90, floor + 90], curve=fast, wh=2.0, co2_g=1.0)
    # Acting in another scheme counts against the share, and without energy there is no ratio of it.
    torch = [{**each, "scheme": "torch", "acted": {"fp32": 250, "int8": 750}, "wh": None} for each in baseline]
    rows = {row["scheme"]: row for row in summarized([*ours, *baseline, *torch])}
    assert rows["fp32"]["ratios"] is None
    assert rows["fp32"]["target"] == pytest.approx(floor + 95)
    ratios = rows["int8"]["ratios"]
    values = {name: pytest.approx(each["value"]) for name, each in ratios.items()}
    assert values == {"return": 0.9, "time": 4.0, "energy": 3.0, "carbon": 3.0}
    assert (ratios["time"]["seeds"], rows["int8"]["reached"], rows["int8"]["seconds"]) == (2, 2, 20.0)
    assert (rows["torch"]["acted"], rows["torch"]["ratios"]["energy"]) == (0.25, None)


def test_a_run_that_misses_the_return_has_no_seconds_and_no_ratio_of_them() -> None:
    rows = summarized([run(BALANCE, "fp32", 1, 900.0, curve=[(5.0, 1, 900.0)]), run(BALANCE, "int8", 1, 500.0)])
    fp32, int8 = rows
    assert (fp32["seconds"], int8["seconds"], int8["ratios"]["time"]) == (5.0, None, None)
    # One seed has a ratio without an interval.
    assert (int8["ratios"]["return"]["low"], int8["ratios"]["energy"]) == (None, None)


def test_scores_over_tasks_are_relative_to_the_paper() -> None:
    floors = random_returns()
    half = [(998.0 + floors["dm_control/cartpole-balance"]) / 2] * 4
    whole = [972.0] * 4
    (found,) = over_tasks([*runs_of(BALANCE, "int8", half), *runs_of(STAND, "int8", whole)])
    assert (found["algorithm"], found["scheme"], found["tasks"], found["runs"]) == ("d4pg", "int8", 2, 8)
    assert found["score"]["value"] == pytest.approx(0.75)


GOOD = [950.0, 960.0, 970.0, 980.0, 990.0]


@pytest.mark.parametrize(("lost", "met"), [(0.0, True), (100.0, False)])
def test_the_lower_end_of_the_difference_decides(lost: float, met: bool) -> None:
    ours = [value - lost for value in GOOD]
    found = verdict([*runs_of(BALANCE, "fp32", GOOD), *runs_of(BALANCE, "int8", ours)])
    assert (found.met, found.refused) == (met, "")
    assert found.name.startswith("d4pg: int8 less fp32, interquartile means of scores, lower end (1 of 8 tasks: ")


def test_tasks_with_too_few_seeds_or_without_learning_do_not_count() -> None:
    runs = [*runs_of(BALANCE, "fp32", GOOD), *runs_of(BALANCE, "int8", GOOD)]
    poor = [*runs_of(STAND, "fp32", GOOD), *runs_of(STAND, "int8", [0.0] * 4)]
    assert difference([*runs, *poor], "d4pg", "int8", 5).tasks == (BALANCE,)
    assert verdict([*runs, *poor]).met
    idle = [*runs_of(STAND, "fp32", [130.0] * 5), *runs_of(STAND, "int8", [130.0] * 5)]
    found = difference([*runs, *idle], "d4pg", "int8", 5)
    assert (found.tasks, found.unlearned) == ((BALANCE,), (STAND,))


def test_too_few_seeds_and_other_schemes_give_no_verdict() -> None:
    few = verdict([*runs_of(BALANCE, "fp32", GOOD[:1]), *runs_of(BALANCE, "int8", GOOD[:1])], seeds=1)
    assert (few.met, few.refused) == (False, "fewer than 5 seeds of a task")
    missing = verdict([*runs_of(BALANCE, "fp32", GOOD[:4]), *runs_of(BALANCE, "int8", GOOD)])
    assert missing.refused == "no task that FP32 has learned has 5 seeds of int8 and fp32"
    other = [{**each, "confirmed": {**each["confirmed"], "scheme": "fp32"}} for each in runs_of(BALANCE, "int8", GOOD)]
    assert verdict([*runs_of(BALANCE, "fp32", GOOD), *other]).refused == "actors of int8 act with fp32"


def test_other_tasks_have_no_target() -> None:
    assert targets({"runs": runs_of("dqn/CartPole-v0", "int8", [200.0]), "seeds": 5}) == []
