"""The spec of an environment from a separate process, and reports about environments that do not work."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from actor_service.environments import describe_environment
from actorq.config.run_config import RunConfig
from actorq.config.sections import ActorConfig
from actorq.errors import UserError
from actorq_apps.local.environment import environment_of, try_environment

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))


def run_in(environment: str, limit_s: float = 60.0) -> RunConfig:
    return RunConfig(environment=environment, actor=ActorConfig(environment_timeout_s=limit_s))


def test_the_output_of_an_environment_is_no_part_of_its_spec() -> None:
    quiet = describe_environment("environment_doubles:Counting-v0")
    environment = "noisy_environments:Chatty-v0"
    assert environment_of(run_in(environment)) == replace(quiet, environment_id=environment)


def test_an_environment_that_fails_with_some_actions_works() -> None:
    assert environment_of(run_in("noisy_environments:Choosy-v0")).acting_size == 3


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("noisy_environments:Exiting-v0", r"sys\.exit\(1\).*noisy_environments\.py:\d+.*: license not found$"),
        ("noisy_environments:Leaving-v0", "first step .*exit code 3.*: out of texture memory$"),
        ("noisy_environments:Crashing-v0", r"constructor .*SIGSEGV.*noisy_environments\.py:\d+.*: imported$"),
        (
            "noisy_environments:Failing-v0",
            r"AssertionError: assert signal is None .*noisy_environments\.py:\d+",
        ),
        ("environment_doubles:AlwaysNaN-v0", "NaN .*first observation"),
    ],
)
def test_reports_a_broken_environment_with_its_last_line(name: str, fact: str) -> None:
    with pytest.raises(UserError, match=f"{name}.*{fact}") as refused:
        environment_of(run_in(name))
    assert "\n" not in str(refused.value)


def test_reports_and_ends_a_hanging_call(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"constructor .* 0\.2 s .*environment_doubles\.py:\d+.*--"):
        try_environment(run_in("environment_doubles:HangingWhenMade-v0", 0.2), slow_s=0.1)
    warning = capsys.readouterr().err
    assert re.search(r"environment_doubles:HangingWhenMade-v0: .*constructor .* 0\.1 s; .* 0\.2 s", warning)
