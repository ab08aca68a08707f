"""`actorq check`: its lines about an environment, and its warnings."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from actorq_apps.cli import check
from actorq_apps.cli.check import lines_of, warnings_of
from tests.builders.grouped import grouped

SPEC = EnvironmentSpec("Own-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), sizes=(2,))
FIGURES: dict[str, Any] = {
    "steps": 2000,
    "seconds": 0.5,
    "terminated": 10,
    "truncated": 0,
    "returns": [1.0, 3.0],
    "lengths": [100, 300],
    "rewards": [0.0, 1.0],
    "observations": [-1.0, 2.0],
    "components": 3,
    "constant": [],
    "faults": {},
    "repeats": True,
    "seeds_differ": True,
}
CONFIG = RunConfig(environment="Own-v0")


def test_the_lines_of_a_good_environment() -> None:
    lines = dict(lines_of(SPEC, FIGURES, CONFIG))
    assert re.match("a vector of 3 .*float32.* -1 to 2", lines["observations"])
    assert re.match("2 .*10 terminated, 0 truncated.* 200 steps.*no limit", lines["episodes"])
    assert re.match(r"2\.00 .* 1\.00 to 3\.00", lines["returns"])
    assert lines["speed"].startswith("4,000 ")
    takes, refuses = lines["algorithms"].split(";")
    assert {"dqn", "ppo", "impala"} <= set(takes.replace(",", "").split())
    assert "sac" in refuses
    assert "--target-return" in lines["settings"]
    assert not list(warnings_of(SPEC, FIGURES, CONFIG))


def test_the_lines_of_groups_of_agents() -> None:
    config = RunConfig.model_validate(
        {"environment": "Own-v0", "policies": {"pair": ["green", "blue"], "solo": ["red"]}}
    )
    lines = dict(lines_of(grouped(SPEC), FIGURES, config))
    assert lines["agents"] == "3: red, green, blue; each group has its own policy, and returns are sums over agents"
    assert lines["groups"] == "pair: green, blue; solo: red"
    takes, _ = lines["algorithms"].split(";")
    assert "xqc" not in takes
    assert "--policies with 2 groups" in lines["settings"]
    assert "groups" not in dict(lines_of(SPEC, FIGURES, CONFIG))


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"faults": {"NaN": 3}}, "3 of 2,000 .*NaN"),
        ({"repeats": False}, r"reset\(seed="),
        ({"lengths": [], "returns": []}, "max_episode_steps"),
        ({"observations": [-400.0, 2.0]}, "observations .* 400.*--normalize-observations"),
        ({"constant": [0, 2]}, r"2 of 3 .*observation.*\b0, 2\b"),
        ({"rewards": [0.0, 0.0]}, "no .*reward"),
        ({"rewards": [-5000.0, 1.0]}, "rewards .*-5000"),
        ({"seconds": 20.0}, "10 ms .*--actors"),
    ],
)
def test_each_warning_has_its_number_and_its_remedy(changes: dict[str, Any], fact: str) -> None:
    (warning,) = warnings_of(SPEC, {**FIGURES, **changes}, CONFIG)
    assert re.search(fact, warning)


def test_does_not_warn_about_a_fault_that_a_setting_fixes() -> None:
    far = {**FIGURES, "observations": [-400.0, 2.0]}
    normalized = settings.build(RunConfig, {"environment": "Own-v0", "normalize_observations": True})
    assert not list(warnings_of(SPEC, far, normalized))
    endless = {**FIGURES, "lengths": [], "returns": []}
    assert not list(warnings_of(replace(SPEC, max_episode_steps=5000), endless, CONFIG))


def test_shows_the_layout_of_images_and_accepts_their_bytes() -> None:
    images = replace(SPEC, observations=ArraySpec((40, 40, 3), "uint8"))
    figures = {**FIGURES, "observations": [0.0, 255.0], "components": 4800, "constant": [7]}
    lines = dict(lines_of(images, figures, CONFIG))
    assert re.match("images of 40 x 40 .* 3 channels, channels last .*uint8", lines["observations"])
    assert "--image-layout channels-last" in lines["settings"]
    assert not list(warnings_of(images, figures, CONFIG))


def test_an_environment_is_tried_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.run(["Pendulum-v1", "--steps", "400"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "Pendulum-v1"
    assert re.search("vector of 1 .* -2 to 2", printed)
    assert "sac unless you choose: d4pg, td3, sac, xqc, ppo, impala; dqn: discrete only" in printed


def test_the_figures_of_an_environment_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.run(["--environment", "CartPole-v1", "--steps", "200", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert EnvironmentSpec.from_json(content["spec"]).acting_size == 2
    assert (content["algorithm"], content["warnings"]) == ("dqn", [])
    assert content["figures"]["steps"] == 200


def test_reports_a_broken_environment_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = Path(__file__).parents[2] / "user_modules"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(modules), str(modules.parents[1])]))
    with pytest.raises(UserError, match="RuntimeError"):
        check.run(["environment_doubles:AlwaysRaising-v0"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["A-v0", "--environment", "B-v0"], "--environment"), (["CartPole-v1", "--algorithm", "sac"], "continuous")],
)
def test_refuses_two_environments_and_an_unsuitable_algorithm(arguments: list[str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        check.run(arguments)
