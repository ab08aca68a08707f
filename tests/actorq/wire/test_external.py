"""Messages of simulators: what is refused before an actor looks at it."""

from typing import Any

import numpy as np
import pytest

from actorq import wire
from actorq.errors import InvalidInputError
from actorq.v1 import external_pb2
from benchmarks.faults.fuzz.corpus import PLAY, play_step
from tests.actorq.wire.wire_values import transported


def test_a_step_survives_the_wire() -> None:
    sent = play_step()
    found = wire.play_step_from_proto(transported(wire.play_step_to_proto(sent)))
    for one, other in zip(sent.observations, found.observations, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    for name in ("rewards", "terminated", "truncated", "successes"):
        np.testing.assert_array_equal(getattr(sent, name), getattr(found, name), strict=True)


def test_a_simulator_explores_unless_it_says_otherwise() -> None:
    message = wire.play_opening_to_proto(PLAY)
    message.ClearField("explore")
    message.ClearField("frame_stack")
    found = wire.play_opening_from_proto(message)
    assert (found.explore, found.frame_stack) == (True, 1)
    message.explore = False
    assert wire.play_opening_from_proto(message).explore is False


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"environments": 0}, "open.environments: must be 1 to 65536, got 0"),
        ({"frame_stack": 257}, "open.frame_stack: must be 0 to 256, got 257"),
        ({"sizes": [0]}, "open.sizes: must be 1 to 65536, got 0"),
        ({"sizes": [2] * 1025}, "open.sizes: must have at most 1024 items, got 1025"),
        ({"reward_threshold": float("nan")}, "open.reward_threshold: must be .* got nan"),
    ],
)
def test_an_opening_out_of_range_is_refused(changed: dict[str, Any], error: str) -> None:
    message = wire.play_opening_to_proto(PLAY)
    for name in changed:
        message.ClearField(name)
    message.MergeFrom(external_pb2.PlayOpen(**changed))
    if changed.get("environments") == 0:
        message.environments = 0
    with pytest.raises(InvalidInputError, match=error):
        wire.play_opening_from_proto(message)


def test_an_array_of_a_kind_that_it_does_not_fit_is_refused_with_its_name() -> None:
    message = wire.play_opening_to_proto(PLAY)
    message.observations[0].spec.shape.append(3)
    with pytest.raises(InvalidInputError, match=r"open.observations: joints: numbers must have 1 axes"):
        wire.play_opening_from_proto(message)


@pytest.mark.parametrize("name", ["rewards", "terminated", "truncated", "successes"])
def test_a_step_of_too_many_environments_is_refused(name: str) -> None:
    message = wire.play_step_to_proto(play_step())
    getattr(message, name).extend([0] * 65_536)
    with pytest.raises(InvalidInputError, match=f"step.{name}: must have at most 65536 items"):
        wire.play_step_from_proto(message)


def test_the_answers_of_an_actor_are_messages() -> None:
    ready = wire.play_ready_to_proto(wire.PlayReady(1, "run", "external/pole", 1.5))
    assert (ready.protocol, ready.run_id, ready.timeout.ToMilliseconds()) == (1, "run", 1500)
    flags = np.array([True, False])
    answer = wire.PlayAnswer(np.array([1, 0]), np.array([7, 8]), "int8", flags)
    sent = transported(wire.play_answer_to_proto(answer))
    assert wire.tensor_from_proto(sent.actions).tolist() == [1, 0]
    assert (list(sent.policy_versions), sent.scheme, list(sent.evaluating)) == ([7, 8], "int8", [True, False])
