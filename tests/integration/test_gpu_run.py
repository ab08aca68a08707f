"""A whole run with the learner on a GPU, and the move of a run from a GPU to the CPU."""

import os
import signal
from pathlib import Path

import pytest
import torch

from tests.integration.training_run import ENDLESS, TrainingRun, actorq, process_id, trained

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_learner_on_a_gpu_solves_its_task_with_quantized_actors(tmp_path: Path) -> None:
    flags = ("--learner.device", "cuda", "--scheme", "int8-weights", "--run-directory", str(tmp_path / "run"))
    result = actorq("train", *flags)
    assert result.returncode == 0, result.stderr
    assert ", for cuda" in (tmp_path / "run" / "logs" / "learner.log").read_text()


def test_a_run_survives_a_kill_on_the_gpu_and_moves_to_the_cpu(tmp_path: Path) -> None:
    run = TrainingRun.start(tmp_path / "run", "--learner.device", "cuda", *ENDLESS)
    before = run.until(trained(200))
    os.kill(process_id(before, "learner"), signal.SIGKILL)
    after = run.until(lambda status: status.updates > before.updates + 200)
    assert after.environment_steps >= before.environment_steps
    run.signal(signal.SIGINT)
    assert run.finish()[0] == 130
    moved = TrainingRun.start(run.directory, "--resume", "--learner.device", "cpu")
    continued = moved.until(lambda status: status.updates > after.updates + 200)
    assert continued.environment_steps >= after.environment_steps
    moved.signal(signal.SIGINT)
    assert moved.finish()[0] == 130
    log = (run.directory / "logs" / "learner.log").read_text()
    assert [log.count(f", for {device}\n") for device in ("cuda", "cpu")] == [2, 1]
