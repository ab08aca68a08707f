"""A column of another package: declared in one place, filled by one explorer. No code of ActorQ names it."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.collector import SegmentCollector, fitting_segment_length
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import make_environments
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq import wire
from actorq.domain.columns import FURTHER, Column, Per
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Segment
from actorq.v1 import trajectory_pb2
from learner_service.replay import ReplayStore
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.sequences import SegmentSource
from tests.actor_service.actor_policies import constant_policy

_COUNT, _STEPS = 2, 6


class _Counting(BehaviorPolicy):
    """Always chooses action 0, and reports the number of calls."""

    def __init__(self) -> None:
        self._asked = np.zeros((_COUNT, 3), np.int32)
        self.columns = {"asked": self._asked}

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        self._asked += 1
        return np.zeros(_COUNT, np.int64)


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FURTHER, "asked", lambda spec: Column("asked", (3,), np.dtype(np.int32)))


def _collected() -> tuple[EnvironmentSpec, Segment]:
    environments, slot, explore = make_environments("CartPole-v1", _COUNT), PolicySlot(), _Counting()
    spec = environments.spec
    slot.put(OnnxPolicy(constant_policy([0.0, 1.0]), spec.observations, _COUNT))
    collector = SegmentCollector(environments, PolicyTurns(slot), explore, _STEPS, 1, columns=explore.columns)
    segment = collector.collect(threading.Event())
    assert segment is not None
    return spec, segment


def _sent(segment: Segment) -> Segment:
    sent = wire.segment_to_proto(segment).SerializeToString()
    return wire.segment_from_proto(trajectory_pb2.Segment.FromString(sent))


def test_a_column_needs_a_declaration_and_a_producer(tmp_path: Path) -> None:
    spec, segment = _collected()
    received = _sent(segment)
    received.check(spec)

    store = ReplayStore.open(tmp_path, spec, 100, ("asked",))
    store.insert(received, SegmentSource.from_name("actor-0", 1, 1))
    store.close()

    store = ReplayStore.open(tmp_path, spec, 100, ("asked",))
    rows = np.flatnonzero(store.flags & VALID)
    told = store.further["asked"][rows].reshape(_COUNT, _STEPS, 3)
    np.testing.assert_array_equal(told, np.broadcast_to(np.arange(1, _STEPS + 1)[:, None], told.shape))
    assert fitting_segment_length(spec, _COUNT, 10_000, 4096, ("asked",)) < fitting_segment_length(
        spec, _COUNT, 10_000, 4096
    )


@pytest.mark.parametrize("per", Per)
def test_another_column_of_each_kind_reaches_the_learner(per: Per, monkeypatch: pytest.MonkeyPatch) -> None:
    column = Column("memory", (4,), np.dtype(np.float32), per)
    monkeypatch.setitem(FURTHER, "memory", lambda spec: column)
    spec, segment = _collected()
    values = np.random.default_rng(0).normal(size=column.array_shape(_STEPS, _COUNT, 1)).astype(np.float32)
    received = _sent(replace(segment, columns={**segment.columns, "memory": values}))
    received.check(spec)
    np.testing.assert_array_equal(received.columns["memory"], values)
