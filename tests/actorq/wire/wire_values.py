"""Values of each kind that travels, and the way of a message through bytes."""

import math
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from actorq.domain.environments import EnvironmentArguments
from actorq.domain.policy import FidelityReport, LayerReport, OutputError, PolicyDescriptor, RefusedRung
from actorq.domain.status import (
    ActorReport,
    ActorStatus,
    DynamicCapacityStatus,
    Energy,
    Exploration,
    ProcessUsage,
    RunSpec,
    RunState,
    RunStatus,
    StorageStatus,
)
from actorq.domain.trajectory import ArraySpec, EnvironmentSpec, Evaluation
from actorq.telemetry.process_stats import ProcessStats

# Every field differs from its default and from the others, so that a forgotten or swapped one shows.
PROCESS = ProcessStats("actor-3", "actor", "node-b", 4711, 1_700_000_000.25, 12.5, 84 * 2**20, 96 * 2**20)
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
    topology=bytes(range(32, 64)),
    fidelity=replace(
        DESCRIPTOR.fidelity,
        outputs=(OutputError("actions", (0.1, 0.2), (0.3, 0.5)), OutputError("value", (0.0,), (0.0,))),
        passed=False,
        refused=(
            RefusedRung((), 0.1, 0.2, None, math.inf, math.inf),
            RefusedRung(("first",), 0.01, 0.02, 0.0, 0.003, 0.04),
            RefusedRung(("first",), 0.01, 0.02, 0.0),
        ),
        mean_kl=0.0,
        max_kl=0.05,
    ),
)
EXPLORATION = Exploration((0.4, 0.002, 0.0), (0.2,) * 3, 25_000, report_greedy=True)
EVALUATION = Evaluation(7, 35, 3500, "int8", (200.0, -13.5), (200, 14), 1.25)
REPORT = ActorReport(34, "fp32", 32_100, 742.5, 2, (0.034, 0.5), PROCESS, 12.5, "int8", 0.41)
ENVIRONMENT = EnvironmentSpec(
    environment_id="Pong-v5",
    observations=ArraySpec((84, 84, 4), "uint8", (0.0,), (255.0,)),
    actions=ArraySpec((), "int64"),
    discrete_actions=6,
    max_episode_steps=27_000,
    reward_threshold=18.5,
)
ARGUMENTS = EnvironmentArguments({"gravity": 5.0, "name": "hü"}, (("my_wrappers:Scaled", {"by": [1, None]}),))
RUN = RunSpec("run-1", "Pong-v5", 8, 16, 2**20, 3, "int8", 20, 250, 1.5, 32, 0.25, -150.0, ARGUMENTS)
STATUS = RunStatus(
    run_id="run-1",
    state=RunState.TRAINING,
    environment_id="Pong-v5",
    algorithm="dqn",
    elapsed_s=42.5,
    environment_steps=64_256,
    environment_steps_per_s=1484.5,
    updates=22_010,
    updates_per_s=921.5,
    samples_per_insert=21.75,
    episodes=812,
    training_return=-180.25,
    evaluation=EVALUATION,
    target_return=475.0,
    max_environment_steps=100_000,
    policy_version=36,
    staleness_p50=1.0,
    staleness_p99=3.0,
    emitted=DESCRIPTOR,
    quantizer_connected=True,
    actors=(ActorStatus("actor-3", "actor", 3, True, REPORT), ActorStatus("evaluator", "evaluator", 1, False, None)),
    processes=(ProcessUsage(PROCESS, 0.0001), ProcessUsage(replace(PROCESS, name="learner"), 0.0002)),
    energy=Energy(0.00123, 0.00045, "load x TDP 65 W", {"learner": 0.001, "actor": 0.00023}),
    starved_s=3.25,
    loss=0.015625,
    activation_s=0.034,
    quantization_aware_since=400,
    flagged_evaluation="version 35, by evaluator: too good",
    precision="bf16",
    exported_policy="s3://policies/run/policy.onnx",
    replay_bytes=7 * 2**30,
    batch_bytes=28_901_376,
    multi_step_since=31_000,
    dynamic_capacity=DynamicCapacityStatus(48_000, 0.25, 3, 9_600),
    problem="actor-3: environment: expected the run's CartPole-v1",
    refused_environments=2,
    storage=StorageStatus(10**12, True, 3, 17, 2, 640),
)


def transported(message: Message) -> Any:
    """The message as its receiver gets it."""
    return type(message).FromString(message.SerializeToString())
