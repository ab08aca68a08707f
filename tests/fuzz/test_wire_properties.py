"""Any message of any type: its converter refuses it in one short line, or returns a value within all bounds."""

import math
import random
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorq import wire
from actorq.domain import limits
from actorq.domain.contract import CONTRACT
from actorq.domain.limits import MAX_MESSAGE_BYTES
from actorq.errors import InvalidInputError
from actorq.wire.fields import Pair
from benchmarks.faults.fuzz.corpus import PROCESS, VALID
from benchmarks.faults.fuzz.messages import altered, anything, mutated

OTHERS = {"role_from_proto", "run_state_from_proto", "processes_from_proto"}
DECODERS = {name: getattr(wire, name) for name in vars(wire) if name.endswith("_from_proto") and name not in OTHERS}
# Training that diverged has such a loss, a policy that the fidelity gate refused has such errors, and the limits of a
# space are those of its environment's dtype.
UNBOUNDED_FLOATS = {"loss", "low", "high"}
MAY_BE_INFINITE = {"mean_error", "max_error", "relative_mean_error", "relative_max_error", "mean_errors", "max_errors"}
MAY_BE_INFINITE |= {"mean_kl", "max_kl", "state_drift"}
MAY_BE_INFINITE |= {f"{which}_{of}_error" for which in ("mean", "max") for of in ("state", "output")}
MOST_ITEMS = 65_536
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**64)


def type_of(decode: Callable[..., Any]) -> type[Message]:
    pair = getattr(decode, "__self__", None)
    message: type[Message] = pair.message if isinstance(pair, Pair) else typing.get_type_hints(decode)["message"]
    return message


def assert_bounded(value: Any, name: str = "") -> None:
    """Hold every part of a decoded value to what the domain may rely on."""
    if is_dataclass(value):
        for field in fields(value):
            assert_bounded(getattr(value, field.name), field.name)
    elif isinstance(value, np.ndarray):
        assert value.ndim <= limits.MAX_DIMENSIONS
        assert value.nbytes <= MAX_MESSAGE_BYTES
    elif isinstance(value, dict):
        assert_bounded((*value.keys(), *value.values()), name)
    elif isinstance(value, tuple):
        assert len(value) <= (MAX_MESSAGE_BYTES if name in UNBOUNDED_FLOATS else MOST_ITEMS)
        for item in value[:1000]:
            assert_bounded(item, name)
    elif isinstance(value, str | Path):
        value = str(value)
        assert value.isprintable()
        assert len(value.encode()) <= limits.MAX_TEXT_BYTES
    elif isinstance(value, bytes):
        assert len(value) in (0, limits.DIGEST_BYTES)
    elif isinstance(value, float):
        within = abs(value) <= limits.MAX_MAGNITUDE or (name in MAY_BE_INFINITE and value == math.inf)
        assert within or name in UNBOUNDED_FLOATS, (name, value)
    elif isinstance(value, int) and not isinstance(value, bool):
        most = {"seed": 2**64 - 1, "nonce": 2**64 - 1, "processes": 2**64 - 1}.get(name, limits.MAX_COUNT)
        most = limits.MAX_VERSION if "version" in name else most
        assert name == "encodings" or 0 <= value <= most, (name, value)
    else:
        assert value is None or isinstance(value, (bool, Enum)), (name, value)


def decoded(decode: Callable[..., Any], message: Message) -> Any:
    """The value, None for one that is refused; also holds the refusal to its bounds."""
    refusal = ""
    try:
        return decode(message)
    except InvalidInputError as error:
        refusal = str(error)
    assert len(refusal) < 1500
    assert refusal.isprintable()
    return None


def check(name: str, message: Message) -> None:
    decode = DECODERS[name]
    if "contract" in message.DESCRIPTOR.fields_by_name:
        # Another number would hide all other fields.
        message.contract = CONTRACT  # type: ignore[attr-defined]
    value = decoded(decode, message)
    if value is None:
        return
    assert_bounded(value)
    encode = getattr(wire, name.replace("_from_proto", "_to_proto"), None)
    if encode is not None:
        sent = encode(value).SerializeToString(deterministic=True)
        again = encode(decode(type(message).FromString(sent))).SerializeToString(deterministic=True)
        assert again == sent


def test_a_valid_message_is_decoded() -> None:
    for name, decode in DECODERS.items():
        assert decoded(decode, valid(name)) is not None, name


def valid(name: str) -> Message:
    return VALID[type_of(DECODERS[name]).DESCRIPTOR.full_name]


@pytest.mark.parametrize("name", DECODERS)
@FUZZ
@given(seed=SEEDS)
def test_any_message_is_refused_or_bounded(name: str, seed: int) -> None:
    check(name, anything(type_of(DECODERS[name]).DESCRIPTOR, random.Random(seed)))


@pytest.mark.parametrize("name", DECODERS)
@FUZZ
@given(seed=SEEDS)
def test_a_valid_message_with_other_fields_is_refused_or_bounded(name: str, seed: int) -> None:
    check(name, altered(valid(name), random.Random(seed)))


@pytest.mark.parametrize("name", DECODERS)
@FUZZ
@given(seed=SEEDS)
def test_any_bytes_that_parse_are_refused_or_bounded(name: str, seed: int) -> None:
    rng, message = random.Random(seed), valid(name)
    data = mutated(message.SerializeToString(), altered(message, rng).SerializeToString(), rng)
    try:
        parsed = type(message).FromString(data)
    except DecodeError:
        return
    check(name, parsed)


@pytest.mark.parametrize("count", [0, 1000, 1001])
def test_processes_are_counted_before_they_are_decoded(count: int) -> None:
    processes = [wire.process_to_proto(PROCESS)] * count
    value = decoded(wire.processes_from_proto, processes)  # type: ignore[arg-type]
    assert (value is None) == (count > limits.MAX_PROCESSES)
