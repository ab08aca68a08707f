"""Any stream of a simulator: each message is accepted, or refused with a documented error on one short line."""

import random
from typing import Any

import numpy as np
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actor_service.external.streams.door import Door, Host
from actor_service.external.streams.session import PlaySession
from actorq import wire
from actorq.config.sections import ExternalConfig
from actorq.domain.limits import LARGEST_NUMBER
from actorq.errors import ActorQError, ConflictError, ExhaustedError, InvalidInputError, UserError
from benchmarks.faults.fuzz.corpus import PLAY, play_step
from benchmarks.faults.fuzz.messages import altered, anything

REFUSALS = (InvalidInputError, UserError, ConflictError, ExhaustedError)
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**64)
OPENING, STEP = wire.play_opening_to_proto(PLAY), wire.play_step_to_proto(play_step())


def hostile(valid: Message, rng: random.Random) -> Any:
    """A message that may be valid."""
    chance = rng.random()
    if chance < 0.2:
        return valid
    return altered(valid, rng) if chance < 0.8 else anything(valid.DESCRIPTOR, rng)


def check_refusal(error: ActorQError) -> None:
    assert isinstance(error, REFUSALS), error
    assert str(error).isprintable()
    assert len(str(error)) < 1500


def opened(door: Door, message: Any) -> PlaySession | None:
    try:
        return door.open(wire.play_opening_from_proto(message), lambda reply: None)[0]
    except ActorQError as error:
        check_refusal(error)
        return None


@FUZZ
@given(seed=SEEDS)
def test_any_stream_is_accepted_or_refused_with_a_documented_error(seed: int) -> None:
    rng, door = random.Random(seed), Door(ExternalConfig())
    door.admit(Host("external/fuzz"))
    session = opened(door, hostile(OPENING, rng))
    if session is None:
        return
    for _ in range(5):
        try:
            arrival = session.accept(wire.play_step_from_proto(hostile(STEP, rng)))
        except InvalidInputError as error:
            check_refusal(error)
            break
        # What is accepted may be stored without a further check.
        assert arrival.observations.shape == (session.count, *session.spaces.spec.observations.shape)
        assert arrival.observations.dtype == session.spaces.spec.observations.dtype
        assert (np.abs(arrival.rewards) <= LARGEST_NUMBER).all()
        assert not ((arrival.terminated | arrival.truncated) & arrival.begins).any()
    door.leave(session)
    assert (door.streams, door.environments) == (0, 0)


@FUZZ
@given(seed=SEEDS)
def test_no_opening_changes_the_spaces_of_the_others(seed: int) -> None:
    rng, door = random.Random(seed), Door(ExternalConfig())
    door.admit(Host("external/fuzz"))
    first = opened(door, OPENING)
    assert first is not None
    other = opened(door, hostile(OPENING, rng))
    assert door.await_spec() == first.spaces.spec
    assert other is None or other.spaces.spec == first.spaces.spec
