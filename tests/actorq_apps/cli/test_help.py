"""The help of commands and services shows the settings that they read, and no paths of the sources."""

import re
from pathlib import Path

import pytest

from actorq.config import settings
from actorq.config.run_config import RunConfig
from sitegen.commands import help_of

ROOT = Path(__file__).parents[3]
COMMANDS = re.findall(r"^  ([a-z][a-z-]*) ", help_of(), re.MULTILINE)
# Folders of a service except its measurements for `actorq profile` and its commands, which read other settings.
SERVICES = {
    "learner": "learner_service",
    "quantizer": "quantizer_service",
    "actor": "actor_service",
    "meter": "actorq_apps/meter",
}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_no_help_mentions_a_source_file(command: str) -> None:
    shown = help_of(*([command] if command else []))
    assert not re.search(r"\b(docs|benchmarks|tests|examples|k8s|sitegen)/", shown)
    assert "actorq" in shown.splitlines()[0]


@pytest.mark.parametrize("service", SERVICES)
def test_the_help_of_a_service_has_the_settings_that_its_sources_read(service: str) -> None:
    files = [file for file in (ROOT / SERVICES[service]).rglob("*.py") if file.name not in ("profile.py", "check.py")]
    sources = "\n".join(file.read_text() for file in files if file.parent.name != "command")
    shown = help_of(service, flag="--help-all")
    flags = set(re.findall(r"--[a-z][\w.-]*", shown))
    for leaf in settings.leaves(RunConfig):
        if (len(leaf.path) == 1 and re.search(rf"\bconfig\.{leaf.path[0]}\b", sources)) or re.search(
            rf"\bconfig\.{leaf.path[0]}\.{leaf.path[-1]}\b", sources
        ):
            assert leaf.flag in flags


def test_the_help_of_a_service_leaves_out_settings_of_others() -> None:
    assert "--quantizer VALUE" in help_of("learner", flag="--help-all")
    assert "--quantizer.gate.max-error" not in help_of("learner", flag="--help-all")
    assert "--dqn.learning-rate" not in help_of("quantizer", flag="--help-all")
    assert "--checkpoint.keep" not in help_of("actor", flag="--help-all")
    meter = help_of("meter", flag="--help-all")
    assert "--energy.country" in meter
    assert not {"--listen", "--environment", "--seed"} & set(re.findall(r"--[a-z][\w.-]*", meter))


def test_commands_show_the_settings_that_they_read() -> None:
    check = help_of("check", flag="--help-all")
    assert "--environment-args" in check
    assert "--checkpoint.keep" not in check
    compare = set(re.findall(r"--[a-z][\w.-]*", help_of("compare", flag="--help-all")))
    assert "--seeds" in compare
    assert not {"--seed", "--scheme", "--policy-export.url"} & compare
    assert "--target-return" not in help_of("profile", flag="--help-all")
