"""Training from Python: a run by id in separate processes, and environments in the program's own process."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import actorq
from actorq import EndEvent, EvaluationEvent, NoticeEvent, Run, StatusEvent
from actorq.domain.status import RunState
from actorq.errors import ActorQError, InvalidInputError, UserError
from actorq.rundirectory import RunDirectory
from actorq_apps.python.buffer import EventBuffer
from actorq_apps.python.events import Event

ENDLESS: dict[str, Any] = {"target_return": 501, "max_environment_steps": 10_000_000, "energy": {"enabled": False}}
SHORT: dict[str, Any] = {"energy": {"enabled": False}, "replay__min_size": 200, "target_return": 9}
LIMIT: dict[str, Any] = {"environment_args": {"max_episode_steps": 100}}


class OwnCartPole(CartPoleEnv):
    """A class that no other process can import, as in a notebook."""


OwnCartPole.__module__ = "__main__"


def _until(run: Run, kind: type[Event]) -> Any:
    return next(event for event in run if isinstance(event, kind))


def _ended(run: Run) -> bool:
    """Whether no process of the run is left."""
    needle = str(run.directory)
    return not [each for each in psutil.process_iter(["cmdline"]) if needle in " ".join(each.info["cmdline"] or [])]


def test_a_run_by_id_is_watched_evaluated_exported_and_plotted(tmp_path: Path) -> None:
    seen: list[Event] = []
    run = actorq.train("CartPole-v1", seed=3, directory=tmp_path / "run", callbacks=[seen.append], **SHORT)
    events = list(run)
    result = run.wait()
    assert result.solved
    assert result.state is RunState.SOLVED
    assert result.mean_return is not None
    assert result.mean_return >= 9
    assert events[-1] == EndEvent(result) == seen[-1]
    assert any(isinstance(event, StatusEvent) for event in seen)
    assert any(isinstance(event, EvaluationEvent) for event in seen)
    status = run.status()
    assert status is not None
    assert status.state is RunState.SOLVED
    assert not run.running
    assert _ended(run)
    assert run.policy().predict(np.zeros(4, np.float32)) in (0, 1)
    assert len(run.evaluate(3).returns) == 3
    exported = actorq.load_policy(run.export(tmp_path / "policy.onnx"))
    assert exported.version == run.policy().version
    with pytest.raises(UserError, match=r"policy\.onnx"):
        run.export(tmp_path / "policy.onnx")
    assert run.plot(tmp_path / "curve.png")._repr_png_().startswith(b"\x89PNG")
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert list(run) == [EndEvent(result)]


def test_a_run_pauses_and_resumes_and_a_stopped_one_continues_in_its_folder(tmp_path: Path) -> None:
    with actorq.train("CartPole-v1", directory=tmp_path / "run", **ENDLESS) as run:
        _until(run, EvaluationEvent)
        run.pause()
        assert any(isinstance(e, StatusEvent) and e.status.state is RunState.PAUSED for e in run)
        run.resume()
        steps = _until(run, EvaluationEvent).status.environment_steps
    assert run.wait().state is RunState.INTERRUPTED
    assert _ended(run)
    with pytest.raises(UserError, match=r"give resume=True to continue its run, or another directory$"):
        actorq.train("CartPole-v1", directory=tmp_path / "run")
    with actorq.train("CartPole-v1", directory=tmp_path / "run", resume=True, **ENDLESS) as again:
        assert _until(again, StatusEvent).status.environment_steps >= steps


@pytest.mark.parametrize("given", ["class", "lambda", "object"])
def test_an_environment_of_this_process_acts_here(given: str, tmp_path: Path) -> None:
    environment: Any = {
        "class": OwnCartPole,
        "lambda": lambda: gymnasium.make("CartPole-v1", max_episode_steps=100),
        "object": gymnasium.make("CartPole-v1", max_episode_steps=100),
    }[given]
    memory: dict[str, Any] = {"memory": {"kind": "gru", "units": 16}} if given == "lambda" else {}
    run = actorq.train(environment, like="CartPole-v1", directory=tmp_path / "run", **memory, **SHORT, **LIMIT)
    first = _until(run, EvaluationEvent)
    assert {actor.name for actor in first.status.actors} == {"actor-0", "evaluator"}
    assert {p.pid for p in first.status.processes if p.role in ("actor", "evaluator")} == {os.getpid()}
    assert run.wait().solved
    assert _ended(run)
    assert not [t for t in threading.enumerate() if t.name in ("actor", "evaluator")]
    policy = run.policy()
    assert policy.has_memory == bool(memory)
    assert policy.predict(np.zeros(4, np.float32)) in (0, 1)
    if memory:
        # The state has one row until the next episode.
        with pytest.raises(InvalidInputError, match=r"expected 1 rows, as in the steps before, got 2; .*call reset"):
            policy.predict(np.zeros((2, 4), np.float32))
        policy.reset()
    assert policy.predict(np.zeros((2, 4), np.float32)).shape == (2,)
    evaluation = run.evaluate(3)
    assert len(evaluation.returns) == 3
    assert max(evaluation.lengths) <= 100
    if given == "object":
        # The environment belongs to the caller, who continues to use it.
        environment.reset()


def test_an_open_environment_serves_one_run_at_a_time(tmp_path: Path) -> None:
    environment = gymnasium.make("CartPole-v1")
    with actorq.train(environment, directory=tmp_path / "one", **ENDLESS) as run:
        _until(run, StatusEvent)
        with pytest.raises(UserError, match="another run uses this object"):
            actorq.train(environment, directory=tmp_path / "two")
    with actorq.train(environment, directory=tmp_path / "two", **ENDLESS) as run:
        _until(run, StatusEvent)


def _buffers() -> int:
    """The number of buffers that collect events of any run in this process."""
    gc.collect()
    return sum(isinstance(each, EventBuffer) for each in gc.get_objects())


def test_a_reader_that_stops_early_collects_no_further_events(tmp_path: Path) -> None:
    before = _buffers()
    with actorq.train("CartPole-v1", directory=tmp_path / "run", **ENDLESS) as run:
        for _ in run:
            assert _buffers() == before + 1
            break
        assert run.running
        assert _buffers() == before


def test_a_callback_that_returns_false_stops_the_run(tmp_path: Path) -> None:
    seen: list[Event] = []
    run = actorq.train(
        "CartPole-v1",
        directory=tmp_path / "run",
        callbacks=[seen.append, lambda event: not isinstance(event, EvaluationEvent)],
        **ENDLESS,
    )
    assert run.wait().state is RunState.INTERRUPTED
    assert [event for event in seen if isinstance(event, NoticeEvent)] == [NoticeEvent("saving the run and ending")]


def test_the_exception_of_a_callback_ends_the_run_and_reaches_the_caller(tmp_path: Path) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, EvaluationEvent):
            raise ZeroDivisionError("mine")

    run = actorq.train("CartPole-v1", directory=tmp_path / "run", callbacks=[fail], **ENDLESS)
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        run.wait()
    assert caught.traceback[-1].name == "fail"
    assert _ended(run)
    assert (run.directory / "summary.json").exists()


class Failing(OwnCartPole):
    """Works for a while, then raises at each step."""

    steps = 0

    def step(self, action: Any) -> Any:
        Failing.steps += 1
        if Failing.steps > 500:
            raise LookupError("no sensor")
        return super().step(action)  # type: ignore[no-untyped-call]


Failing.__module__ = "__main__"


def test_the_exception_of_an_own_environment_ends_the_run_and_is_the_cause_of_its_error(tmp_path: Path) -> None:
    run = actorq.train(Failing, directory=tmp_path / "run", **ENDLESS, **LIMIT)
    with pytest.raises(ActorQError, match="no sensor") as caught:
        run.wait()
    cause = caught.value.__cause__
    assert isinstance(cause, LookupError)
    assert _ended(run)


def test_an_own_environment_that_cannot_start_is_refused_at_once(tmp_path: Path) -> None:
    def broken() -> gymnasium.Env[Any, Any]:
        raise LookupError("no port")

    with pytest.raises(UserError, match="no port"):
        actorq.train(broken, directory=tmp_path / "run")
    with pytest.raises(UserError, match=r"expected an environment of gymnasium\.Env, got a int"):
        actorq.train(lambda: 3, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_id_is_the_error_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="environment 'CartPoleX-v1' cannot be made"):
        actorq.train("CartPoleX-v1", directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_commands_refuse_an_environment_of_the_caller(tmp_path: Path) -> None:
    run = actorq.train(OwnCartPole, like="CartPole-v1", directory=tmp_path / "run", **SHORT, **LIMIT)
    run.wait()
    command = [sys.executable, "-m", "actorq_apps.cli.main", "evaluate", str(run.directory)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    (line,) = completed.stderr.splitlines()
    assert line.startswith("error: environment 'caller/OwnCartPole' exists only in the process that gave it to actorq")
    assert line.endswith("or move its class into a module and train MODULE:CLASS")


_SCRIPT = """
import os, sys
import gymnasium
import actorq
from actorq import EvaluationEvent
environment = {"id": "CartPole-v1", "own": lambda: gymnasium.make("CartPole-v1")}[sys.argv[2]]
run = actorq.train(environment, like="CartPole-v1", directory=sys.argv[1], target_return=501,
                   max_environment_steps=10**7, energy={"enabled": False})
