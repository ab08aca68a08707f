"""Values of each kind that is sent, and the conversion of a message to bytes and back."""

import math
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from actorq.domain.environments import EnvironmentArguments
from actorq.domain.policy import FidelityReport, LayerReport, OutputError, PolicyDescriptor, RefusedRung, SequenceError
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import Exploration, RunSpec
from benchmarks.faults.fuzz import corpus

# Every field differs from its default and from the other fields. A missing or swapped field is therefore detected.
DESCRIPTOR = PolicyDescriptor(
    run_id="CartPole-v1-20260102-030405",
    version=35,
    learner_step=3500,
    scheme="int8",
    sha256=bytes(range(32)),
    size_bytes=9_812,
    fp32_size_bytes=20_480,
    snapshot_at=1_700_000_001.5,
    fidelity=FidelityReport(
        256,
        0.002,
        0.01,
        0.001,
        0.004,
        0.992,
        (LayerReport("first", "float32", "first layer"), LayerReport("middle", "int8 per channel")),
    ),
)
REFUSED = replace(
    DESCRIPTOR,
    graph_digest=bytes(range(32, 64)),
    fidelity=replace(
        DESCRIPTOR.fidelity,
        outputs=(OutputError("actions", (0.1, 0.2), (0.3, 0.5)), OutputError("value", (0.0,), (0.0,))),
        passed=False,
        refused=(
            RefusedRung((), 0.1, 0.2, None, math.inf, math.inf, state_drift=0.5),
            RefusedRung(("first",), 0.01, 0.02, 0.0, 0.003, 0.04),
            RefusedRung(("first",), 0.01, 0.02, 0.0),
        ),
        mean_kl=0.0,
        max_kl=0.05,
        sequences=(
            SequenceError(1, 16, 0.001, 0.004, 0.002, 0.0, math.inf),
            SequenceError(64, 16, 0.002, 0.02, 0.01, 0.003, 0.03),
        ),
    ),
)
EXPLORATION = Exploration((0.4, 0.002, 0.0), (0.2,) * 3, 25_000)
ENVIRONMENT = EnvironmentSpec(
    environment_id="Pong-v5",
    observations=ArraySpec((84, 84, 4), "uint8", (0.0,), (255.0,)),
    actions=ArraySpec((), "int64"),
    sizes=(6,),
    max_episode_steps=27_000,
    reward_threshold=18.5,
)
ARGUMENTS = EnvironmentArguments({"gravity": 5.0, "name": "hü"}, (("my_wrappers:Scaled", {"by": [1, None]}),))
RUN = RunSpec("run-1", "Pong-v5", 8, 16, 2**20, 3, "int8", 20, 250, 1.5, 32, 0.25, -150.0, ARGUMENTS)
STATUS = replace(corpus.STATUS, emitted=DESCRIPTOR)


def transported(message: Message) -> Any:
    """The message as its receiver decodes it."""
    return type(message).FromString(message.SerializeToString())
