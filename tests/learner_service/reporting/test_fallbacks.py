"""The learner logs once when the fidelity gate falls back, with the actor of the widest observations."""

import logging
import re

import pytest

from actorq.domain.policy import FIDELITY_GATE, FLOAT32, FidelityReport, LayerReport, PolicyDescriptor
from learner_service.reporting.fallbacks import Fallbacks
from tests.builders.clocks import ManualClock


def emitted(version: int, *gated: str, scheme: str = "int8") -> PolicyDescriptor:
    layers = tuple(
        LayerReport(name, FLOAT32 if name in gated else "int8 per channel", FIDELITY_GATE if name in gated else "")
        for name in ("torso.0", "head")
    )
    report = FidelityReport(256, 0.0, 0.0, 0.0, 0.0, 1.0, layers)
    return PolicyDescriptor("run", version, version, scheme, b"", 1, 1, 0.0, report)


def test_a_fallback_and_its_end_are_logged_with_the_widest_actor(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    fallbacks = Fallbacks(lambda: "actor-3 reach 40 times the range of most actors beyond it", clock)
    fallbacks.record([emitted(1)])
    assert not caplog.messages
    fallbacks.record([emitted(2, "head")])
    fallbacks.record([emitted(3, "head")])
    clock.now += 60.0
    fallbacks.record([emitted(4)])
    begin, end = caplog.messages
    assert re.match(r"version 2: .*1 of 2 layers of int8 .*\(head\).*actor-3", begin)
    assert re.match("version 4: .*all layers of int8", end)


def test_layers_that_change_with_each_version_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    fallbacks = Fallbacks(lambda: "", clock)
    for second in range(180):
        fallbacks.record([emitted(second + 1, ("torso.0", "head")[second % 2], scheme="int4")])
        clock.now += 1.0
    told = [re.match(r"version (\d+): .*1 of 2 layers of int4 .*\((.*)\)$", line) for line in caplog.messages]
    assert [found and found.groups() for found in told] == [("1", "torso.0"), ("62", "head"), ("123", "torso.0")]
