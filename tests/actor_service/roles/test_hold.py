"""An evaluator holds the version that it evaluates, if a quantizer can hold it."""

import logging
from collections.abc import Iterator

import pytest

from actor_service.roles.hold import PolicyHold
from actorq.client import QuantizerClient
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedQuantizer, serving
from tests.builders.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def peer() -> Iterator[tuple[ScriptedQuantizer, str]]:
    quantizer = ScriptedQuantizer()
    with serving(quantizer) as address:
        yield quantizer, address


def test_a_version_is_held_from_the_start_and_again_each_minute(
    peer: tuple[ScriptedQuantizer, str], clock: ManualClock
) -> None:
    quantizer, address = peer
    with QuantizerClient(address) as client:
        hold = PolicyHold(client, clock)
        assert hold.acquire(7)
        for clock.now in (0.0, 59.0, 60.0, 61.0, 119.0, 120.0):
            hold.renew()
        assert hold.acquire(8)
    assert [quantizer.holds.get(timeout=DEADLINE_S) for _ in range(4)] == [7, 7, 7, 8]
    assert quantizer.holds.empty()


def test_a_removed_version_is_not_evaluated_and_logged_once(
    peer: tuple[ScriptedQuantizer, str], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    quantizer, address = peer
    quantizer.gone = {7}
    with QuantizerClient(address) as client, caplog.at_level(logging.WARNING, "actor_service.roles.hold"):
        hold = PolicyHold(client, clock)
        assert [hold.acquire(version) for version in (7, 7, 8)] == [False, False, True]
        # As after a restart of the quantizer.
        quantizer.gone = {8}
        clock.now = 60.0
        hold.renew()
    lines = [record.getMessage() for record in caplog.records if record.name == "actor_service.roles.hold"]
    assert [line.split()[:2] for line in lines] == [["version", "7"], ["version", "8"]]


def test_without_a_quantizer_versions_are_evaluated_anyway_and_logged_once(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(ScriptedQuantizer()) as address:
        pass
    with QuantizerClient(address) as client, caplog.at_level(logging.WARNING, "actor_service.roles.hold"):
        hold = PolicyHold(client, clock)
        assert hold.acquire(7)
        assert hold.acquire(8)
        clock.now = 60.0
        hold.renew()
    (line,) = caplog.messages
    assert "without a hold" in line
    assert address in line
