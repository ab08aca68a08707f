"""Domain objects survive the conversion to messages and back, through bytes."""

import json
import pkgutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq import wire
from actorq.domain import limits
from actorq.domain.goals import Goal
from actorq.domain.limits import MAX_MESSAGE_BYTES
from actorq.domain.lineage import Lineage
from actorq.domain.policy import UNSIGNED, OutputError, RetainedPolicy, Variant
from actorq.domain.processes import NodeEnergy
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import ActorSelfStatus, DynamicCapacityStatus, EnvironmentReset, Membership, Receipt, RunState
from actorq.domain.trajectory import Episode, Evaluation, PolicySpan, Segment
from actorq.errors import InvalidInputError
from actorq.v1 import learner_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Pair
from benchmarks.faults.fuzz.corpus import EVALUATION, PLAY, PROCESS, REPORT
from tests.actorq.wire.wire_values import (
    ARGUMENTS,
    DESCRIPTOR,
    ENVIRONMENT,
    EXPLORATION,
    REFUSED,
    RUN,
    STATUS,
    transported,
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
PAIRS: list[tuple[str, object]] = [
    ("process", PROCESS),
    ("node_energy", NodeEnergy("node-b", 0.1, 0.2, 0.3, 0.4, 12.5, "load x TDP 65 W")),
    ("descriptor", DESCRIPTOR),
    ("descriptor", replace(DESCRIPTOR, fidelity=replace(DESCRIPTOR.fidelity, argmax_agreement=None, layers=()))),
    ("descriptor", replace(DESCRIPTOR, fidelity=replace(DESCRIPTOR.fidelity, argmax_agreement=0.0))),
    ("descriptor", replace(DESCRIPTOR, fidelity=replace(DESCRIPTOR.fidelity, value_loss=0.25))),
    ("descriptor", REFUSED),
    ("retained", RetainedPolicy(35, 3500, (Variant("int8"), Variant("int8", UNSIGNED), Variant("fp32")), -3.5)),
    ("retained", RetainedPolicy(35, 3500, (), None)),
    ("retained", RetainedPolicy(35, 3500, (), 0.0)),
    ("receipt", Receipt(35, (DESCRIPTOR, DESCRIPTOR), 0.0125, 3, PROCESS)),
    ("membership", Membership(RUN, 2, EXPLORATION, 17, 2**63, 2**63 - 1, epoch=60_000_000)),
    ("membership", Membership(RUN, 0, None, 0, 1, 2)),
    ("actor_report", REPORT),
    ("actor_self_status", ActorSelfStatus("actor-3", "acting", REPORT, ENVIRONMENT)),
    ("actor_self_status", ActorSelfStatus("actor-3", "connecting", REPORT, None)),
    ("run_status", STATUS),
    ("run_status", MINIMAL_STATUS),
    ("environment_reset", EnvironmentReset(Path("/data/run/before-reset-1"), ENVIRONMENT)),
    ("environment_reset", EnvironmentReset(None, None)),
    ("environment", ENVIRONMENT),
    ("environment", replace(ENVIRONMENT, agents=("red", "green"))),
    (
        "environment",
        EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), ()),
    ),
    (
        "environment",
        EnvironmentSpec(
            *("Reach-v0", ArraySpec((9,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), (), 50),
            goal=Goal(achieved=0, desired=6, size=3),
        ),
    ),
    ("episode", Episode(-21.5, 812, 7)),
    ("episode", Episode(-21.5, 812, 7, success=True)),
    ("episode", Episode(-21.5, 812, 7, success=False)),
    ("episode", Episode(-21.5, 812, 7, agent_returns=(-20.0, -1.5))),
    ("evaluation", Evaluation(1, 35, 3500, "int8", (1.0, -3.5), (200, 14), 1.25, (True, False))),
    ("evaluation", Evaluation(1, 35, 3500, "int8", (1.0,), (200,), 1.25, (), ("red", "green"), (1.5, -0.5))),
    ("run_status", replace(STATUS, agent_returns={"red": 1.5, "green": -0.5})),
    ("membership", Membership(replace(RUN, target_return=None, target_success=0.95), 0, None, 0, 1, 2)),
    ("run_status", replace(STATUS, target_return=None, target_success=0.95)),
    ("joining", wire.Joining("actor-3", 17, "evaluator", "1.2.3", 2**64 - 1, 2**31 - 1, 2**62 - 1)),
    ("stream_opening", wire.StreamOpening("actor-3", 2**63 - 1, ENVIRONMENT, lost_through=812)),
    ("stream_answer", wire.StreamAnswer(7, 12, 5, evaluate_version=3)),
    ("stream_answer", wire.StreamAnswer(7, 12, 5, stop=True)),
    ("opening", wire.Opening("run-1", "auto")),
    ("opening", wire.Opening("run-1", "int8", Lineage(2**31 - 1, (0, 2**64 - 1)))),
    ("checkpoint_header", wire.CheckpointHeader(2**62 - 1, 3500, bytes(range(32)), 1_700_000_001.5)),
    ("ready", wire.Ready(35, (bytes(range(32)), bytes(32)), (tensor_pb2.BLOB_ENCODING_SPARSE,))),
    ("evaluation", EVALUATION),
    ("play_opening", PLAY),
    ("play_opening", replace(PLAY, reward_threshold=-3.5, frame_stack=4, explore=False)),
]


