"""Encodes the ledger's accounts as JSON-able values; decodes and checks them."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from actorq.domain.processes import Amount
from actorq.errors import InvalidInputError
from learner_service.energy.accounts import LOOK_BACK, Counters, NodeAccount, ProcessAccount, ProcessKey
from learner_service.energy.sharing import Interval

_VERSION = 1


def encode_state(nodes: Mapping[str, NodeAccount], processes: Mapping[ProcessKey, ProcessAccount]) -> dict[str, Any]:
    """The accounts as dicts, lists, strings and numbers. Keys of processes become [role, name]."""
    return {
        "version": _VERSION,
        "nodes": {name: _encode_node(node) for name, node in nodes.items()},
        "processes": [
            {
                "key": list(key),
                "energy": _encode_amount(account.energy),
                "cpu_seconds": account.cpu_seconds,
                "seen": dict(account.seen),
            }
            for key, account in processes.items()
        ],
    }


def decode_state(state: Mapping[str, Any]) -> tuple[dict[str, NodeAccount], dict[ProcessKey, ProcessAccount]]:
    """The accounts of an encoded state.

    Raises InvalidInputError for another version, and for a figure that is negative or not finite.
    """
    version = state.get("version")
    if version != _VERSION:
        raise InvalidInputError(f"energy state: expected version {_VERSION}, got {version}")
    try:
        processes = {
            _decode_key(entry["key"]): ProcessAccount(
                energy=_decode_amount(entry["energy"]),
                cpu_seconds=_number(entry["cpu_seconds"]),
                seen={str(life): _number(seconds) for life, seconds in entry["seen"].items()},
            )
            for entry in state["processes"]
        }
        nodes = {str(name): _decode_node(entry) for name, entry in state["nodes"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"energy state: malformed, {type(error).__name__}: {error}") from error
    for name, node in nodes.items():
        unknown = (node.gpu_users | node.unsettled_cpu.keys()) - processes.keys()
        if unknown:
            raise InvalidInputError(f"energy state: node {name} refers to unknown processes {sorted(unknown)}")
    return nodes, processes


def _encode_node(node: NodeAccount) -> dict[str, Any]:
    return {
        "method": node.method,
        "meter": node.meter,
        "previous_meter": node.previous_meter,
        "last": list(node.last),
        "total": _encode_amount(node.total),
        "charged": _encode_amount(node.charged),
        "intervals": [
            [*_encode_amount(interval.energy), interval.busy_seconds, interval.claimed_seconds]
            for interval in node.intervals
        ],
        "unsettled_cpu": [[list(key), seconds] for key, seconds in node.unsettled_cpu.items()],
        "gpu_users": [list(key) for key in sorted(node.gpu_users)],
    }


def _decode_node(entry: Mapping[str, Any]) -> NodeAccount:
    intervals = (map(_number, interval) for interval in entry["intervals"])
    return NodeAccount(
        method=str(entry["method"]),
        meter=str(entry["meter"]),
        previous_meter=str(entry["previous_meter"]),
        last=Counters(*map(_number, entry["last"])),
        total=_decode_amount(entry["total"]),
        charged=_decode_amount(entry["charged"]),
        intervals=deque(
            (Interval(Amount(kwh, co2_kg), busy, claimed) for kwh, co2_kg, busy, claimed in intervals),
            maxlen=LOOK_BACK,
        ),
        unsettled_cpu={_decode_key(key): _number(seconds) for key, seconds in entry["unsettled_cpu"]},
        gpu_users={_decode_key(key) for key in entry["gpu_users"]},
    )


def _encode_amount(amount: Amount) -> list[float]:
    return [amount.kwh, amount.co2_kg]


def _decode_amount(value: Any) -> Amount:
    kwh, co2_kg = value
    return Amount(_number(kwh), _number(co2_kg))


def _decode_key(value: Any) -> ProcessKey:
    role, name = value
    return ProcessKey(str(role), str(name))


def _number(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise InvalidInputError(f"energy state: expected a finite number of at least 0, got {number}")
    return number
