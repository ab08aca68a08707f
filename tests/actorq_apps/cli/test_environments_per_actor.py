"""An actor gets fewer environments if a message cannot hold a step of all of them."""

import re
from dataclasses import replace

import pytest

from actorq.config.run_config import RunConfig
from actorq.config.segments import most_environments
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from actorq_apps.local.algorithm import fit_environments

GAME = EnvironmentSpec("Game-v0", ArraySpec((210, 160, 3), "uint8"), ArraySpec((), "int64"), sizes=(4,))
SCREEN = replace(GAME, observations=ArraySpec((480, 640, 3), "uint8"))
VIDEO = replace(GAME, observations=ArraySpec((1080, 1920, 3), "uint8"))


def fitted(spec: EnvironmentSpec, environments: int) -> tuple[int, list[str]]:
    told: list[str] = []
    config = RunConfig(environment="Game-v0", environments_per_actor=environments, max_environment_steps=777)
    fitting = fit_environments(config, spec, told.append)
    assert fitting == config.model_copy(update={"environments_per_actor": fitting.environments_per_actor})
    return fitting.environments_per_actor, told


def test_limits_environments_to_those_that_fit_and_warns() -> None:
    assert fitted(GAME, 8) == (8, [])
    environments, (told,) = fitted(GAME, 64)
    assert environments == 10
    assert re.search("environments per actor.* 10 .* 64.* 98.4 KiB", told)
    # An observation of 900 KiB before and after the step.
    assert fitted(SCREEN, 8)[0] == 1
    assert most_environments(replace(GAME, frame_stack=4)) == 4


def test_an_observation_that_does_not_fit_is_refused_with_the_limit() -> None:
    with pytest.raises(UserError, match=r" 5\.9 MiB.* 2 "):
        fitted(VIDEO, 1)
