"""The setting `policies`: groups of agents from flags, files and mappings."""

from typing import Any

import pytest
import yaml

from actorq.config import settings
from actorq.config.parser import OneLineParser
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq_apps.python.arguments import as_tree

TWO = {"pair": ("blue", "green"), "solo": ("red",)}


def by_flags(*arguments: str) -> RunConfig:
    parser = OneLineParser(prog="actorq train")
    settings.add_flags(parser, RunConfig)
    return settings.build(RunConfig, settings.from_flags(RunConfig, parser.parse_args(arguments)))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--policies.solo", "red", "--policies.pair", "green,blue"),
        ("--policies.solo=red", "--policies.pair=blue, green", "--seed", "3"),
        ("--policies", "solo=red,pair=[green,blue]"),
        ("--policies", "{solo: red, pair: [green, blue]}"),
        ("--policies", "solo=red", "--policies.pair", "green,blue"),
        ("--policies.pair", "x", "--policies.pair", "blue,green", "--policies.solo", "red"),
    ],
)
def test_flags_name_the_agents_of_each_group(arguments: tuple[str, ...]) -> None:
    config = by_flags(*arguments)
    assert config.policies == TWO
    # One order, so that the same groups are the same setting.
    assert list(config.policies) == ["pair", "solo"]
    assert config.environment_arguments.agent_groups == tuple(TWO.items())
    assert [(group.name, group.agents) for group in config.groups] == [*TWO.items()]


def test_files_and_python_name_the_agents_of_each_group() -> None:
    of_file = settings.build(RunConfig, yaml.safe_load("policies: {solo: red, pair: [green, blue]}"))
    of_python = settings.build(RunConfig, as_tree({"policies": {"solo": ["red"], "pair": ("green", "blue")}}))
    assert of_file.policies == of_python.policies == TWO
    written = settings.build(RunConfig, yaml.safe_load(settings.to_yaml(of_file)))
    assert written == of_file


def test_by_default_all_agents_share_one_policy() -> None:
    assert RunConfig().policies == {}
    assert RunConfig().groups == ()
    assert RunConfig().environment_arguments.to_text() == ""


def test_a_run_cannot_change_its_groups() -> None:
    config = by_flags("--policies", "solo=red,pair=[green,blue]")
    assert config.fixed["policies"] == TWO
    assert config.network_settings["policies"] == {name: list(agents) for name, agents in TWO.items()}
    assert "policies" not in RunConfig().network_settings


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (("--policies.solo", "red"), "policies: expected at least two groups, got only solo"),
    (("--policies.a", "red", "--policies.b", "green,red"), "each agent in one group, got red in a and in b"),
    (("--policies.a", "red,red", "--policies.b", "green"), "each agent in one group, got red in a and in a"),
    (("--policies.a", "red", "--policies.b", ","), "policies.b: expected at least one agent, got none"),
    (("--policies.a", "red", "--policies.", "green"), "a group's name must have 1 to 64 letters.*got ''"),
    (("--policies.a", "red", "--policies.b c", "green"), "a group's name must have .*got 'b c'"),
    (("--policies.a", "red", "--policies.None", "green"), "a group's name must .* not be none, got 'None'"),
    (("--policies.a", "red", "--policies.b"), "argument --policies.b: expected one argument"),
    (("--policies.a", "--policies.b", "green"), "argument --policies.a: expected one argument"),
    (("--policies", "5"), "setting 'policies': expected NAME=VALUE"),
    (("--policies", "a=red,b=5"), "setting 'policies.b': expected a list of items, each text, got 5"),
    (("--policies", "{a: [red], b: ['']}"), "policies.b: expected names of agents, got an empty name"),
    (("--polices.a", "red"), "unknown argument '--polices.a'"),
]
FITTING = ("--policies.a", "red", "--policies.b", "green")
MISTAKES += [
    ((*FITTING, "--algorithm", name), f"expected an algorithm of dqn, td3, sac, ppo, impala, got {name}")
    for name in ("d4pg", "xqc", "iql", "td3bc")
]
MISTAKES += [
    ((*FITTING, *flags), f"policies and {name} exclude each other")
    for flags, name in (
        (("--memory", "gru"), "memory.kind gru"),
        (("--sparsity.method", "rigl"), "sparsity.method rigl"),
        (("--network", "my_module:layers"), "network"),
        (("--encoders", "camera=my_module:layers"), "encoders"),
        (("--learner.compile",), "learner.compile"),
    )
]


@pytest.mark.parametrize(("arguments", "text"), MISTAKES)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(UserError, match=text) as error:
        by_flags(*arguments)
    assert "\n" not in str(error.value)


def test_only_mappings_of_lists_have_flags_for_entries() -> None:
    leaves: dict[str, Any] = {leaf.flag: leaf for leaf in settings.leaves(RunConfig)}
    assert [flag for flag, leaf in leaves.items() if leaf.has_entries] == ["--policies"]
    with pytest.raises(UserError, match=r"unknown argument '--encoders\.camera'"):
        by_flags("--encoders.camera", "my_module:layers")
