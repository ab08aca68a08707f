"""Groups of agents: a part of the environment, of its arguments, of messages and files."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actorq.domain.environments import EnvironmentArguments, Group, group_returns
from actorq.domain.leaves import ACTION_MASK, CRITIC_VECTOR, VECTOR, Leaf
from actorq.domain.policy import FidelityReport, GroupError
from actorq.domain.signature import Port, Role, RowGroup, Signature
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError
from actorq.statefiles.policies import descriptor_from_json, descriptor_to_json
from actorq.wire.policies import descriptor_from_proto, descriptor_to_proto
from actorq.wire.runs import run_status_from_proto, run_status_to_proto
from actorq.wire.trajectories import environment_from_proto, environment_to_proto
from learner_service.replay.storage.description import described, read_description, write_description
from tests.actorq.wire.wire_values import DESCRIPTOR, STATUS, transported
from tests.builders.grouped import AGENTS, GROUPS, grouped
from tests.builders.structured import packed

ALONE = EnvironmentSpec("Team-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), (4,))
TEAM = grouped(ALONE)
# Critics see two more numbers. The mask is the policy's, too.
SEEN, HIDDEN = Leaf(VECTOR, "numbers", (5,), "float32"), Leaf(CRITIC_VECTOR, "numbers", (2,), "float32", critic=True)
MASK = Leaf(ACTION_MASK, "mask", (4,), "bool")
WITH_CRITICS = replace(TEAM, observations=packed(SEEN, HIDDEN, MASK))


@pytest.mark.parametrize("spec", [TEAM, WITH_CRITICS])
def test_the_groups_are_a_part_of_the_spec(spec: EnvironmentSpec) -> None:
    assert EnvironmentSpec.from_json(spec.to_json()) == spec
    assert environment_from_proto(transported(environment_to_proto(spec))) == spec
    assert "groups" in spec.differences(replace(spec, groups=GROUPS[::-1]))
    assert spec.groups_text == "pair: green, blue; solo: red"


def test_a_spec_without_groups_has_the_values_of_earlier_versions() -> None:
    assert "groups" not in ALONE.to_json()
    assert ALONE.groups_text == ""
    assert ALONE.without_groups is ALONE
    assert environment_to_proto(ALONE).groups == []


@pytest.mark.parametrize(
    "groups",
    [
        GROUPS[:1],
        (GROUPS[0], replace(GROUPS[1], agents=("red", "green"))),
        (GROUPS[0], replace(GROUPS[1], name="pair")),
        (GROUPS[0], replace(GROUPS[1], bit=4)),
        (GROUPS[0], replace(GROUPS[1], bit=0)),
        tuple(replace(each, bit=each.bit + 1) for each in GROUPS),
        tuple(replace(each, bit=each.bit + 10) for each in GROUPS),
        (replace(GROUPS[0], agents=AGENTS), replace(GROUPS[1], agents=())),
    ],
)
def test_a_message_with_groups_that_do_not_fit_is_refused(groups: tuple[Group, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"environment\.groups: "):
        environment_from_proto(environment_to_proto(replace(TEAM, groups=groups)))


def test_bits_that_only_critics_see_are_refused() -> None:
    hidden = replace(WITH_CRITICS, groups=tuple(replace(each, bit=each.bit + 4) for each in GROUPS), indicators=(5, 7))
    with pytest.raises(InvalidInputError, match="indicators that the policy sees"):
        environment_from_proto(environment_to_proto(hidden))


@pytest.mark.parametrize("first_bit", [0, 1, 3])
def test_the_environment_of_one_groups_policy_has_no_bits(first_bit: int) -> None:
    alone = grouped(replace(ALONE, parts=("group (2 bits)", "observation (3 numbers)")), first_bit).without_groups
    assert alone == replace(ALONE, agents=AGENTS)
    assert alone.parts == ("observation (3 numbers)",)
    assert not alone.environment_arguments.agent_groups


def test_other_indicators_keep_their_components() -> None:
    # A further bit before and after the groups.
    spec = replace(TEAM, indicators=(0, 3, 4, 5))
    assert spec.without_groups.indicators == (0, 1, 2, 3)
    assert np.flatnonzero(spec.without_groups.is_indicator).tolist() == [0, 2]


def test_the_policys_environment_keeps_the_bits_in_their_places() -> None:
    policy = WITH_CRITICS.for_policy
    assert policy.leaves == (SEEN, MASK)
    assert policy.groups == GROUPS
    assert (policy.first_bit, WITH_CRITICS.first_bit, WITH_CRITICS.for_critics.first_bit) == (1, 1, 1)
    without = policy.without_groups
    assert without.leaves == (replace(SEEN, shape=(3,)), MASK)
    assert without.observations.shape == (24,)


def test_arguments_have_the_groups() -> None:
    arguments = TEAM.environment_arguments
    assert EnvironmentArguments.from_text(arguments.to_text()) == arguments
    assert "agent_groups" not in EnvironmentArguments({"a": 1}).to_text()


@pytest.mark.parametrize("groups", ['"a"', "[1]", '[["a"]]', '[["a", "red"]]', '[[1, ["red"]]]', '[["a", [2]]]'])
def test_malformed_groups_in_arguments_are_refused(groups: str) -> None:
    with pytest.raises(InvalidInputError, match="environment_arguments: expected JSON"):
        EnvironmentArguments.from_text(f'{{"keywords": {{}}, "wrappers": [], "agent_groups": {groups}}}')


def test_the_return_of_a_group_is_the_sum_over_its_agents() -> None:
    assert group_returns(GROUPS, {"red": 1.0, "green": 2.0, "blue": 3.5}) == {"pair": 5.5, "solo": 1.0}
    assert group_returns((), {"red": 1.0}) == {}
    assert group_returns(GROUPS, {}) == {}


def test_a_status_has_the_groups() -> None:
    status = replace(STATUS, groups=GROUPS)
    assert run_status_from_proto(transported(run_status_to_proto(status))) == status


def test_a_descriptor_has_the_errors_of_each_group() -> None:
    errors = (GroupError("pair", 200, 0.1, 0.2, 0.3, 0.4, 0.9, None, None, 0.5), GroupError("solo", 56, 1, 2, 3, 4))
    descriptor = replace(DESCRIPTOR, fidelity=replace(DESCRIPTOR.fidelity, groups=errors))
    assert descriptor_from_proto(transported(descriptor_to_proto(descriptor))) == descriptor
    assert descriptor_from_json(descriptor_to_json(descriptor)) == descriptor
    assert "groups" not in descriptor_to_json(DESCRIPTOR)["fidelity"]


def test_a_stored_report_without_groups_can_be_read() -> None:
    report = descriptor_from_json(descriptor_to_json(DESCRIPTOR)).fidelity
    assert isinstance(report, FidelityReport)
    assert report.groups == ()


def test_a_replay_of_other_groups_is_another_replay(tmp_path: Any) -> None:
    for name, spec in (("one", TEAM), ("other", ALONE)):
        folder = tmp_path / name
        folder.mkdir()
        write_description(folder, spec, 100, (), 10)
        found, *_ = described(read_description(folder))
        assert found.groups == spec.groups
        assert ("groups" in read_description(folder)) == bool(spec.groups)


INPUT, OUTPUT = Port("observations", Role.OBSERVATION), Port("logits", Role.LOGITS)


def test_a_signature_has_the_bits_of_groups() -> None:
    plain = Signature((INPUT,), (OUTPUT,))
    signature = replace(plain, groups=(RowGroup("pair", "observations", 1), RowGroup("solo", "observations", 2)))
    assert Signature.from_text(signature.to_text()) == signature
    assert "groups" not in plain.to_text()


@pytest.mark.parametrize(
    "groups",
    [
        (RowGroup("pair", "other", 1),),
        (RowGroup("pair", "observations", 1), RowGroup("pair", "observations", 2)),
        (RowGroup("pair", "observations", -1),),
        (RowGroup("pair", "observations", True),),
    ],
)
def test_malformed_groups_in_a_signature_are_refused(groups: tuple[RowGroup, ...]) -> None:
    text = Signature((INPUT,), (OUTPUT,)).to_text()[:-1]
    bits = ",".join(f'["{each.name}","{each.input}",{str(each.component).lower()}]' for each in groups)
    with pytest.raises(InvalidInputError, match="signature: expected"):
        Signature.from_text(f'{text},"groups":[{bits}]}}')
