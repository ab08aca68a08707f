"""Specs of several arrays and parts in messages."""

from collections.abc import Callable

import pytest

from actorq import wire
from actorq.domain.contract import CONTRACT
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import ConflictError, InvalidInputError
from actorq.v1 import quantizer_pb2, trajectory_pb2
from tests.builders.structured import ALL, IMAGE, NUMBERS, critics, discrete, mixed

Message = trajectory_pb2.EnvironmentSpec


@pytest.mark.parametrize(
    "spec",
    [
        discrete(*ALL, masked=True),
        discrete(NUMBERS, critics(IMAGE)),
        discrete(NUMBERS, choices=(2, 3), masked=True),
        discrete(choices=(70, 3)),
        mixed(),
    ],
)
def test_a_spec_survives_a_message(spec: EnvironmentSpec) -> None:
    sent = wire.environment_to_proto(spec).SerializeToString()
    assert wire.environment_from_proto(Message.FromString(sent)) == spec


def _twice(message: Message) -> None:
    message.leaves.append(message.leaves[0])


def _of_no_kind(message: Message) -> None:
    message.leaves[0].kind = trajectory_pb2.LEAF_KIND_UNSPECIFIED


def _too_many(message: Message) -> None:
    message.leaves.extend([message.leaves[0]] * 65)


def _of_other_bytes(message: Message) -> None:
    message.observations.shape[0] += 8


def _of_another_mask(message: Message) -> None:
    message.sizes[0] += 1


def _for_critics_alone(message: Message) -> None:
    for leaf in message.leaves[:-1]:
        leaf.critic = True


def _with_a_mask_for_critics(message: Message) -> None:
    message.leaves[-1].critic = True


def _of_an_endless_category(message: Message) -> None:
    message.leaves[3].categories = 0


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (_twice, "twice"),
        (_of_no_kind, "kind"),
        (_too_many, "64"),
        (_of_other_bytes, "uint8"),
        (_of_another_mask, "6 choices"),
        (_of_an_endless_category, "item"),
        (_for_critics_alone, "policy needs a leaf"),
        (_with_a_mask_for_critics, "mask"),
        (lambda message: message.indicators.extend([1]), "indicators"),
        (lambda message: message.indicators.extend([2, 1]), "indicators"),
        (lambda message: message.indicators.extend([0, 2, 2, 3]), "indicators"),
        (lambda message: message.indicators.extend([0, 2**31]), "indicators"),
    ],
)
def test_leaves_that_do_not_fit_are_refused(change: Callable[[Message], None], fact: str) -> None:
    message = wire.environment_to_proto(discrete(*ALL, masked=True))
    change(message)
    with pytest.raises(InvalidInputError, match=fact):
        wire.environment_from_proto(message)


@pytest.mark.parametrize("choices", [[2], [0, 5], [2, 3, 0], [1] * 2000])
def test_choices_that_are_no_parts_of_the_action_are_refused(choices: list[int]) -> None:
    message = wire.environment_to_proto(discrete(choices=(2, 3)))
    del message.sizes[:]
    message.sizes.extend(choices)
    with pytest.raises(InvalidInputError, match=r"environment\.sizes"):
        wire.environment_from_proto(message)


@pytest.mark.parametrize("number", [0, 1, CONTRACT + 1])
def test_a_learner_and_a_quantizer_of_another_contract_are_refused_with_both_numbers(number: int) -> None:
    both = f"contract {number or 1} .* contract {CONTRACT}"
    with pytest.raises(ConflictError, match=both):
        wire.opening_from_proto(quantizer_pb2.PublishOpen(run_id="run", contract=number))
    with pytest.raises(ConflictError, match=both):
        wire.ready_from_proto(quantizer_pb2.PublishReady(contract=number))
