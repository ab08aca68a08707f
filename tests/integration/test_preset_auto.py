"""`--preset auto`: a run's regime from measured costs, its forecast, and files of `actorq profile`."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq_apps.cli.support import regime
from actorq_apps.profile.measure import Figures, measure
from tests.builders.forked_commands import run

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 220.0
SMALL = (
    *("--environment", "Pendulum-v1", "--preset", "auto", "--sac.hidden-sizes", "16,16", "--sac.batch-size", "32"),
    *("--replay.min-size", "64", "--exploration.random-steps", "64", "--scheme", "fp32"),
)


def command(*flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return run("actorq_apps.cli.main", *flags, environment=environment, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of `actorq profile` for the small run."""
    file = tmp_path_factory.mktemp("profile") / "profile.json"
    made = command("profile", *SMALL, "--seconds", "0.1", "--json", str(file))
    assert made.returncode == 0, made.stderr
    return file


def train(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    budget = ("--max-environment-steps", "600", "--evaluation.episodes", "1", "--target-return", "0")
    return command("train", *SMALL, "--run-directory", str(folder), *budget, *flags)


def test_a_run_has_the_chosen_regime_and_prints_it_with_a_forecast(profile: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--profile", str(profile))
    assert result.returncode == 3, result.stderr
    said = re.search(
        r"regime: an update of 32 samples every \S+ steps \((\S+) samples per insert\), (\d)", result.stdout
    )
    assert said, result.stdout
    assert re.search(r"^alone: [\d,]+ updates/s; \d actors?: [\d,]+ steps/s \(fp32\)$", result.stdout, re.MULTILINE)
    assert "forecast: " in result.stdout
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    limiter = written["rate_limiter"]
    assert (f"{limiter['samples_per_insert']:g}", str(written["actors"])) == said.groups()
    assert 0.5 <= limiter["samples_per_insert"] <= 32.0
    # A resumed run keeps its regime.
    more = ("--resume", "--max-environment-steps", "2000")
    again = command("train", "--run-directory", str(tmp_path / "run"), *more)
    assert again.returncode == 3, again.stderr
    assert "regime" not in again.stdout
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))["rate_limiter"] == limiter


def test_given_numbers_are_kept_and_the_forecast_says_which_side_waits(profile: Path, tmp_path: Path) -> None:
    given = ("--rate-limiter.samples-per-insert", "2048", "--rate-limiter.error-buffer", "9000", "--actors", "1")
    result = train(tmp_path / "run", "--profile", str(profile), "--max-environment-steps", "100", *given)
    assert result.returncode == 3, result.stderr
    assert "(2048 samples per insert), 1 actor" in result.stdout
    assert "the actors wait for the learner" in result.stdout


def test_without_a_file_the_machine_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[Figures] = []

    def measure_and_keep(*given: Any, **named: Any) -> Figures:
        measured.append(measure(*given, **named))
        return measured[-1]

    monkeypatch.setattr(regime, "_SECONDS", 0.1)
    monkeypatch.setattr(regime, "measure", measure_and_keep)
    own = {"environment": "Pendulum-v1", "algorithm": "sac", "preset": "auto", "scheme": "int8-weights"}
    config = RunConfig.model_validate({**own, "sac": {"hidden_sizes": [16, 16]}})
    fit = regime.fit_regime(config, {}, None, None, is_measurable=True)
    chosen = fit.config
    assert fit.updates_per_s is not None
    assert fit.updates_per_s > 0
    assert 4.0 <= chosen.rate_limiter.samples_per_insert <= 256.0
    assert "measuring this machine" in capsys.readouterr().out
    # Other schemes and numbers of environments would take time and change nothing.
    assert [(each.schemes, each.environments) for each in measured] == [(("fp32", "int8-weights"), (20,))]
    numbers = {"actors": 1, "rate_limiter": {"samples_per_insert": 256.0}}
    given = settings.build(RunConfig, config.model_dump(mode="json"), numbers)
    fitted = regime.fit_regime(given, numbers, None, None, is_measurable=True).config
    # Four segments of 8 steps of 20 environments.
    assert (fitted.rate_limiter.samples_per_insert, fitted.rate_limiter.error_buffer) == (256.0, 4 * 8 * 20 * 256.0)
    assert "nothing is measured" in capsys.readouterr().out
    # An environment in the caller's process.
    assert regime.fit_regime(config, {}, None, None, is_measurable=False) == regime.Fitted(config)
    assert "16 samples per insert" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"environment": "Acrobot-v1"}, "--profile: expected figures of environment Pendulum-v1, got Acrobot-v1"),
        ({"algorithm": "td3"}, "--profile: expected figures of algorithm sac, got td3"),
        ({"measured": {}}, "--profile: expected figures of actorq profile, got"),
    ],
)
def test_figures_of_another_run_are_refused(
    profile: Path, tmp_path: Path, change: dict[str, object], expected: str
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**json.loads(profile.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    result = train(tmp_path / "run", "--profile", str(other))
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert expected in line
    assert not (tmp_path / "run").exists()


def test_figures_of_other_numbers_of_environments_are_refused(profile: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--profile", str(profile), "--environments-per-actor", "7")
    assert result.returncode == 2
    assert "expected figures of 7 environments per actor, got 5, 20, 80" in result.stderr


def test_a_profile_needs_the_preset_and_a_readable_file(tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--profile", str(tmp_path / "none.json"))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "--profile: cannot read" in result.stderr
    result = train(tmp_path / "run", "--profile", "any.json", "--preset", "standard")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "--profile: expected --preset auto" in result.stderr
