"""The messages of a simulator without an environment, as bytes: an opening, and steps that are always the same."""

from dataclasses import asdict, dataclass

import numpy as np

from actorq import wire
from actorq.domain.leaves import Leaf
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.v1 import external_pb2

CART_POLE = EnvironmentSpec("external/cart-pole", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,), 500, 475.0)


@dataclass(frozen=True)
class Messages:
    """The messages of a stream with one environment.

    opening, step, end: from the simulator; `end` is a step that ends the episode. ready, answer: from the actor.
    """

    opening: bytes
    step: bytes
    end: bytes
    ready: bytes
    answer: bytes

    def as_text(self) -> dict[str, str]:
        """The messages as hexadecimal text, for JSON."""
        return {name: message.hex() for name, message in asdict(self).items()}


def messages(spec: EnvironmentSpec = CART_POLE, explore: bool = True) -> Messages:
    """The messages of a simulator with these spaces. spec: with one array of numbers as observation."""
    seen = Leaf("", "numbers", spec.observations.shape, "float32")
    opening = wire.PlayOpening(
        *(wire.PROTOCOL, 1, (seen,), spec.actions, spec.sizes),
        max_episode_steps=spec.max_episode_steps or 0,
        reward_threshold=spec.reward_threshold,
        explore=explore,
    )
    ready = wire.play_ready_to_proto(wire.PlayReady(wire.PROTOCOL, "0" * 32, spec.environment_id, 60.0))
    actions = np.zeros((1, *spec.actions.shape), spec.actions.dtype)
    answer = wire.PlayAnswer(actions, np.ones(1, np.int64), "int8", np.zeros(1, np.bool_))
    return Messages(
        external_pb2.PlayRequest(open=wire.play_opening_to_proto(opening)).SerializeToString(),
        _step(spec, False),
        _step(spec, True),
        external_pb2.PlayResponse(ready=ready).SerializeToString(),
        external_pb2.PlayResponse(action=wire.play_answer_to_proto(answer)).SerializeToString(),
    )


def _step(spec: EnvironmentSpec, ends: bool) -> bytes:
    observations = np.full((1, *spec.observations.shape), 0.01, np.float32)
    flag, other = np.array([ends]), np.zeros(1, np.bool_)
    step = wire.PlayStep((observations,), np.ones(1), flag, other, np.zeros(0, np.bool_))
    return external_pb2.PlayRequest(step=wire.play_step_to_proto(step)).SerializeToString()
