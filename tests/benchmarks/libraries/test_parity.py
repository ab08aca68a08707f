"""The comparison with Stable-Baselines3: its verdict, what is made again and what is not, its plot."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.config.run_config import RunConfig
from actorq.domain.policy import FLOAT32, Checkpoint, FidelityReport, LayerReport, Policy, PolicyDescriptor
from actorq.rundirectory import RunDirectory
from benchmarks.libraries import parity
from benchmarks.libraries.parity import OURS, TASKS, THEIRS, Run, Task, last_quantized, make_runs, verdict
from benchmarks.libraries.parity_plot import plot
from benchmarks.libraries.parity_settings import TD3
from benchmarks.runs import forget_incomplete, kept
from quantizer_service.store.store import PolicyStore
from tests.builders.graphs import graph_of


def _run(mean_return: float) -> Run:
    curve = [{"environment_steps": steps, "mean_return": mean_return - steps} for steps in (100, 200)]
    final = {"mean_return": mean_return, "episodes": 20, "scheme": "int8"}
    return {"environment_steps": 200, "updates": 100, "wall_clock_s": 1.0, "evaluations": curve, "final": final}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Runs take no time and are listed here; those of ours with seed 3 fail."""
    made: list[tuple[str, str, int]] = []

    def side(name: str) -> Any:
        def make(task: Task, seed: int, steps: int, folder: Path) -> Run:
            made.append((name, task.name, seed))
            if (name, seed) == (OURS, 3):
                raise SystemExit("actorq train failed")
            return _run(-100.0 * seed)

        return make

    monkeypatch.setattr(parity, "_SIDES", {name: side(name) for name in (OURS, THEIRS)})
    return made


@pytest.mark.parametrize(("ours", "met"), [(-21.0, True), (-19.0, True), (-23.0, False)])
def test_ours_may_be_below_theirs_by_the_standard_deviation_of_their_seeds(ours: float, met: bool) -> None:
    # Mean -20, sample standard deviation 2.
    target = verdict("sac/Pendulum-v1", [_run(ours - 5), _run(ours + 5)], [_run(mean) for mean in (-18, -20, -22)])
    assert target.bound == pytest.approx(-22.0)
    assert target.measured == pytest.approx(ours)
    assert target.met is met


def _stored(folder: Path, weights: list[str]) -> Path:
    """A run whose versions, from 1 on, hold their one layer so."""
    store = PolicyStore(RunDirectory(folder).policies, 32, 3)
    graph = graph_of(b"\xff", ("observations",), False)
    store.claim("run")
    store.add_graph(graph)
    for version, held in enumerate(weights, start=1):
        report = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, None, (LayerReport("layers.0", held),))
        digest = hashlib.sha256(b"model").digest()
        descriptor = PolicyDescriptor("run", version, version, "int8", digest, 5, 5, 0.0, report, graph.topology)
        parameters = {"weight": np.zeros(1, np.float32)}
        checkpoint = Checkpoint(version, version, graph.topology, parameters, {"observations": np.zeros((1, 1))}, 0.0)
        store.add_version(checkpoint, [Policy(descriptor, b"model")])
    store.close()
    return folder


def test_the_last_version_that_the_gate_let_act_in_int8_counts(tmp_path: Path) -> None:
    assert last_quantized(_stored(tmp_path / "run", ["int8", "int8", FLOAT32, FLOAT32])).descriptor.version == 2


def test_a_run_that_ended_in_float_altogether_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected an int8 policy among those retained, got none"):
        last_quantized(_stored(tmp_path / "run", [FLOAT32]))


def test_one_seed_has_no_spread_and_gives_no_verdict() -> None:
    found = verdict("td3/Pendulum-v1", [_run(-19.0)], [_run(-20.0)])
    assert (found.bound, found.met, found.refused) == (-20.0, False, "one seed gives no verdict")


def test_complete_runs_are_not_made_again(tmp_path: Path, made: list[tuple[str, str, int]]) -> None:
    first = list(make_runs(TASKS[:2], 1, 200, 1, tmp_path))
    assert made == [(side, task.name, 1) for task in TASKS[:2] for side in (OURS, THEIRS)]
    made.clear()
    again = list(make_runs(TASKS[:2], 2, 200, 1, tmp_path))
    assert [seed for _, _, seed in made] == [2] * 4
    assert [run for run in again if run["seed"] == 1] == first


def test_what_was_made_before_a_failure_is_kept(tmp_path: Path, made: list[tuple[str, str, int]]) -> None:
    with pytest.raises(SystemExit, match="actorq train failed"):
        list(make_runs(TASKS[:1], 3, 200, 1, tmp_path))
    made.clear()
    assert len(list(make_runs(TASKS[:1], 2, 200, 1, tmp_path))) == 4
    assert made == []


def test_runs_of_other_settings_are_not_taken_for_these(tmp_path: Path, made: list[tuple[str, str, int]]) -> None:
    list(make_runs(TASKS[:1], 1, 200, 1, tmp_path))
    with pytest.raises(SystemExit, match="other settings"):
        list(make_runs(TASKS[:1], 1, 300, 1, tmp_path))


def test_a_result_that_was_half_written_is_none(tmp_path: Path) -> None:
    (tmp_path / ".run.json.partial").write_text('{"final": ')
    found = kept(tmp_path / "run.json", {"steps": 1}, lambda: {"final": 2})
    assert {name: found[name] for name in ("final", "settings")} == {"final": 2, "settings": {"steps": 1}}
    assert json.loads((tmp_path / "run.json").read_text()) == {"final": 2, "settings": {"steps": 1}}


def test_a_killed_run_is_forgotten_and_a_complete_one_is_not(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig())
    with run.locked(lambda: None), pytest.raises(SystemExit, match="in use by another actorq train"):
        forget_incomplete(run.root)
    (run.root / "command_s.json").write_text("1.0")
    forget_incomplete(run.root)
    assert run.config.exists()
    (run.root / "command_s.json").unlink()
    forget_incomplete(run.root)
    assert not run.root.exists()


def test_both_libraries_are_given_the_same() -> None:
    theirs, flags = TD3.stable_baselines(), TD3.actorq()
    ours = dict(zip(flags[:-3:2], flags[1:-3:2], strict=True))
    assert ours["--td3.hidden-sizes"] == ",".join(map(str, theirs["policy_kwargs"]["net_arch"]))
    assert float(ours["--td3.learning-rate"]) == theirs["learning_rate"]
    assert float(ours["--td3.target-rate"]) == theirs["tau"]
    assert int(ours["--exploration.random-steps"]) == int(ours["--replay.min-size"]) == theirs["learning_starts"]
    # One update per step.
    assert float(ours["--rate-limiter.samples-per-insert"]) == theirs["batch_size"]


def test_the_plot_has_a_panel_for_each_task(tmp_path: Path) -> None:
    runs = {task.name: {OURS: [_run(-1.0), _run(-2.0)], THEIRS: [_run(-3.0)]} for task in TASKS}
    plot(runs, tmp_path / "images" / "parity.png")
    assert (tmp_path / "images" / "parity.png").stat().st_size > 10_000
