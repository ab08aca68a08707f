"""Hints to the user appear once, and only when they help."""

import re
from dataclasses import replace
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import RunState, RunStatus, StorageStatus
from actorq_apps.cli.display.hints import EpisodeHint, WaitHint, with_hints
from actorq_apps.local.observer import ProcessView
from tests.actorq_apps.cli.display_parts import actor_status
from tests.builders.run_status import run_status


class Recorder:
    """Records the events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def process(self, view: ProcessView) -> None:
        pass

    def status(self, status: RunStatus) -> None:
        pass

    def event(self, text: str) -> None:
        self.events.append(text)


def test_gives_one_hint_about_episodes_that_never_end() -> None:
    recorder = Recorder()
    hint = EpisodeHint(recorder, environments=8)
    hint.status(run_status(environment_steps=3_999, episodes=0))
    assert recorder.events == []
    for steps in (4_100, 4_200):
        hint.status(run_status(environment_steps=steps, episodes=0))
    (event,) = recorder.events
    assert re.search("no episode .* 4,100 steps.*--environment-args max_episode_steps=1000$", event)


def test_gives_no_hint_if_episodes_end() -> None:
    recorder = Recorder()
    EpisodeHint(recorder, environments=4).status(run_status(environment_steps=9_999, episodes=1))
    assert recorder.events == []


def test_gives_one_hint_about_evaluations_that_never_end() -> None:
    recorder = Recorder()
    hint = EpisodeHint(recorder, environments=8)
    for elapsed_s, version in ((30.0, 0), (40.0, 1), (59.0, 5)):
        hint.status(run_status(environment_steps=9_000, episodes=3, elapsed_s=elapsed_s, policy_version=version))
    assert recorder.events == []
    for elapsed_s in (61.0, 200.0):
        hint.status(run_status(environment_steps=9_000, episodes=3, elapsed_s=elapsed_s, policy_version=6))
    (event,) = recorder.events
    assert re.search("no evaluation .* 21 s.*--environment-args max_episode_steps=1000$", event)


def _after(seconds: float, learner: float = 0.0, actors: float = 0.0, updates: int = 0) -> RunStatus:
    """A training run in which both sides have waited these shares of the time."""
    status = actor_status("actor-0", "actor", 0, 1)
    assert status.report is not None
    actor = replace(status, report=replace(status.report, waited_seconds=actors * seconds))
    return run_status(elapsed_s=seconds, starved_s=learner * seconds, updates=updates, actors=(actor,))


def _events(*statuses: RunStatus, updates_per_s: float | None = None) -> list[str]:
    recorder = Recorder()
    hint = WaitHint(recorder, updates_per_s)
    for status in statuses:
        hint.status(status)
    return recorder.events


@pytest.mark.parametrize(
    ("learner", "actors", "expected"),
    [
        (0.95, 0.0, "the learner waits for data: in 120 s the learner waited 95% of the time.*--actors"),
        (
            0.0,
            0.97,
            "the actors wait for the learner: .*the actors 97%; a lower --rate.*--preset auto.*more actors do not",
        ),
    ],
)
def test_says_once_which_side_waits_for_long(learner: float, actors: float, expected: str) -> None:
    (event,) = _events(*(_after(seconds, learner, actors) for seconds in (10.0, 130.0, 260.0, 400.0)))
    assert re.match(expected, event)


def test_says_nothing_about_short_waits_and_short_runs() -> None:
    assert _events(*(_after(seconds, 0.6, 0.3) for seconds in (0.0, 120.0, 240.0))) == []
    assert _events(*(_after(seconds, 1.0, 0.0) for seconds in (0.0, 119.0))) == []


@pytest.mark.parametrize(
    "change",
    [{"state": RunState.PAUSED}, {"storage": StorageStatus(0, True, 0, 0, 0, 0)}],
)
def test_a_pause_and_a_full_disk_are_no_waits(change: dict[str, Any]) -> None:
    between = replace(_after(60.0, 1.0), **change)
    assert _events(_after(0.0), between, _after(70.0, 1.0), _after(180.0, 1.0)) == []


def test_a_restarted_actor_does_not_count() -> None:
    assert _events(_after(500.0, 0.0, 1.0), _after(620.0, 0.0, 0.5)) == []


def test_a_missed_forecast_is_an_event_with_both_rates_and_waits() -> None:
    statuses = (_after(0.0), _after(120.0, 0.4, 0.1, updates=6_000))
    (event,) = _events(*statuses, updates_per_s=100.0)
    assert re.match(r"slower than the forecast of --preset auto: 50 of 100 updates/s; .*40%.*10%", event)
    assert _events(*statuses, updates_per_s=60.0) == []


VECTORS = ArraySpec((3,), "float32")
ENDLESS = EnvironmentSpec("Endless-v0", VECTORS, ArraySpec((1,), "float32", (-1.0,), (1.0,)), ())


@pytest.mark.parametrize(
    ("algorithm", "limit", "acts", "hints"),
    [
        ("sac", 0, True, ["no episode", "the learner"]),
        ("sac", 100, True, ["the learner"]),
        ("sac", 0, False, ["no episode"]),
        ("ppo", 0, True, ["no episode"]),
    ],
)
def test_hints_suit_the_algorithm_the_environment_and_the_actors(
    algorithm: str, limit: int, acts: bool, hints: list[str]
) -> None:
    recorder = Recorder()
    config = RunConfig(environment="Endless-v0", algorithm=algorithm)
    observer = with_hints(recorder, config, replace(ENDLESS, max_episode_steps=limit), None, acts=acts)
    for seconds in (0.0, 120.0):
        observer.status(replace(_after(seconds, 1.0), environment_steps=1_000_000))
    assert [text[: len(hint)] for text, hint in zip(recorder.events, hints, strict=True)] == hints
