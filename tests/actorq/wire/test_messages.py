"""Domain objects to messages and back, through bytes as on the wire."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from actorq import wire
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.policy import FidelityReport, LayerReport, OutputError, PolicyDescriptor, RefusedRung, RetainedPolicy
from actorq.domain.status import (
    ActorReport,
    ActorSelfStatus,
    ActorStatus,
    DynamicCapacityStatus,
    Energy,
    EnvironmentReset,
    Exploration,
    Membership,
    ProcessUsage,
    Receipt,
    RunSpec,
    RunState,
    RunStatus,
    StorageStatus,
)
from actorq.domain.trajectory import ArraySpec, EnvironmentSpec, Episode, Evaluation, PolicySpan, Segment
from actorq.errors import InvalidInputError
from actorq.telemetry.energy import NodeEnergy
from actorq.telemetry.process_stats import ProcessStats
from actorq.v1 import learner_pb2, process_pb2, tensor_pb2, trajectory_pb2

# Every field differs from its default and from the others, so that a forgotten or swapped one shows.
PROCESS = ProcessStats("actor-3", "actor", "node-b", 4711, 1_700_000_000.25, 12.5, 84 * 2**20, 96 * 2**20)
LAYERS = (LayerReport("first", "float32", "first layer"), LayerReport("middle", "int8 per channel"))
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
    actors=(
        ActorStatus("actor-3", "actor", 3, True, REPORT),
        ActorStatus("evaluator", "evaluator", 1, False, None),
    ),
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
MINIMAL_STATUS = replace(
    STATUS,
    training_return=None,
    evaluation=None,
    target_return=None,
    emitted=None,
    activation_s=None,
    quantization_aware_since=None,
    multi_step_since=None,
    dynamic_capacity=DynamicCapacityStatus(100, None, 0, 0),
    actors=(),
)

PAIRS = [
    (wire.process_to_proto, wire.process_from_proto, PROCESS),
    (
        wire.node_energy_to_proto,
        wire.node_energy_from_proto,
        NodeEnergy("node-b", 0.1, 0.2, 0.3, 0.4, 12.5, "load x TDP 65 W"),
    ),
    (wire.descriptor_to_proto, wire.descriptor_from_proto, DESCRIPTOR),
    (
        wire.descriptor_to_proto,
        wire.descriptor_from_proto,
        replace(DESCRIPTOR, fidelity=replace(DESCRIPTOR.fidelity, argmax_agreement=None, layers=())),
    ),
    (
        wire.descriptor_to_proto,
        wire.descriptor_from_proto,
        replace(DESCRIPTOR, fidelity=replace(DESCRIPTOR.fidelity, argmax_agreement=0.0)),
    ),
    (
        wire.descriptor_to_proto,
        wire.descriptor_from_proto,
        replace(DESCRIPTOR, fidelity=replace(DESCRIPTOR.fidelity, value_loss=0.25)),
    ),
    (wire.descriptor_to_proto, wire.descriptor_from_proto, REFUSED),
    (wire.retained_to_proto, wire.retained_from_proto, RetainedPolicy(35, 3500, ("int8", "fp32"), -3.5)),
    (wire.retained_to_proto, wire.retained_from_proto, RetainedPolicy(35, 3500, (), None)),
    (wire.retained_to_proto, wire.retained_from_proto, RetainedPolicy(35, 3500, (), 0.0)),
    (wire.receipt_to_proto, wire.receipt_from_proto, Receipt(35, (DESCRIPTOR, DESCRIPTOR), 0.0125, 3, PROCESS)),
    (
        wire.membership_to_proto,
        wire.membership_from_proto,
        Membership(RUN, 2, EXPLORATION, 17, 2**63, 2**63 - 1),
    ),
    (wire.membership_to_proto, wire.membership_from_proto, Membership(RUN, 0, None, 0, 1, 2)),
    (wire.actor_report_to_proto, wire.actor_report_from_proto, REPORT),
    (
        wire.actor_self_status_to_proto,
        wire.actor_self_status_from_proto,
        ActorSelfStatus("actor-3", "acting", REPORT, ENVIRONMENT),
    ),
    (
        wire.actor_self_status_to_proto,
        wire.actor_self_status_from_proto,
        ActorSelfStatus("actor-3", "connecting", REPORT, None),
    ),
    (wire.run_status_to_proto, wire.run_status_from_proto, STATUS),
    (wire.run_status_to_proto, wire.run_status_from_proto, MINIMAL_STATUS),
    (
        wire.environment_reset_to_proto,
        wire.environment_reset_from_proto,
        EnvironmentReset(Path("/data/run/before-reset-1"), ENVIRONMENT),
    ),
    (wire.environment_reset_to_proto, wire.environment_reset_from_proto, EnvironmentReset(None, None)),
    (wire.environment_to_proto, wire.environment_from_proto, ENVIRONMENT),
    (
        wire.environment_to_proto,
        wire.environment_from_proto,
        EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), 0),
    ),
    (wire.episode_to_proto, wire.episode_from_proto, Episode(-21.5, 812, 7)),
    (wire.joining_to_proto, wire.joining_from_proto, wire.Joining("actor-3", 17, "evaluator", "1.2.3")),
    (
        wire.stream_opening_to_proto,
        wire.stream_opening_from_proto,
        wire.StreamOpening("actor-3", 2**63 - 1, ENVIRONMENT, lost_through=812),
    ),
    (wire.stream_answer_to_proto, wire.stream_answer_from_proto, wire.StreamAnswer(7, 12, 5, evaluate_version=3)),
    (wire.stream_answer_to_proto, wire.stream_answer_from_proto, wire.StreamAnswer(7, 12, 5, stop=True)),
    (wire.opening_to_proto, wire.opening_from_proto, wire.Opening("run-1", "auto")),
    (
        wire.graph_header_to_proto,
        wire.graph_header_from_proto,
        wire.GraphHeader(bytes(range(32)), ("observations", "noise"), True, (2.0, 0.5)),
    ),
    (
        wire.checkpoint_header_to_proto,
        wire.checkpoint_header_from_proto,
        wire.CheckpointHeader(2**62 - 1, 3500, bytes(range(32)), 1_700_000_001.5),
    ),
    (
        wire.ready_to_proto,
        wire.ready_from_proto,
        wire.Ready(35, (bytes(range(32)), bytes(32)), (tensor_pb2.BLOB_ENCODING_SPARSE,)),
    ),
    (wire.evaluation_to_proto, wire.evaluation_from_proto, EVALUATION),
]


def transported(message: Message) -> Any:
    """The message as its receiver gets it."""
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize(("encode", "decode", "value"), PAIRS, ids=lambda value: getattr(value, "__name__", None))
def test_a_value_survives_the_wire(encode: Any, decode: Any, value: object) -> None:
    assert decode(transported(encode(value))) == value


def test_every_pair_of_converters_is_tried() -> None:
    tried = {encode.__name__ for encode, _, _ in PAIRS} | {decode.__name__ for _, decode, _ in PAIRS}
    own = {"role", "run_state", "tensor", "timestamp", "segment"}
    halves = {"upload_to_proto", "publication_to_proto"}
    halves |= {"encodings_from_proto", "processes_from_proto", "watch_period_from_proto"}
    halves |= {f"{name}_request_from_proto" for name in ("watch", "policy", "fidelity", "page", "hold", "evaluate")}
    converters = {name for name in wire.__all__ if name.endswith("_proto")}
    assert tried | {f"{name}_{way}_proto" for name in own for way in ("to", "from")} | halves == converters


@pytest.mark.parametrize("state", RunState)
def test_every_state_of_a_run_survives_the_wire(state: RunState) -> None:
    assert wire.run_state_from_proto(wire.run_state_to_proto(state)) is state


def test_every_state_on_the_wire_is_a_state_of_a_run() -> None:
    values: Any = set(learner_pb2.RunState.values()) - {learner_pb2.RUN_STATE_UNSPECIFIED}
    assert {wire.run_state_from_proto(value) for value in values} == set(RunState)


@pytest.mark.parametrize("value", [learner_pb2.RUN_STATE_UNSPECIFIED, 99])
def test_an_unknown_state_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"state: must be a state of a run, got run state {value}"):
        wire.run_state_from_proto(value)


def test_only_actors_and_evaluators_join() -> None:
    assert wire.role_from_proto(wire.role_to_proto("actor")) == "actor"
    assert wire.role_from_proto(wire.role_to_proto("evaluator")) == "evaluator"
    with pytest.raises(InvalidInputError, match="must be one of actor, evaluator to join a run, got 'standalone'"):
        wire.role_to_proto("standalone")
    for value in (learner_pb2.ACTOR_ROLE_UNSPECIFIED, 99):
        with pytest.raises(InvalidInputError, match="must be ACTOR_ROLE_ACTOR or ACTOR_ROLE_EVALUATOR"):
            wire.role_from_proto(value)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.floats(10**9, 4 * 10**9))
def test_a_timestamp_arrives_exactly(unix_seconds: float) -> None:
    assert wire.timestamp_from_proto(transported(wire.timestamp_to_proto(unix_seconds))) == unix_seconds


DTYPES = ("float32", "float64", "uint8", "int8", "int32", "int64", "bool")
tensors = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


@settings(max_examples=60, deadline=None)
@given(tensors)
def test_a_tensor_of_any_dtype_and_shape_survives_the_wire(array: np.ndarray[Any, Any]) -> None:
    received = wire.tensor_from_proto(transported(wire.tensor_to_proto(array)))
    assert received.dtype == array.dtype
    assert received.shape == array.shape
    assert received.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_tensors_and_scalars_survive_the_wire(dtype: str) -> None:
    for array in (np.ones((), dtype), np.ones((0,), dtype), np.ones((3, 0, 2), dtype)):
        received = wire.tensor_from_proto(transported(wire.tensor_to_proto(array)))
        assert (received.dtype, received.shape) == (array.dtype, array.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_big_endian_values_arrive_as_the_same_numbers(dtype: str) -> None:
    array = np.arange(6, dtype=np.dtype(dtype).newbyteorder(">")).reshape(2, 3)
    message = wire.tensor_to_proto(array)
    assert message.data == np.arange(6, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()
    np.testing.assert_array_equal(wire.tensor_from_proto(message), array)


def test_views_that_are_not_contiguous_are_sent_in_c_order() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (array.T, array[:, ::-1, ::2], np.asfortranarray(array), np.broadcast_to(array[:1], (5, 3, 4))):
        np.testing.assert_array_equal(wire.tensor_from_proto(wire.tensor_to_proto(view)), view)


def test_a_received_tensor_cannot_be_written_to() -> None:
    received = wire.tensor_from_proto(wire.tensor_to_proto(np.zeros(3, np.float32)))
    assert not received.flags.writeable


def test_a_tensor_costs_little_more_than_its_bytes() -> None:
    message = wire.tensor_to_proto(np.zeros((17, 8, 84, 84), np.uint8))
    assert message.ByteSize() - 17 * 8 * 84 * 84 < 32


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (
            tensor_pb2.Tensor(shape=[1], data=bytes(4)),
            "tensor: dtype must be one of float32, float64, uint8, int8, int32, int64, bool, got data type 0",
        ),
        (
            tensor_pb2.Tensor(dtype=99, shape=[1], data=bytes(4)),  # type: ignore[arg-type]
            "tensor: dtype must be one of float32, float64, uint8, int8, int32, int64, bool, got data type 99",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[2, 3], data=bytes(23)),
            "tensor: float32[2, 3] must have 24 bytes, got 23",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_INT64, shape=[], data=b""),
            "tensor: int64[] must have 8 bytes, got 0",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=[2**62, 2**62], data=bytes(1)),
            f"tensor: shape must have at most 2097152 bytes, got [{2**62}, {2**62}]",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=[-1, -1], data=bytes(1)),
            "tensor: shape must not be negative, got [-1, -1]",
        ),
        (
            tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_BOOL, shape=[3], data=b"\0\1\2"),
            "tensor: bool elements must be 0 or 1",
        ),
    ],
)
def test_a_malformed_tensor_is_refused(message: tensor_pb2.Tensor, fault: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        wire.tensor_from_proto(message)
    assert str(caught.value) == fault


@pytest.mark.parametrize(
    ("shape", "fault"),
    [([0, 2**62, 2**62], "shape must have at most 2097152 bytes"), ([1] * 33, "must have at most 32 dimensions")],
)
def test_a_shape_that_no_message_can_hold_is_refused(shape: list[int], fault: str) -> None:
    data = b"" if 0 in shape else b"1"
    message = tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=shape, data=data)
    with pytest.raises(InvalidInputError, match=f"tensor: {fault}"):
        wire.tensor_from_proto(message)
    spec = tensor_pb2.TensorSpec(dtype=tensor_pb2.DATA_TYPE_UINT8, shape=shape)
    environment = wire.environment_to_proto(ENVIRONMENT)
    environment.observations.CopyFrom(spec)
    with pytest.raises(InvalidInputError, match=f"tensor: {fault}"):
        wire.environment_from_proto(environment)


@pytest.mark.parametrize("dtype", ["float16", "uint16", "complex64", "U3", "datetime64[s]", "O"])
def test_an_array_of_another_dtype_is_not_sent(dtype: str) -> None:
    with pytest.raises(InvalidInputError, match=r"tensor: dtype must be one of float32, .*, bool, got "):
        wire.tensor_to_proto(np.zeros(2, dtype))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"environment_id": ""}, "environment.environment_id: must not be empty"),
        ({"environment_arguments": "[1]"}, "environment_arguments: expected JSON as"),
        ({"environment_arguments": "1" * 9000}, "environment_arguments: must have at most 8192 bytes"),
        ({"observations": tensor_pb2.TensorSpec(shape=[3])}, "tensor: dtype must be one of .*, got data type 0"),
        (
            {"actions": tensor_pb2.TensorSpec(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[-3])},
            r"tensor: shape must not be negative, got \[-3\]",
        ),
    ],
)
def test_a_malformed_environment_is_refused(changes: dict[str, Any], fault: str) -> None:
    message = wire.environment_to_proto(ENVIRONMENT)
    for name, value in changes.items():
        message.ClearField(name)
        message.MergeFrom(trajectory_pb2.EnvironmentSpec(**{name: value}))
    with pytest.raises(InvalidInputError, match=fault):
        wire.environment_from_proto(message)


def test_an_environment_of_a_dtype_that_cannot_travel_is_not_sent() -> None:
    spec = replace(ENVIRONMENT, observations=ArraySpec((3,), "float16"))
    with pytest.raises(InvalidInputError, match="got float16"):
        wire.environment_to_proto(spec)


@pytest.mark.parametrize("spec", [ENVIRONMENT, replace(ENVIRONMENT, environment_arguments=ARGUMENTS)])
def test_an_environment_survives_the_wire_and_json(spec: EnvironmentSpec) -> None:
    assert wire.environment_from_proto(wire.environment_to_proto(spec)) == spec
    assert EnvironmentSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("returns", "lengths", "fault"),
    [
        ((), (), "at least one, got 0 returns and 0 lengths"),
        ((1.0, 2.0), (3,), "as many returns as lengths .* got 2 returns and 1 lengths"),
        ((1.0, float("nan")), (3, 4), r"returns: must be -1e\+30 to 1e\+30, got nan"),
        ((float("-inf"),), (3,), r"returns: must be -1e\+30 to 1e\+30, got -inf"),
    ],
)
def test_a_malformed_evaluation_is_refused(returns: tuple[float, ...], lengths: tuple[int, ...], fault: str) -> None:
    message = wire.evaluation_to_proto(replace(EVALUATION, returns=returns, lengths=lengths))
    with pytest.raises(InvalidInputError, match=f"evaluation.*{fault}"):
        wire.evaluation_from_proto(message)


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -1.0])
def test_an_impossible_report_is_refused(figure: float) -> None:
    for report in (replace(REPORT, steps_per_second=figure), replace(REPORT, waited_seconds=figure)):
        message = wire.actor_report_to_proto(report)
        with pytest.raises(InvalidInputError, match=r"report\.[a-z_]+: must be 0\.0 to 1000000000000\.0, got"):
            wire.actor_report_from_proto(message)
    message = wire.actor_report_to_proto(replace(REPORT, activation_seconds=(0.1, figure)))
    with pytest.raises(InvalidInputError, match=r"report\.[a-z_]+: must be 0\.0 to 1000000000000\.0, got"):
        wire.actor_report_from_proto(message)


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -1.0])
def test_an_impossible_processor_time_is_refused(figure: float) -> None:
    message = wire.process_to_proto(replace(PROCESS, cpu_seconds=figure))
    with pytest.raises(InvalidInputError, match=r"process\.cpu_seconds: must be 0\.0 to 1000000000000\.0, got"):
        wire.process_from_proto(message)


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -1.0])
def test_an_impossible_energy_is_refused(figure: float) -> None:
    message = process_pb2.NodeEnergy(node="node-a", cpu_kwh=figure, method="meter")
    with pytest.raises(InvalidInputError, match=r"energy\.cpu_kwh: must be 0\.0 to 1000000000000\.0, got"):
        wire.node_energy_from_proto(message)


@pytest.mark.parametrize("figure", [float("nan"), -0.1, 1e31])
def test_an_impossible_divergence_is_refused(figure: float) -> None:
    rung = REFUSED.fidelity.refused[0]
    for fidelity in (
        replace(REFUSED.fidelity, mean_kl=figure),
        replace(REFUSED.fidelity, max_kl=figure),
        replace(REFUSED.fidelity, refused=(replace(rung, mean_kl=figure),)),
        replace(REFUSED.fidelity, refused=(replace(rung, max_kl=figure),)),
    ):
        message = wire.descriptor_to_proto(replace(REFUSED, fidelity=fidelity))
        with pytest.raises(InvalidInputError, match=r"fidelity\.(mean|max)_kl: must be 0\.0 to 1e\+30, got"):
            wire.descriptor_from_proto(message)


def test_energy_of_no_node_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"energy\.node: must not be empty"):
        wire.node_energy_from_proto(process_pb2.NodeEnergy(method="meter"))


def segment(steps: int, environments: int, *observation: int, dtype: str = "float32") -> Segment:
    rng = np.random.default_rng(1)
    batch = (steps, environments)
    return Segment(
        sequence=18,
        observations=rng.integers(0, 255, (steps + 1, environments, *observation)).astype(dtype),
        actions=rng.integers(0, 6, batch),
        rewards=rng.normal(size=batch).astype(np.float32),
        terminated=rng.random(batch) < 0.1,
        truncated=rng.random(batch) < 0.1,
        valid=rng.random(batch) < 0.9,
        spans=(PolicySpan(0, 34, "fp32"), PolicySpan(2, 35, "int8")),
        ages=np.zeros(environments, np.uint8),
        episodes=(Episode(21.0, 21, 0), Episode(-3.5, 9, 1)),
    )


def test_a_segment_survives_the_wire() -> None:
    sent = segment(4, 3, 5)
    received = wire.segment_from_proto(transported(wire.segment_to_proto(sent)))
    assert (received.sequence, received.spans, received.episodes) == (sent.sequence, sent.spans, sent.episodes)
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(received, name), getattr(sent, name), strict=True)


def test_greedy_actions_travel_where_there_are_any() -> None:
    sent = replace(segment(4, 3, 5), greedy_actions=np.random.default_rng(2).normal(size=(4, 3, 2)).astype(np.float32))
    received = wire.segment_from_proto(transported(wire.segment_to_proto(sent)))
    np.testing.assert_array_equal(received.greedy_actions, sent.greedy_actions, strict=True)
    without = wire.segment_to_proto(segment(4, 3, 5))
    assert not without.HasField("greedy_actions")
    assert wire.segment_from_proto(transported(without)).greedy_actions is None


@pytest.mark.parametrize("follows", [False, True])
def test_a_segment_tells_whether_it_follows_the_one_before(follows: bool) -> None:
    sent = replace(segment(4, 3, 5), follows=follows)
    assert wire.segment_from_proto(transported(wire.segment_to_proto(sent))).follows is follows


def test_a_segment_with_a_broken_column_is_refused() -> None:
    message = wire.segment_to_proto(segment(4, 3, 5))
    message.rewards.data = message.rewards.data[:-1]
    with pytest.raises(InvalidInputError, match=r"tensor: float32\[4, 3\] must have 48 bytes, got 47"):
        wire.segment_from_proto(message)


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        # 8 steps of 8 CartPoles: 72 x 16 bytes of observations and 64 x 15 of everything else.
        (wire.segment_to_proto(segment(8, 8, 4)), 2_112 + 250),
        (wire.run_status_to_proto(STATUS), 1_000),
        (wire.descriptor_to_proto(DESCRIPTOR), 250),
        (wire.actor_report_to_proto(REPORT), 150),
        (wire.environment_to_proto(ENVIRONMENT), 100),
    ],
    ids=["segment", "status", "descriptor", "report", "environment"],
)
def test_a_message_stays_small(message: Message, limit: int) -> None:
    assert message.ByteSize() < limit
