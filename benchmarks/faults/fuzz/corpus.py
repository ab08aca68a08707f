"""A valid message of every type that services and clients decode, for fuzz.py and for tests of the wire."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from google.protobuf.message import Message

from actorq import wire
from actorq.domain.leaves import Leaf
from actorq.domain.lineage import Lineage
from actorq.domain.policy import (
    UNSIGNED,
    FidelityReport,
    LayerReport,
    OutputError,
    PolicyDescriptor,
    RefusedRung,
    RetainedPolicy,
    Variant,
)
from actorq.domain.processes import NodeEnergy, ProcessStats
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import (
    ActorReport,
    ActorSelfStatus,
    ActorStatus,
    DynamicCapacityStatus,
    Energy,
    EnvironmentReset,
    Exploration,
    Membership,
    Receipt,
    RolloutQueueStatus,
    RunSpec,
    RunState,
    RunStatus,
    StorageStatus,
)
from actorq.domain.trajectory import Episode, Evaluation, PolicySpan, Segment
from actorq.externalscaler import externalscaler_pb2
from actorq.v1 import actor_pb2, learner_pb2, policy_pb2, quantizer_pb2, tensor_pb2

_NOW = 1_700_000_000.25
_DIGEST = hashlib.sha256(b"").digest()
PROCESS = ProcessStats("actor-0", "actor", "node-a", 4711, _NOW, 12.5, 84 * 2**20, 96 * 2**20)
# Without a threshold: no evaluation ends the run.
ENVIRONMENT = EnvironmentSpec(
    "CartPole-v1", ArraySpec((4,), "float32", (-1.0,) * 4, (1.0,) * 4), ArraySpec((), "int64"), (2,), 500
)
REPORT = ActorReport(34, "fp32", 32_100, 742.5, 2, (0.034, 0.5), PROCESS, 12.5, "int8", 0.41)
PLAY = wire.PlayOpening(
    protocol=wire.PROTOCOL,
    environments=2,
    observations=(Leaf("joints", "numbers", (4,), "float32"), Leaf("legal", "mask", (2,), "bool")),
    actions=ArraySpec((), "int64"),
    sizes=(2,),
    max_episode_steps=500,
    reward_threshold=475.0,
)
EVALUATION = Evaluation(1, 35, 3500, "int8", (200.0, -13.5), (200, 14), 1.25)
DESCRIPTOR = PolicyDescriptor(
    run_id="run",
    version=35,
    learner_step=3500,
    scheme="int8",
    sha256=_DIGEST,
    size_bytes=0,
    fp32_size_bytes=20_480,
    snapshot_at=_NOW,
    fidelity=FidelityReport(
        256,
        0.002,
        0.01,
        0.001,
        0.004,
        0.992,
        (LayerReport("first", "float32", "first layer"), LayerReport("middle", "int8 per channel")),
        (OutputError("actions", (0.1, 0.2), (0.3, 0.5)),),
        True,
        (RefusedRung(("first",), 0.01, 0.02, 0.0),),
    ),
    graph_digest=_DIGEST,
)
# Every field differs from its default and from the others, so that a forgotten or swapped one shows.
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
    actors=(ActorStatus("actor-0", "actor", 3, True, REPORT), ActorStatus("evaluator", "evaluator", 1, False, None)),
    processes=(PROCESS, replace(PROCESS, name="learner")),
    energy=Energy(0.00123, 0.00045, "load x TDP 65 W", {"learner": 0.001, "actor": 0.00023}),
    starved_s=3.25,
    loss=0.015625,
    figures={"policy_loss": -1.5, "temperature": 0.25},
    activation_s=0.034,
    quantization_aware_since=400,
    replay_bytes=7 * 2**30,
    batch_bytes=28_901_376,
    multi_step_since=31_000,
    dynamic_capacity=DynamicCapacityStatus(48_000, 0.25, 3, 9_600),
    storage=StorageStatus(10**12, True, 4, 17, 2, 640),
    problem="actor-3: environment: expected the run's CartPole-v1",
    refused_environments=5,
    flagged_evaluation="version 35, by evaluator: too good",
    precision="bf16",
    rollout_queue=RolloutQueueStatus(2_048, 96, 0.0125, 0.0625, 1.5),
    exported_policy="s3://policies/run/policy.onnx",
    outdated="actor-3 has version 500, this learner knew 300",
)


def segment(sequence: int = 1, steps: int = 8, environments: int = 2) -> Segment:
    """Steps of CartPole with int8 policies."""
    rows = (steps, environments)
    return Segment(
        sequence=sequence,
        spans=(PolicySpan(0, 34, "int8"), PolicySpan(2, 35, "int8")),
        episodes=(Episode(21.0, 21, 0), Episode(9.0, 9, 1)),
        columns={
            "observations": np.zeros((steps + 1, environments, 4), np.float32),
            "actions": np.zeros(rows, np.int64),
            "rewards": np.ones(rows, np.float32),
            "terminated": np.zeros(rows, np.bool_),
            "truncated": np.zeros(rows, np.bool_),
            "valid": np.ones(rows, np.bool_),
            "ages": np.zeros(environments, np.uint8),
        },
    )


def play_step() -> wire.PlayStep:
    """A step of the simulator of `PLAY`."""
    flags = np.zeros(2, np.bool_)
    observations = (np.zeros((2, 4), np.float32), np.ones((2, 2), np.bool_))
    return wire.PlayStep(observations, np.ones(2), flags, flags, flags)


def _answers() -> list[Message]:
    """Messages that clients decode."""
    run = RunSpec("run", "CartPole-v1", 8, 16, 2**20, 2, "int8", 20, 250, 1.0, 0, columns=("greedy_actions",))
    exploration = Exploration((0.4, 0.002), (0.2, 0.2), 25_000)
    return [
        wire.membership_to_proto(Membership(run, 0, exploration, 0, 1, 1)),
        wire.run_status_to_proto(STATUS),
        wire.actor_self_status_to_proto(ActorSelfStatus("actor-0", "acting", REPORT, ENVIRONMENT)),
        wire.descriptor_to_proto(DESCRIPTOR),
        wire.receipt_to_proto(Receipt(35, (DESCRIPTOR,), 0.0125, 3, PROCESS)),
        wire.retained_to_proto(RetainedPolicy(35, 3500, (Variant("int8", UNSIGNED), Variant("fp32")), -3.5)),
        wire.environment_reset_to_proto(EnvironmentReset(Path("/data/run/before-reset-1"), ENVIRONMENT)),
        wire.stream_answer_to_proto(wire.StreamAnswer(7, 12, 5, evaluate_version=3)),
        wire.ready_to_proto(wire.Ready(35, (_DIGEST,), (tensor_pb2.BLOB_ENCODING_SPARSE,))),
    ]


def _requests() -> list[Message]:
    """Messages that services decode."""
    energy = wire.node_energy_to_proto(NodeEnergy("node-a", 0.1, 0.01, 0.0, 0.02, 100.0, "RAPL"))
    watch = learner_pb2.WatchStatusRequest()
    watch.period.FromSeconds(1)
    hold = quantizer_pb2.HoldPolicyRequest(version=1)
    hold.duration.FromSeconds(60)
    return [
        wire.joining_to_proto(wire.Joining("actor-0", 0, "actor", "1.0", epoch=3, newest_version=35)),
        wire.stream_opening_to_proto(wire.StreamOpening("actor-0", 0, ENVIRONMENT)),
        wire.environment_to_proto(ENVIRONMENT),
        wire.segment_to_proto(segment()),
        wire.episode_to_proto(Episode(-21.5, 812, 7)),
        wire.evaluation_to_proto(EVALUATION),
        wire.actor_report_to_proto(REPORT),
        wire.process_to_proto(PROCESS),
        wire.timestamp_to_proto(_NOW),
        wire.tensor_to_proto(np.zeros((2, 3), np.float32)),
        energy,
        learner_pb2.ReportEnergyRequest(energy=energy, processes=[wire.process_to_proto(PROCESS)]),
        learner_pb2.GetStatusRequest(),
        learner_pb2.PauseTrainingRequest(),
        learner_pb2.SaveCheckpointRequest(),
        watch,
        wire.opening_to_proto(wire.Opening("run", "int8", Lineage(3, (1, 2**64 - 1)))),
        quantizer_pb2.GraphHeader(digest=_DIGEST),
        wire.checkpoint_header_to_proto(wire.CheckpointHeader(35, 3500, _DIGEST, _NOW)),
        quantizer_pb2.WatchPoliciesRequest(
            scheme="int8",
            after_version=0,
            weight_encoding=policy_pb2.WEIGHT_ENCODING_UNSIGNED,
            encodings=[tensor_pb2.BLOB_ENCODING_SPARSE],
        ),
        quantizer_pb2.GetPolicyRequest(scheme="int8", version=0, encodings=[tensor_pb2.BLOB_ENCODING_SPARSE]),
        quantizer_pb2.GetFidelityReportRequest(scheme="int8", version=0),
        quantizer_pb2.ListPoliciesRequest(page_size=10, page_token="7"),
        hold,
        actor_pb2.GetActorStatusRequest(),
        wire.play_opening_to_proto(PLAY),
        wire.play_step_to_proto(play_step()),
        actor_pb2.EvaluateRequest(episodes=1, scheme="int8", policy_version=0, seed=1),
        externalscaler_pb2.ScaledObjectRef(name="actor", namespace="actorq", scalerMetadata={"a": "b"}),
        externalscaler_pb2.GetMetricsRequest(metricName="actorq-desired-actors"),
    ]


VALID: dict[str, Message] = {type(message).DESCRIPTOR.full_name: message for message in (*_requests(), *_answers())}
"""A valid message of each type, by the type's full name."""
