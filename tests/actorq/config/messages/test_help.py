"""The help of a command: the settings that it reads, with the defaults of the run that its arguments describe."""

import re

import pytest

from actorq.config import settings
from actorq.config.presets import preset
from actorq.config.run_config import RunConfig
from actorq.process import ProcessSettings, argument_parser


def help_of(
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
    reads: tuple[str, ...] | None = None,
    ignores: tuple[str, ...] = (),
) -> str:
    parser = argument_parser("service", "A service.", (RunConfig, ProcessSettings), reads, ignores)
    with pytest.raises(SystemExit, match=r"^0$"):
        parser.parse_args(arguments)
    return " ".join(capsys.readouterr().out.split())


def default_of(shown: str, flag: str) -> str:
    found = re.search(rf"{flag} (?:(?! --).)*?\(default: ([^)]*)\)", shown)
    assert found, flag
    return found[1]


def test_the_defaults_are_those_of_the_environment_and_its_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, "--help-all", "--environment", "LunarLander-v3")
    expected = preset("dqn", "LunarLander-v3")
    assert default_of(shown, "--max-environment-steps") == str(expected["max_environment_steps"])
    assert default_of(shown, "--dqn.learning-rate") == str(expected["dqn"]["learning_rate"])
    assert default_of(shown, "--algorithm") == "dqn"
    assert "defaults below are for dqn on LunarLander-v3." in shown
    pendulum = help_of(capsys, "--environment", "Pendulum-v1", "--help")
    assert default_of(pendulum, "--algorithm") == "sac"
    assert default_of(pendulum, "--max-environment-steps") == "20000"


def test_an_unknown_environment_decides_the_algorithm_later(capsys: pytest.CaptureFixture[str]) -> None:
    assert default_of(help_of(capsys, "--help", "--environment", "Own-v0"), "--algorithm") == "by the environment"


def test_shows_the_usual_defaults_if_settings_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, "--help", "--preset", "fast", "--environment", "LunarLander-v3", "--unknown")
    assert "defaults below are for dqn on CartPole-v1." in shown


def test_the_help_hides_what_the_algorithm_ignores(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, "--help", "--algorithm", "ppo")
    assert "--ppo.* " in shown
    assert "--queue.* " in shown
    assert "--dqn.* " not in shown
    assert "--exploration.* " not in shown
    full = help_of(capsys, "--help-all", "--algorithm", "ppo")
    assert "--ppo.clip " in full
    assert "--dqn." not in full


def test_the_full_help_without_an_algorithm_lists_the_settings_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, "--help-all", "--environment", "Pendulum-v1")
    for leaf in settings.leaves(RunConfig):
        assert f"{leaf.flag} " in shown or f"{leaf.flag}," in shown
    # A setting of another algorithm on the same environment.
    assert default_of(shown, "--td3.learning-rate") == "0.001"


def test_a_service_shows_the_settings_that_it_reads_and_accepts_all(capsys: pytest.CaptureFixture[str]) -> None:
    reads, ignores = ("energy.period_s", "transport", "quantizer"), ("transport.deny",)
    shown = help_of(capsys, "--help-all", reads=reads, ignores=ignores)
    assert "--energy.period-s X " in shown
    assert "--transport.certificates PATH " in shown
    assert "--listen VALUE " in shown
    for hidden in ("--transport.deny", "--energy.enabled", "--environment", "--dqn.", "The defaults below", "replay: "):
        assert hidden not in shown
    parser = argument_parser("service", "A service.", (RunConfig, ProcessSettings), reads, ignores)
    assert parser.parse_args(["--seed", "3", "--transport.deny", "denied"]).seed == "3"