@pytest.mark.parametrize(("name", "value"), PAIRS, ids=[name for name, _ in PAIRS])
def test_a_value_survives_the_wire(name: str, value: object) -> None:
    encode, decode = getattr(wire, f"{name}_to_proto"), getattr(wire, f"{name}_from_proto")
    assert decode(transported(encode(value))) == value


def test_every_pair_of_converters_is_tested() -> None:
    pairs = {name for name, _ in PAIRS} | {"role", "run_state", "tensor", "segment", "play_step"}
    halves = {"upload_to_proto", "publication_to_proto", "timestamp_to_proto"}
    halves |= {"play_ready_to_proto", "play_answer_to_proto"}
    halves |= {"processes_from_proto", "watch_period_from_proto", "variant_to_proto"}
    halves |= {f"{name}_request_from_proto" for name in ("watch", "policy", "fidelity", "page", "hold", "evaluate")}
    converters = {name for name in vars(wire) if name.endswith("_proto")}
    assert {f"{name}_{way}_proto" for name in pairs for way in ("to", "from")} | halves == converters


MODULES = [import_module(f"actorq.wire.{module.name}") for module in pkgutil.iter_modules(wire.__path__)]
FOUND = [getattr(value, "__self__", value) for module in MODULES for value in vars(module).values()]
DECLARED = {id(pair): pair for pair in FOUND if isinstance(pair, Pair)}.values()
# Fields that functions convert, that objects derive from others, or that are not sent.
ELSEWHERE = {
    "EnvironmentSpec": {"parts", "action_parts"},
    "GetFidelityReportRequest": {"encodings", "weight_encoding"},
    "Leaf": {"spec", "shape", "dtype"},
    "NodeEnergy": {"tdp_watts"},
    "PublishOpen": {"run_id", "scheme", "learner", "epoch", "lineage"},
    "RunStatus": {"staleness", "staleness_p50", "staleness_p99"},
    "StreamTrajectoriesResponse": {"stop"},
}


@pytest.mark.parametrize("pair", DECLARED, ids=[pair.message.DESCRIPTOR.name for pair in DECLARED])
def test_a_pair_has_all_fields_of_its_message_and_its_object(pair: Pair[Any, Any]) -> None:
    made = pair.domain if isinstance(pair.domain, type) else get_type_hints(pair.domain)["return"]
    own, theirs = {field[0] for field in pair.fields}, {field[1] for field in pair.fields}
    elsewhere = ELSEWHERE.get(pair.message.DESCRIPTOR.name, set()) | {"contract"}
    assert set(get_type_hints(made)) - own <= elsewhere
    assert set(pair.message.DESCRIPTOR.fields_by_name) - theirs <= elsewhere


@pytest.mark.parametrize("state", RunState)
def test_every_state_of_a_run_survives_the_wire(state: RunState) -> None:
    assert wire.run_state_from_proto(wire.run_state_to_proto(state)) is state


def test_every_state_on_the_wire_is_a_state_of_a_run() -> None:
    values: Any = set(learner_pb2.RunState.values()) - {learner_pb2.RUN_STATE_UNSPECIFIED}
    assert {wire.run_state_from_proto(value) for value in values} == set(RunState)


def test_only_actors_and_evaluators_join() -> None:
    assert wire.role_from_proto(wire.role_to_proto("actor")) == "actor"
    assert wire.role_from_proto(wire.role_to_proto("evaluator")) == "evaluator"
    with pytest.raises(InvalidInputError, match=r"actor.*evaluator.*standalone"):
        wire.role_to_proto("standalone")
    for value in (learner_pb2.ACTOR_ROLE_UNSPECIFIED, 99):
        with pytest.raises(InvalidInputError, match=r"ACTOR_ROLE_ACTOR.*ACTOR_ROLE_EVALUATOR"):
            wire.role_from_proto(value)


