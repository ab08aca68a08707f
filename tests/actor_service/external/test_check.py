"""`actorq external check`: clients that follow the protocol, and clients that break it."""

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from actor_service.external.check import ClientCheck, Finding, random_actions
from actor_service.external.command import run
from actorq.domain.leaves import views
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import ActorQError, UnavailableError, UserError
from tests.actor_service.external.clients import Client, served
from tests.actor_service.external.simulators import DEADLINE_S, CartPoles, door, opening, step
from tests.builders.structured import NUMBERS, discrete, mixed, random_observations

Behavior = Callable[[str, threading.Event], None]


def good(address: str, stop: threading.Event) -> None:
    """A client that follows the protocol."""
    while not stop.is_set():
        try:
            client, poles = Client(address), CartPoles(1, 0)
            client.open()
            action = client.play(poles.first)
            while True:
                action = client.play(poles.step(np.frombuffer(action.actions.data, np.int64)))
        except StopIteration:
            return
        except UnavailableError:
            continue


def leaves_at_the_first_break(address: str, stop: threading.Event) -> None:
    """A client that does not connect again."""
    try:
        client, poles = Client(address), CartPoles(1, 0)
        client.open()
        action = client.play(poles.first)
        while True:
            action = client.play(poles.step(np.frombuffer(action.actions.data, np.int64)))
    except ActorQError:
        return


def always_comes_back(address: str, stop: threading.Event) -> None:
    """A client that takes the end of the run for a broken stream."""
    while not stop.is_set():
        good(address, stop)


def sends(*messages: Any) -> Behavior:
    """A client that sends these messages."""

    def play(address: str, stop: threading.Event) -> None:
        client = Client(address)
        for message in messages:
            client.send(message)
        client.error()

    return play


def findings(behavior: Behavior, steps: int = 200, wait_s: float = 1.0) -> dict[str, Finding]:
    """The findings about a client, by name."""
    at, stop = door(admitted=False, batch_wait_ms=0.0), threading.Event()
    with served(at, answers=False) as stage:
        client = threading.Thread(target=lambda: _run(behavior, stage.address, stop))
        client.start()
        try:
            return {each.name: each for each in ClientCheck(at, steps, wait_s).run()}
        finally:
            stop.set()
            at.end(None)
            client.join(DEADLINE_S)


def _run(behavior: Behavior, address: str, stop: threading.Event) -> None:
    try:
        behavior(address, stop)
    except (ActorQError, StopIteration):
        return


def test_a_client_that_follows_the_protocol_passes() -> None:
    found = findings(good)
    assert {name for name, each in found.items() if each.passed} == {
        *("open", "steps", "episodes", "observations", "reconnects", "ends"),
    }
    assert not [each for each in found.values() if each.passed is False]
    assert "a vector of 4 numbers; actions: discrete, 2; 1 environments" in found["open"].text
    assert re.search(r"\d+ ended \(\d+ terminated, 0 truncated\), .* steps each", found["episodes"].text)
    assert found["rewards"].text == "all are 1"
    assert "ms from an action to the next step" in found["speed"].text


@pytest.mark.parametrize(
    ("behavior", "name", "text"),
    [
        (leaves_at_the_first_break, "reconnects", "expected a new stream with 20 steps after UNAVAILABLE, got 0"),
        (always_comes_back, "ends", "connected again after OK, but the run is over"),
        (sends(opening(observations=())), "open", "at least one array, got none"),
        (sends(step()), "open", "the first message must be `open`"),
        (sends(opening(), step(), step(rewards=float("nan"))), "steps", "got 1; step 2: step.rewards: .* got nan"),
        (sends(opening(), step()), "steps", "expected 200 steps, got 1; no message for 1 s"),
        (sends(opening(), *[step()] * 200), "observations", "never change"),
    ],
    ids=["no retry", "too many retries", "wrong spaces", "no opening", "nan", "silent", "constant"],
)
def test_a_client_that_breaks_a_rule_fails_with_the_reason(behavior: Behavior, name: str, text: str) -> None:
    found = findings(behavior)
    assert found[name].passed is False
    assert re.search(text, found[name].text), found[name].text
    assert str(found[name]).startswith("FAIL")
    assert "\n" not in str(found[name])


SPECS = (
    discrete(NUMBERS, choices=(2, 3), masked=True),
    discrete(),
    mixed(),
    EnvironmentSpec("Box-v0", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0, 0.0), (1.0, 2.0))),
)


@pytest.mark.parametrize("spec", SPECS, ids=["mask", "discrete", "mixed", "box"])
def test_random_actions_are_legal(spec: EnvironmentSpec) -> None:
    rng = np.random.default_rng(0)
    observations = random_observations(rng, spec, 50) if spec.leaves else np.zeros((50, 3), np.float32)
    actions = random_actions(spec, observations, rng)
    assert actions.shape == (50, *spec.actions.shape)
    assert actions.dtype == spec.actions.dtype
    if spec.mask is not None:
        chosen = actions + np.array([0, 2])
        assert np.take_along_axis(views(spec.leaves, observations)["action_mask"], chosen, axis=1).all()
    if spec.components:
        low, high = spec.actions.bounds()
        assert ((actions >= low) & (actions <= high)).all()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["check", "0.0.0.0:50053"], "expected an address of this machine"),
        (["check", "50053"], "ADDRESS: expected HOST:PORT"),
        (["check"], "ADDRESS"),
        (["play", "127.0.0.1:0"], "play"),
        (["check", "127.0.0.1:0", "--steps", "1"], "20 to 10,000,000 steps"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], error: str) -> None:
    with pytest.raises(UserError, match=error):
        run(arguments)


def test_without_a_client_the_check_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "127.0.0.1:0", "--wait-s", "0.1"]) == 1
    printed = capsys.readouterr().out
    assert "connect the client to 127.0.0.1:" in printed
    assert "FAIL  open          expected a client; no message for 0.1 s" in printed
