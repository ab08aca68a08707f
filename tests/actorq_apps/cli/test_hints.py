"""Hints to the user appear once, and only when they help."""

import re

from actorq.domain.status import RunStatus
from actorq_apps.cli.display.hints import EpisodeHint
from actorq_apps.local.observer import ProcessView
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
