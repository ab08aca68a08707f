"""MLflow and Weights & Biases get a run's scalars, with the real packages in their offline modes."""

import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from actorq.config.algorithms import ALGORITHMS, XQCConfig
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from benchmarks.hidden import is_hidden
from learner_service.reporting.sinks.process_sink import ProcessSink, process_sinks
from tests.learner_service.mlflow_runs import mlflow_runs, mlflow_scalars

pytestmark = pytest.mark.timeout(180)

RUN = "5f" * 16
_BLOCK, _FULL, _LAST = 32 * 1024, 1, 4
SUMMARY = {"state": "solved", "environment_steps": 20, "solved": True, "staleness": {"p50": 1.0}, "precision": "fp32"}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def sink(folder: Path, patience_s: float = 150.0, algorithm: str = "dqn", **telemetry: str) -> ProcessSink:
    config = RunConfig.model_validate({"telemetry": telemetry, "seed": 7, "algorithm": algorithm})
    (made,) = process_sinks(config, RUN, folder, patience_s)
    return made


def mlflow_folder(folder: Path) -> str:
    return f"file:{folder}/mlflow"


def in_mlflow(folder: Path, patience_s: float = 150.0) -> ProcessSink:
    return sink(folder, patience_s, mlflow=mlflow_folder(folder))


def test_mlflow_has_parameters_scalars_by_step_the_summary_and_the_end(tmp_path: Path) -> None:
    made = in_mlflow(tmp_path)
    made.add({"training/loss": 0.5, "training/updates": 3}, 10, 100.25)
    made.add({"training/loss": float("nan")}, 20, 101.0)
    made.close(SUMMARY)
    (run,) = mlflow_runs(mlflow_folder(tmp_path))
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"CartPole-v1 dqn {RUN[:8]}"
    assert run.data.params["seed"] == "7"
    assert run.data.params["dqn.batch_size"] == str(RunConfig().dqn.batch_size)
    assert not [name for name in run.data.params if name.startswith(("telemetry", "sac"))]
    history = mlflow_scalars(mlflow_folder(tmp_path), run, "training/loss")
    assert [(each.step, each.timestamp) for each in history] == [(10, 100_250), (20, 101_000)]
    assert (history[0].value, str(history[1].value)) == (0.5, "nan")
    assert run.data.metrics["summary/staleness/p50"] == 1.0
    assert run.data.tags["actorq.state"] == "solved"


def test_mlflow_has_the_parameters_of_the_runs_algorithm_only(tmp_path: Path) -> None:
    made = sink(tmp_path, algorithm="xqc", mlflow=mlflow_folder(tmp_path))
    made.add({"training/temperature": 0.01}, 10, 100.0)
    made.close(SUMMARY)
    (run,) = mlflow_runs(mlflow_folder(tmp_path))
    assert run.info.run_name == f"CartPole-v1 xqc {RUN[:8]}"
    own = {name for name in run.data.params if name.partition(".")[0] in ALGORITHMS}
    assert own == {f"xqc.{name}" for name in XQCConfig.model_fields}
    assert run.data.metrics["training/temperature"] == 0.01


def test_a_failed_run_has_failed_in_mlflow(tmp_path: Path) -> None:
    made = in_mlflow(tmp_path)
    made.add({"training/updates": 1}, 10, 100.0)
    made.close()
    assert [run.info.status for run in mlflow_runs(mlflow_folder(tmp_path))] == ["FAILED"]


def wandb_records(file: Path) -> list[Any]:
    """The records of W&B's file of an offline run: a log in LevelDB's format behind a header of 7 bytes."""
    # As slow to import as MLflow.
    from wandb.proto import wandb_internal_pb2

    data, at, whole, records = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := _BLOCK - at % _BLOCK) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_FULL, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            records.append(record)
            whole = b""
    return records


@pytest.mark.skipif(is_hidden(), reason="the service of Weights & Biases ends where cpuid fails: it is written in Go")
def test_weights_and_biases_has_parameters_rows_the_summary_and_the_end(tmp_path: Path) -> None:
    made = sink(tmp_path, wandb="cartpoles")
    made.add({"training/loss": 0.5}, 10, 100.0)
    made.add({"training/loss": 0.25}, 20, 101.0)
    made.close(SUMMARY)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.name == f"run-{RUN}.wandb"
    records = wandb_records(file)
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.run_id, run.display_name) == ("cartpoles", RUN, f"CartPole-v1 dqn {RUN[:8]}")
    assert {item.key: item.value_json for item in run.config.update}["seed"] == "7"
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [(row["environment_steps"], row["training/loss"]) for row in rows] == [(10, 0.5), (20, 0.25)]
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]


@pytest.mark.parametrize("telemetry", [{"mlflow": "nonsense://server"}, {"wandb": "a/b:c"}])
def test_a_failing_tracker_is_logged_once_and_the_run_continues(
    telemetry: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = sink(tmp_path, 150.0, **telemetry)
    for step in range(3):
        made.add({"training/loss": 0.5}, step, 100.0)
    made.close(SUMMARY)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f" {next(iter(telemetry))}: " in record.getMessage()
    assert "\n" not in record.getMessage()


def test_no_process_starts_without_scalars_or_after_the_sink_is_closed(tmp_path: Path) -> None:
    made = in_mlflow(tmp_path)
    made.close()
    made.add({"training/loss": 0.5}, 1, 1.0)
    made.close(SUMMARY)
    assert not (tmp_path / "mlflow").exists()


def test_a_hanging_tracker_loses_scalars_and_delays_nothing(tmp_path: Path) -> None:
    """The process stands still, as with a server that never answers."""
    made = in_mlflow(tmp_path, patience_s=0.5)
    made.add({"training/loss": 0.5}, 0, 100.0)
    # A process that stops before it is a Python would stop its starter, too.
    child = until(lambda: next((each for each in psutil.Process().children() if is_tracker(each)), 0))
    child.suspend()
    for step in range(100_000):
        made.add({"training/loss": 0.5}, step, 100.0)
    made.close(SUMMARY)
    assert psutil.wait_procs([child], timeout=60)[1] == []


def is_tracker(process: psutil.Process) -> bool:
    # A child of another test may end just now.
    with suppress(psutil.NoSuchProcess):
        return "mlflow_sink" in str(process.cmdline())
    return False


def until(found: Callable[[], Any]) -> Any:
    """Call again until there is an answer, and yield the processor in between."""
    while not (answer := found()):
        threading.Event().wait(0.02)
    return answer


OWNER = """
import sys
from pathlib import Path
from actorq.config.run_config import RunConfig
from learner_service.reporting.sinks.process_sink import process_sinks

config = RunConfig.model_validate({"telemetry": {"mlflow": f"file:{sys.argv[1]}/mlflow", "wandb": "project"}})
for sink in process_sinks(config, "abc", Path(sys.argv[1])):
    sink.add({"loss": 1.0}, 1, 1.0)
print("running", flush=True)
sys.stdin.read()
"""


def test_nothing_outlives_a_killed_learner(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"running\n"
        # Of W&B also the process that it starts itself.
        started = until(lambda: len(found := psutil.Process(owner.pid).children(recursive=True)) >= 3 and found)
        os.kill(owner.pid, signal.SIGKILL)
    assert psutil.wait_procs(started, timeout=60)[1] == []


def test_a_missing_package_is_one_line_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UserError, match=r"^--telemetry\.wandb .*actorq\[wandb\]"):
        sink(tmp_path, wandb="project")
