"""Messages with malformed or out-of-range values are refused, with the field and the expected values."""

import re
from dataclasses import replace
from typing import Any

import pytest

from actorq import wire
from actorq.domain.processes import NodeEnergy
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import Membership
from actorq.domain.trajectory import Evaluation
from actorq.errors import ConflictError, InvalidInputError
from actorq.v1 import learner_pb2, process_pb2, tensor_pb2, trajectory_pb2
from benchmarks.faults.fuzz.corpus import EVALUATION, PROCESS, REPORT
from tests.actorq.wire.wire_values import ENVIRONMENT, REFUSED, RUN


@pytest.mark.parametrize("value", [learner_pb2.RUN_STATE_UNSPECIFIED, 99])
def test_an_unknown_state_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"state.* {value}$"):
        wire.run_state_from_proto(value)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"environment_id": ""}, "environment_id.*empty"),
        ({"environment_arguments": "[1]"}, "environment_arguments.*JSON"),
        ({"environment_arguments": "1" * 9000}, "environment_arguments.* 8192 "),
        ({"observations": tensor_pb2.TensorSpec(shape=[3])}, "dtype.* 0$"),
        (
            {"actions": tensor_pb2.TensorSpec(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[-3])},
            r"shape.*\[-3\]",
        ),
        # Images have no goals.
        ({"goal": trajectory_pb2.Goal(achieved=0, desired=3, size=3)}, r"environment\.goal.*vector"),
    ],
)
def test_a_malformed_environment_is_refused(changes: dict[str, Any], fact: str) -> None:
    message = wire.environment_to_proto(ENVIRONMENT)
    for name, value in changes.items():
        message.ClearField(name)
        message.MergeFrom(trajectory_pb2.EnvironmentSpec(**{name: value}))
    with pytest.raises(InvalidInputError, match=fact):
        wire.environment_from_proto(message)


def test_an_environment_of_a_dtype_that_cannot_travel_is_not_sent() -> None:
    spec = replace(ENVIRONMENT, observations=ArraySpec((3,), "float16"))
    with pytest.raises(InvalidInputError, match="float16"):
        wire.environment_to_proto(spec)


@pytest.mark.parametrize(
    ("returns", "lengths", "fact"),
    [
        ((), (), "0 returns .* 0 lengths"),
        ((1.0, 2.0), (3,), "2 returns .* 1 lengths"),
        ((1.0, float("nan")), (3, 4), r"returns.* 1e\+30.* nan"),
        ((float("-inf"),), (3,), r"returns.* 1e\+30.* -inf"),
    ],
)
def test_a_malformed_evaluation_is_refused(returns: tuple[float, ...], lengths: tuple[int, ...], fact: str) -> None:
    message = wire.evaluation_to_proto(replace(EVALUATION, returns=returns, lengths=lengths))
    with pytest.raises(InvalidInputError, match=f"evaluation.*{fact}"):
        wire.evaluation_from_proto(message)


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("actor_report", REPORT, "steps_per_second"),
        ("actor_report", REPORT, "waited_seconds"),
        ("process", PROCESS, "cpu_seconds"),
        ("node_energy", NodeEnergy("node-a", 0.1, 0.0, 0.0, 0.0, 0.0, "meter"), "cpu_kwh"),
    ],
)
def test_an_impossible_figure_is_refused(name: str, value: Any, field: str, figure: float) -> None:
    message = getattr(wire, f"{name}_to_proto")(value)
    setattr(message, field, figure)
    with pytest.raises(InvalidInputError, match=rf"\.{field}.* 1000000000000.*{figure}"):
        getattr(wire, f"{name}_from_proto")(message)


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -1.0])
def test_an_impossible_activation_time_is_refused(figure: float) -> None:
    message = wire.actor_report_to_proto(replace(REPORT, activation_seconds=(0.1, figure)))
    with pytest.raises(InvalidInputError, match=f"report.*activation.* 1000000000000.*{figure}"):
        wire.actor_report_from_proto(message)


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
        with pytest.raises(InvalidInputError, match=rf"_kl.* 1e\+30.*{re.escape(str(figure))}"):
            wire.descriptor_from_proto(message)


def test_refuses_energy_without_a_node_name() -> None:
    with pytest.raises(InvalidInputError, match=r"energy\.node.*empty"):
        wire.node_energy_from_proto(process_pb2.NodeEnergy(method="meter"))


@pytest.mark.parametrize(("number", "told"), [(0, "contract 1 "), (7, "contract 7 ")])
def test_a_peer_of_another_contract_is_refused_from_both_sides(number: int, told: str) -> None:
    asked = wire.joining_to_proto(wire.Joining("actor-0", 0, "actor", "1.0"))
    answered = wire.membership_to_proto(Membership(RUN, 0, None, 0, 1, 2))
    wire.joining_from_proto(asked)
    wire.membership_from_proto(answered)
    asked.contract = answered.contract = number
    with pytest.raises(ConflictError, match=told):
        wire.joining_from_proto(asked)
    with pytest.raises(ConflictError, match=told):
        wire.membership_from_proto(answered)


@pytest.mark.parametrize(("achieved", "desired", "size"), [(0, 2, 3), (0, 5, 3), (0, 3, 0), (2**32 - 1, 0, 1)])
def test_goals_that_are_no_parts_of_the_observations_are_refused(achieved: int, desired: int, size: int) -> None:
    spec = EnvironmentSpec("Reach-v0", ArraySpec((7,), "float32"), ArraySpec((), "int64"), (2,), 50)
    message = wire.environment_to_proto(spec)
    message.goal.CopyFrom(trajectory_pb2.Goal(achieved=achieved, desired=desired, size=size))
    with pytest.raises(InvalidInputError, match=r"environment\.goal.* \[7\]"):
        wire.environment_from_proto(message)


def test_an_evaluation_has_success_of_all_episodes_or_of_none() -> None:
    message = wire.evaluation_to_proto(Evaluation(1, 35, 3500, "int8", (1.0, 2.0), (3, 4), 1.0, (True,)))
    with pytest.raises(InvalidInputError, match=r"success.* 1 .* 2 returns"):
        wire.evaluation_from_proto(message)
