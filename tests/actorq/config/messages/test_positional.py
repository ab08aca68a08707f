"""The environment id as an argument without a flag."""

import argparse

import pytest

from actorq.config.messages.positional import add_environment
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq.process import argument_parser


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argument_parser("actorq train", "", (RunConfig,))
    add_environment(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    "arguments",
    [("LunarLander-v3",), ("--environment", "LunarLander-v3"), ("LunarLander-v3", "--environment", "LunarLander-v3")],
)
def test_the_environment_needs_no_flag(arguments: tuple[str, ...]) -> None:
    given = parsed(*arguments, "--seed", "3")
    assert (given.environment, given.seed) == ("LunarLander-v3", "3")
    assert not hasattr(given, "environment_id")


def test_without_an_id_the_environment_is_not_given() -> None:
    assert not hasattr(parsed("--seed", "3"), "environment")


def test_two_environments_are_refused() -> None:
    with pytest.raises(UserError, match="one environment, got 'CartPole-v1' and --environment 'Pendulum-v1'"):
        parsed("CartPole-v1", "--environment", "Pendulum-v1")


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("dqn.lr=1e-3",), "--dqn.learning-rate"),
        (("Pendulum-v1", "--lr", "1e-3"), "--sac.learning-rate"),
        (("--lr", "1e-3"), "--dqn.learning-rate"),
        (("Pendulum-v1", "seed=3"), "--seed"),
    ],
)
def test_a_setting_in_another_notation_suggests_its_flag(arguments: tuple[str, ...], flag: str) -> None:
    with pytest.raises(UserError, match=f"unknown argument .*did you mean '{flag}'.*; see actorq train --help"):
        parsed(*arguments)