next(event for event in run if isinstance(event, EvaluationEvent))
if os.fork() == 0:
    # A worker of the program that outlives it.
    os.setsid()
    sys.stdin.read()
    os._exit(0)
print("acting", flush=True)
{"exit": lambda: sys.exit(0), "raise": lambda: 1 / 0, "wait": run.wait}[sys.argv[3]]()
"""


@pytest.mark.parametrize("environment", ["id", "own"])
@pytest.mark.parametrize("end", ["exit", "raise", "SIGKILL"])
def test_no_process_is_left_however_the_program_ends(environment: str, end: str, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    how = end if end in ("exit", "raise") else "wait"
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(directory), environment, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "acting\n"
    found = [p for p in psutil.process_iter(["cmdline"]) if str(directory) in " ".join(p.info["cmdline"] or [])]
    services = [each for each in found if each.pid != process.pid and "-c" not in each.info["cmdline"]]
    assert services
    if how == "wait":
        process.send_signal(signal.Signals[end])
    process.wait(60)
    _, alive = psutil.wait_procs(services, timeout=60)
    assert not alive
    assert process.stdin is not None
    process.stdin.close()
    # The run was saved.
    assert RunDirectory(directory).read_summary()["state"] == "interrupted"


def test_warnings_of_the_start_are_events(tmp_path: Path) -> None:
    seen: list[Event] = []
    noise: dict[str, Any] = {"exploration__noise": 0.5}
    actorq.train("CartPole-v1", directory=tmp_path / "run", callbacks=[seen.append], **noise, **SHORT).wait()
    notices = [event.text for event in seen if isinstance(event, NoticeEvent)]
    assert any("exploration.noise has no effect" in text for text in notices), notices