@settings(deadline=None)
@given(st.floats(10**9, 4 * 10**9))
def test_a_timestamp_arrives_exactly(unix_seconds: float) -> None:
    assert bounds.unix_seconds("time", transported(wire.timestamp_to_proto(unix_seconds))) == unix_seconds


@pytest.mark.parametrize("spec", [ENVIRONMENT, replace(ENVIRONMENT, environment_arguments=ARGUMENTS)])
def test_an_environment_survives_the_wire_and_json(spec: EnvironmentSpec) -> None:
    assert wire.environment_from_proto(wire.environment_to_proto(spec)) == spec
    assert EnvironmentSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def segment(steps: int, environments: int, *observation: int, dtype: str = "float32") -> Segment:
    rng = np.random.default_rng(1)
    batch = (steps, environments)
    return Segment(
        sequence=18,
        spans=(PolicySpan(0, 34, "fp32"), PolicySpan(2, 35, "int8")),
        episodes=(Episode(21.0, 21, 0), Episode(-3.5, 9, 1)),
        columns={
            "observations": rng.integers(0, 255, (steps + 1, environments, *observation)).astype(dtype),
            "actions": rng.integers(0, 6, batch),
            "rewards": rng.normal(size=batch).astype(np.float32),
            "terminated": rng.random(batch) < 0.1,
            "truncated": rng.random(batch) < 0.1,
            "valid": rng.random(batch) < 0.9,
            "ages": np.zeros(environments, np.uint8),
        },
    )


def test_a_segment_survives_the_wire() -> None:
    sent = segment(4, 3, 5).with_columns(another=np.arange(12, dtype=np.float32).reshape(4, 3))
    received = wire.segment_from_proto(transported(wire.segment_to_proto(sent)))
    assert (received.sequence, received.spans, received.episodes) == (sent.sequence, sent.spans, sent.episodes)
    assert list(received.columns) == list(sent.columns)
    for name, column in sent.columns.items():
        np.testing.assert_array_equal(received.columns[name], column, strict=True)


@pytest.mark.parametrize("follows", [False, True])
def test_a_segment_keeps_whether_it_follows_the_previous_one(follows: bool) -> None:
    sent = replace(segment(4, 3, 5), follows=follows)
    assert wire.segment_from_proto(transported(wire.segment_to_proto(sent))).follows is follows


def test_a_segment_with_a_broken_column_is_refused() -> None:
    message = wire.segment_to_proto(segment(4, 3, 5))
    rewards = next(column.values for column in message.columns if column.name == "rewards")
    rewards.data = rewards.data[:-1]
    with pytest.raises(InvalidInputError, match=r"float32\[4, 3\] .* 48 .* 47"):
        wire.segment_from_proto(message)


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        # 8 steps of 8 CartPoles: 72 x 16 bytes of observations and 64 x 15 of everything else.
        (wire.segment_to_proto(segment(8, 8, 4)), 2_112 + 250),
        (wire.run_status_to_proto(STATUS), 1_200),
        (wire.descriptor_to_proto(DESCRIPTOR), 250),
        (wire.actor_report_to_proto(REPORT), 150),
        (wire.environment_to_proto(ENVIRONMENT), 100),
    ],
    ids=["segment", "status", "descriptor", "report", "environment"],
)
def test_a_message_stays_small(message: Message, limit: int) -> None:
    assert message.ByteSize() < limit


def test_a_receipt_for_a_policy_of_very_many_actions_in_all_schemes_fits_a_message() -> None:
    many = tuple(0.5 for _ in range(limits.MAX_OUTPUT_COMPONENTS))
    large = replace(DESCRIPTOR, fidelity=replace(DESCRIPTOR.fidelity, outputs=(OutputError("q_values", many, many),)))
    receipt = Receipt(35, (large,) * 5, 0.0125, 3, PROCESS)

    message = wire.receipt_to_proto(receipt)

    assert message.ByteSize() < MAX_MESSAGE_BYTES
    without = replace(large, fidelity=replace(large.fidelity, outputs=()))
    assert wire.receipt_from_proto(message) == replace(receipt, policies=(without,) * 5)
    assert wire.descriptor_to_proto(large).ByteSize() < MAX_MESSAGE_BYTES
