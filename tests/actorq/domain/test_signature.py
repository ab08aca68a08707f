"""Signatures: what the roles allow, the text in a model's metadata, and roles that follow from names."""

import json
from dataclasses import replace
from typing import Any

import pytest

from actorq.domain.limits import (
    MAX_INPUTS,
    MAX_MAGNITUDE,
    MAX_OUTPUT_COMPONENTS,
    MAX_OUTPUTS,
    MAX_PARTS,
    MAX_TEXT_BYTES,
)
from actorq.domain.signature import Port, Role, Signature, signature_of
from actorq.errors import InvalidInputError

OBSERVATION, VALUES = Port("observation", Role.OBSERVATION), Port("q_values", Role.VALUES)
MIXED = Signature(
    (OBSERVATION, Port("goal", Role.OBSERVATION), Port("mask", Role.MASK), Port("noise", Role.NOISE)),
    (
        Port("actions", Role.ACTIONS, spans=(0.1, 2.0, 1e30)),
        Port("choices", Role.LOGITS, sizes=(2, 5)),
        Port("value", Role.OTHER),
        Port("another", Role.OTHER),
    ),
)


def test_restores_a_signature_from_its_text() -> None:
    assert Signature.from_text(MIXED.to_text()) == MIXED


def test_outputs_are_found_by_their_roles() -> None:
    assert (MIXED.output(Role.LOGITS), MIXED.output(Role.MEAN)) == ("choices", None)
    assert MIXED.acting.name == "actions"


@pytest.mark.parametrize("role", [Role.VALUES, Role.LOGITS, Role.ACTIONS, Role.MEAN])
def test_values_and_logits_imply_discrete_actions(role: Role) -> None:
    assert Signature((OBSERVATION,), (Port("first", role),)).is_discrete == (role in (Role.VALUES, Role.LOGITS))


def test_a_state_is_an_input_and_an_output() -> None:
    state = Port("h", Role.STATE)

    signature = Signature((OBSERVATION, state), (VALUES, state))

    assert signature.inputs[1] is state
    assert signature.output(Role.STATE) == "h"


@pytest.mark.parametrize(
    ("inputs", "outputs", "fact"),
    [
        ((), (VALUES,), "inputs, got 0"),
        ((OBSERVATION,), (), "outputs, got 0"),
        ((OBSERVATION,) * (MAX_INPUTS + 1), (VALUES,), f"{MAX_INPUTS} inputs, got {MAX_INPUTS + 1}"),
        ((OBSERVATION,), (VALUES, *(Port("v", Role.OTHER),) * MAX_OUTPUTS), f"outputs, got {MAX_OUTPUTS + 1}"),
        ((OBSERVATION,), (VALUES, replace(VALUES, name="twin")), "once among the outputs, got q_values, q_values"),
        ((OBSERVATION, Port("a", Role.NOISE), Port("b", Role.NOISE)), (VALUES,), "once among the inputs"),
        ((VALUES,), (VALUES,), "q_values is no role of inputs"),
        ((OBSERVATION,), (VALUES, Port("m", Role.MASK)), "m: mask is no role of outputs"),
    ],
)
def test_roles_in_a_wrong_place_or_number_are_refused(
    inputs: tuple[Port, ...], outputs: tuple[Port, ...], fact: str
) -> None:
    with pytest.raises(InvalidInputError, match=fact):
        Signature(inputs, outputs)


@pytest.mark.parametrize("sizes", [(0,), (3, 0), (-5, 10), (1,) * (MAX_PARTS + 1), (MAX_OUTPUT_COMPONENTS, 1)])
def test_sizes_out_of_range_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match="q_values: sizes"):
        Signature((OBSERVATION,), (replace(VALUES, sizes=sizes),))


@pytest.mark.parametrize("span", [0.0, -1.0, float("nan"), float("inf"), MAX_MAGNITUDE * 2])
def test_spans_out_of_range_are_refused(span: float) -> None:
    with pytest.raises(InvalidInputError, match="actions: spans"):
        Signature((OBSERVATION,), (Port("actions", Role.ACTIONS, spans=(1.0, span)),))


def test_accepts_the_largest_sizes_and_spans() -> None:
    ports = Port("q", Role.VALUES, (MAX_OUTPUT_COMPONENTS,)), Port("a", Role.ACTIONS, spans=(MAX_MAGNITUDE, 1e-30))
    assert Signature((OBSERVATION,), ports).outputs == ports


@pytest.mark.parametrize(
    "output",
    [
        ["q"],
        "port",
        7,
        [7, "q_values", [], []],
        ["q" * (MAX_TEXT_BYTES + 1), "q_values", [], []],
        ["q", "no role", [], []],
        ["q", ["q_values"], [], []],
        ["q", "q_values", [2.5], []],
        ["q", "q_values", [True], []],
        ["q", "q_values", 4, []],
        ["q", "q_values", [-5, 10], []],
        ["q", "actions", [], ["wide"]],
        ["q", "actions", [], [None]],
        ["q", "actions", [], [10**400]],
    ],
    ids=str,
)
def test_a_port_of_another_form_is_refused(output: Any) -> None:
    text = json.dumps({"inputs": [["observation", "observation", [], []]], "outputs": [output]})
    with pytest.raises(InvalidInputError, match=r"^signature: "):
        Signature.from_text(text)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", "null", "{}", '{"inputs": []}', "[" * 100_000], ids=lambda t: t[:9]
)
def test_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^signature: expected inputs and outputs with roles"):
        Signature.from_text(text)


def test_roles_follow_from_names() -> None:
    signature = signature_of(
        ("pixels", "noise", "mask"), ("move", "greedy_actions", "mean", "log_std", "mean", "value")
    )

    assert [port.role for port in signature.inputs] == [Role.OBSERVATION, Role.NOISE, Role.MASK]
    roles = [Role.ACTIONS, Role.GREEDY_ACTIONS, Role.MEAN, Role.LOG_STD, Role.OTHER, Role.OTHER]
    assert [port.role for port in signature.outputs] == roles


def test_a_single_input_is_an_observation_under_any_name() -> None:
    assert signature_of(("noise",), ("actions",)).inputs == (Port("noise", Role.OBSERVATION),)


@pytest.mark.parametrize(
    ("first", "discrete", "role"),
    [
        ("q_values", None, Role.VALUES),
        ("logits", None, Role.LOGITS),
        ("logits", True, Role.LOGITS),
        ("index", True, Role.VALUES),
        ("index", None, Role.ACTIONS),
        ("q_values", False, Role.ACTIONS),
    ],
)
def test_the_first_output_is_the_action(first: str, discrete: bool | None, role: Role) -> None:
    acting = signature_of(("observation",), (first,), discrete, spans=(2.0,), sizes=(4,)).acting

    assert acting == Port(first, role, *(((), (2.0,)) if role is Role.ACTIONS else ((4,), ())))
