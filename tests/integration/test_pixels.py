"""A whole run from pixels, with int8-static actors, and refused settings in one line."""

import json
from pathlib import Path

import pytest

from actorq.rundirectory import RunDirectory
from tests.integration.training_run import actorq

PIXELS = ("--environment", "dm_control_pixels/cartpole-swingup")
# Small pictures and few updates. All actions have an effect for longer than in the preset, so episodes are short.
SHORT = (
    *("--environment-args", "size=40,action_repeat=20", "--max-environment-steps", "400", "--sac.batch-size", "16"),
    *("--replay.min-size", "100", "--exploration.random-steps", "100", "--rate-limiter.samples-per-insert", "4"),
    *("--rate-limiter.error-buffer", "64", "--replay.capacity", "2000"),
    *("--publication.period-updates", "10", "--evaluation.period-updates", "20"),
    *("--evaluation.episodes", "2", "--evaluation.share", "0.5", "--target-return", "1001", "--no-energy.enabled"),
)


@pytest.fixture(autouse=True)
def _without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUJOCO_GL", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.timeout(240)
def test_a_run_from_pixels_acts_in_int8_static_and_resumes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = actorq("train", "--run-directory", str(run), *PIXELS, *SHORT)
    if "cannot render without a display" in ended.stderr:
        pytest.skip("this machine cannot render without a display")
    # The budget ended the run.
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "observations: 3 stacked frames of 40 x 40 pixels with 3 channels" in ended.stdout
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["transitions_by_scheme"]) == {"int8-static"}
    assert summary["updates"] >= 50
    environment = RunDirectory(run).read_environment()
    assert (environment.frame_stack, environment.max_episode_steps) == (3, 50)
    evaluated = actorq("evaluate", str(run), "--episodes", "2", "--scheme", "int8-static")
    assert evaluated.returncode == 0, evaluated.stderr
    more = [*SHORT[:2], "--max-environment-steps", "500", *SHORT[4:]]
    resumed = actorq("train", "--run-directory", str(run), *PIXELS, *more, "--resume")
    assert resumed.returncode == 3, resumed.stdout + resumed.stderr
    assert json.loads((run / "summary.json").read_text())["updates"] > summary["updates"]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--environment", "Pendulum-v1", "--algorithm", "sac", "--sac.random-shift", "4"), "sac.random_shift: exp"),
        (("--environment", "Pendulum-v1", "--algorithm", "sac", "--sac.shared-encoder"), "sac.shared_encoder: expec"),
        ((*PIXELS, "--sparsity.method", "rigl"), "sac.shared_encoder and sparsity.method exclude each other"),
        ((*PIXELS, "--environment-args", "camera=9"), "environment_args: camera: dm_control_pixels/cartpole-swingup"),
        (("--environment", "dm_control/cartpole-swingup", "--environment-args", "size=84"), "cannot be made"),
    ],
)
def test_refused_settings_are_one_line(flags: tuple[str, ...], line: str, tmp_path: Path) -> None:
    refused = actorq("train", "--run-directory", str(tmp_path / "run"), *flags, "--no-energy.enabled")
    if "cannot render without a display" in refused.stderr:
        pytest.skip("this machine cannot render without a display")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    errors = [each for each in refused.stderr.splitlines() if each.startswith("error: ")]
    assert len(errors) == 1, refused.stderr
    assert line in errors[0]
    assert "Traceback" not in refused.stderr


def test_a_machine_that_draws_nothing_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    refused = actorq("train", "--run-directory", str(tmp_path / "run"), *PIXELS, "--no-energy.enabled")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "its observations are pictures, but MUJOCO_GL is disabled" in refused.stderr
    assert "Traceback" not in refused.stderr
