"""Runs of other libraries: their settings, when they evaluate and stop, their environments, their processes' end."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks.libraries.peer_runs import rllib, stable_baselines3
from benchmarks.libraries.peer_runs.telling import told
from benchmarks.libraries.peers import TASKS
from benchmarks.libraries.peers_environments import pins, python_of, requirements
from benchmarks.libraries.peers_process import run_tree
from benchmarks.libraries.peers_systems import RLLIB, STABLE_BASELINES


def test_every_task_has_settings_in_every_library() -> None:
    names = {task.name for task in TASKS}
    assert set(stable_baselines3.SETTINGS) == set(rllib.SETTINGS) == names
    for task in TASKS:
        assert stable_baselines3.SETTINGS[task.name].algorithm == task.algorithm.upper()


def test_exploration_falls_over_the_zoos_steps_however_long_a_run_may_be() -> None:
    arguments = stable_baselines3.SETTINGS["dqn/CartPole-v1"].all_arguments()
    assert arguments["exploration_fraction"] * 100_000_000 == pytest.approx(0.16 * 50_000)
    assert arguments["policy_kwargs"] == {"net_arch": [256, 256]}
    assert stable_baselines3.SETTINGS["sac/Pendulum-v1"].all_arguments() == {"learning_rate": 1e-3}
    step_size = stable_baselines3.SETTINGS["ppo/CartPole-v1"].all_arguments()["learning_rate"]
    # The argument is the share of the run's steps that is left.
    assert [step_size(1 - steps / 100_000_000) for steps in (0, 50_000, 200_000)] == pytest.approx([1e-3, 5e-4, 0.0])


def test_stable_baselines_evaluates_each_period_and_stops_at_the_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    means = iter([10.0, 475.0])

    class Algorithm:
        num_timesteps = 0

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def learn(self, steps: int, callback: Any) -> None:
            for self.num_timesteps in range(1, steps + 1):
                if not callback({}, {}):
                    return

    library = {
        "stable_baselines3": SimpleNamespace(DQN=Algorithm),
        "stable_baselines3.common.monitor": SimpleNamespace(Monitor=lambda environment: environment),
        "stable_baselines3.common.evaluation": SimpleNamespace(evaluate_policy=lambda *_, **__: (next(means), 0.0)),
    }
    for name, module in library.items():
        fake = ModuleType(name)
        vars(fake).update(vars(module))
        monkeypatch.setitem(sys.modules, name, fake)
    stable_baselines3.learn("dqn/CartPole-v1", "CartPole-v1", 1, 475.0, 20, 500)
    events = [told(line) or {} for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["started", "evaluated", "evaluated"]
    assert [event["environment_steps"] for event in events[1:]] == [500, 1_000]
    assert [event["mean_return"] for event in events[1:]] == [10.0, 475.0]


def test_lines_of_a_library_are_no_events() -> None:
    assert told("Using cpu device\n") is None


@pytest.mark.parametrize("peer", [STABLE_BASELINES, RLLIB])
def test_every_requirement_is_pinned(peer: str) -> None:
    lines = [line for line in requirements(peer).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert lines
    assert all("==" in line and "+" not in line for line in lines)


def test_torch_is_the_one_that_actorq_is_pinned_to() -> None:
    ours = (Path(__file__).parents[3] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    [torch] = [line for line in ours if line.startswith("torch==")]
    for peer in (STABLE_BASELINES, RLLIB):
        assert torch in requirements(peer).read_text(encoding="utf-8").splitlines()


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> None:
        commands.append(command)
        (tmp_path / f"{RLLIB}-{pins(RLLIB)}").mkdir(exist_ok=True)

    python = python_of(RLLIB, tmp_path, run)
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    assert commands[1][0] == str(python)
    assert python_of(RLLIB, tmp_path, run) == python
    assert len(commands) == 2


def test_a_half_made_environment_is_made_anew(tmp_path: Path) -> None:
    def fail(command: list[str]) -> None:
        (tmp_path / f"{RLLIB}-{pins(RLLIB)}" / "half").mkdir(parents=True)
        raise SystemExit("--environments: no network")

    with pytest.raises(SystemExit, match="no network"):
        python_of(RLLIB, tmp_path, fail)
    # A folder that is left over would fail to be made again.
    with pytest.raises(SystemExit, match="no network"):
        python_of(RLLIB, tmp_path, fail)


# Starts a process that outlives it, tells its number, and waits for ever, deaf to SIGTERM.
_PARENT = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "deaf" else signal.SIG_DFL)
child = subprocess.Popen([sys.executable, "-IS", "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("hearing", ["hearing", "deaf"])
def test_the_time_limit_ends_all_processes_of_a_run(hearing: str, tmp_path: Path) -> None:
    lines: list[str] = []
    command = [sys.executable, "-IS", "-c", _PARENT, hearing]
    outcome = run_tree(command, "", 2.0, tmp_path / "errors", lambda _, line: lines.append(line), grace_s=2.0)
    assert outcome.timed_out
    assert outcome.peak_memory_mb > 0.0
    assert not psutil.pid_exists(int(lines[0]))


def test_a_run_that_ends_by_itself_keeps_its_exit_code_and_its_words(tmp_path: Path) -> None:
    code = "import sys; print(sys.stdin.read()); sys.exit('what failed')"
    lines: list[str] = []
    outcome = run_tree(
        [sys.executable, "-c", code], "asked", 60.0, tmp_path / "errors", lambda _, line: lines.append(line)
    )
    assert (outcome.returncode, outcome.timed_out, lines) == (1, False, ["asked\n"])
    assert (tmp_path / "errors").read_text(encoding="utf-8") == "what failed\n"
