"""Dropped segments disappear from the store, its samplers and later openings. Other segments stay whole."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.domain.columns import FURTHER, GREEDY_ACTIONS
from actorq.domain.contract import CONTRACT
from actorq.domain.trajectory import Segment
from actorq.errors import ConflictError, InvalidInputError, UserError
from learner_service.replay import PrioritizedSampler, ReplayStore, Sampler, UniformSampler
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.description import description_files
from learner_service.replay.storage.mapped_files import read_checked, write_checked
from tests.builders.segments import without
from tests.learner_service.replay.replay_greedy import GREEDY, greedy_segment
from tests.learner_service.replay.replay_segments import SPEC, assert_store_holds, plain_segment, random_segment, source

# Optional columns with and without greedy actions.
KEPT: dict[bool, tuple[str, ...]] = {True: ("greedy_actions",), False: ()}


def samplers(store: ReplayStore) -> tuple[Sampler, Sampler]:
    rng = np.random.default_rng(3)
    return UniformSampler(store, rng), PrioritizedSampler(store, rng)


@settings(max_examples=60, deadline=None)
@given(
    frame_stack=st.integers(1, 3),
    capacity=st.integers(40, 90),
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("insert"), st.integers(1, 5), st.integers(1, 2)),
            st.tuples(st.just("drop"), st.integers(0, 30), st.integers(1, 30)),
            st.tuples(st.just("reopen"), st.just(0), st.just(0)),
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_the_live_segments_are_a_suffix_of_what_was_inserted(
    tmp_path_factory: pytest.TempPathFactory, frame_stack: int, capacity: int, actions: list[tuple[str, int, int]]
) -> None:
    directory, spec = tmp_path_factory.mktemp("store"), replace(SPEC, frame_stack=frame_stack)
    store = ReplayStore.open(directory, spec, capacity)
    both = samplers(store)
    segments: dict[int, Segment] = {}
    first = 0
    for kind, size, other in actions:
        live = [segments[number].transitions for number in range(first, len(segments))]
        if kind == "insert":
            number = len(segments)
            rng = np.random.default_rng(number)
            segments[number] = random_segment(rng, size, other, number, frame_stack=frame_stack)
            inserted = store.insert(segments[number], source(number))
            assert inserted is not None
            first += len(inserted.evicted)
            for sampler in both:
                sampler.on_insert(inserted)
        elif kind == "drop":
            dropped = store.segments.drop_oldest(size, keep=other)
            for sampler in both:
                sampler.on_drop(dropped)
            assert len(dropped) == expected_drops(live, size, other)
            first += len(dropped)
        else:
            store.close()
            store = ReplayStore.open(directory, spec, capacity)
            both = samplers(store)
        numbers = [record.source.sequence for record in store.segments.live]
        assert numbers == list(range(first, len(segments)))
        assert_store_holds(store, segments)
        assert store.total_transitions == sum(segment.transitions for segment in segments.values())
        assert_samples_what_is_stored(store, both)
    store.close()


def expected_drops(live: list[int], transitions: int, keep: int) -> int:
    """How many of these segments go, one at a time."""
    gone = 0
    while gone < len(live) and sum(live[:gone]) < transitions and sum(live[gone + 1 :]) >= keep:
        gone += 1
    return gone


def assert_samples_what_is_stored(store: ReplayStore, both: tuple[Sampler, Sampler]) -> None:
    if store.transitions == 0:
        for sampler in both:
            with pytest.raises(ConflictError, match="first transition"):
                sampler.sample(1)
        return
    for sampler in both:
        sampled = sampler.sample(32)
        assert (store.flags[sampled.rows] & VALID).all()
        np.testing.assert_allclose(sampled.weights, 1)


def test_priorities_of_transitions_dropped_meanwhile_are_ignored(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    sampler = PrioritizedSampler(store, np.random.default_rng(0))
    for number in range(4):
        inserted = store.insert(plain_segment(number), source(number))
        assert inserted is not None
        sampler.on_insert(inserted)
    sampled = sampler.sample(64)
    sampler.on_drop(store.segments.drop_oldest(4, keep=1))
    sampler.update(sampled, np.full(64, 5.0, np.float32))
    again = sampler.sample(64)
    assert (again.rows >= 5).all()
    assert not store.priorities[:5].any()


_WRITER = """
import sys
from pathlib import Path
from tests.learner_service.replay.replay_segments import plain_segment, source, SPEC
from learner_service.replay import ReplayStore

store = ReplayStore.open(Path(sys.argv[1]), SPEC, 400)
number = int(sys.argv[2])
while True:
    assert store.insert(plain_segment(number, steps=7), source(number)) is not None
    if number % 5 == 4:
        store.segments.drop_oldest(21, keep=14)
        print(store.segments.live[0].source.sequence, flush=True)
    number += 1
"""


def test_dropped_segments_do_not_come_back_after_a_kill(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    following = 0
    for prints in (1, 30, 57):
        command = [sys.executable, "-c", _WRITER, str(tmp_path), str(following)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
            assert writer.stdout is not None
            printed = [writer.stdout.readline() for _ in range(prints)]
            writer.kill()
            printed += writer.stdout.readlines()
        assert writer.returncode == -9
        oldest = int(printed[-1] if printed[-1].endswith("\n") else printed[-2])
        store = ReplayStore.open(tmp_path, SPEC, 400)
        numbers = [record.source.sequence for record in store.segments.live]
        assert numbers[0] >= oldest > 0
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert_store_holds(store, {number: plain_segment(number, steps=7) for number in numbers})
        following = numbers[-1] + 1
        assert store.total_transitions == 7 * following
        store.close()


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_greedy_actions_are_stored_with_the_actions_and_survive_a_restart(tmp_path: Path, frame_stack: int) -> None:
    spec = replace(GREEDY, frame_stack=frame_stack)
    plain = ReplayStore.open(tmp_path / "plain", spec, 200)
    plain.close()
    store = ReplayStore.open(tmp_path, spec, 200, further=("greedy_actions",))
    segment = greedy_segment(0, steps=5, environments=2, frame_stack=frame_stack)
    store.insert(segment, source(0))
    store.close()
    store = ReplayStore.open(tmp_path, spec, 200, further=("greedy_actions",))
    rows = np.flatnonzero(store.flags & VALID)
    environments, steps = np.divmod(rows, frame_stack + 5)
    steps -= frame_stack - 1
    greedy = segment.columns[GREEDY_ACTIONS][steps, environments]
    np.testing.assert_array_equal(store.further[GREEDY_ACTIONS][rows], greedy)
    np.testing.assert_array_equal(store.actions[rows], segment.actions[steps, environments])
    assert store.nbytes == plain.nbytes + 200 * 8
    store.close()


@pytest.mark.parametrize("kept", [True, False])
def test_a_segment_has_greedy_actions_if_and_only_if_the_store_keeps_them(tmp_path: Path, kept: bool) -> None:
    store = ReplayStore.open(tmp_path, GREEDY, 200, further=KEPT[kept])
    told = greedy_segment(0)
    silent = without(told, GREEDY_ACTIONS)
    wrong, right = (silent, told) if kept else (told, silent)
    with pytest.raises(InvalidInputError, match=f"greedy_actions.* {'none' if kept else 'some'}$"):
        store.insert(wrong, source(0))
    assert store.total_transitions == 0
    assert store.insert(right, source(0)) is not None


@pytest.mark.parametrize(
    ("kept", "flag"), [(False, "--no-dynamic-capacity.enabled"), (True, "--dynamic-capacity.enabled")]
)
def test_a_replay_with_other_columns_is_refused_with_what_to_do(tmp_path: Path, kept: bool, flag: str) -> None:
    ReplayStore.open(tmp_path, GREEDY, 200, further=KEPT[kept]).close()
    with pytest.raises(ConflictError, match=f"{tmp_path} .*greedy actions.* {flag},"):
        ReplayStore.open(tmp_path, GREEDY, 200, further=KEPT[not kept])
    ReplayStore.open(tmp_path, GREEDY, 200, further=KEPT[kept]).close()


@pytest.mark.parametrize(
    ("version", "columns"), [(4, ()), (5, ("greedy_actions",)), (6, ("log_probabilities",)), (7, ())]
)
def test_a_replay_of_an_earlier_version_is_continued(tmp_path: Path, version: int, columns: tuple[str, ...]) -> None:
    segment = greedy_segment(0).with_columns(log_probabilities=np.zeros((4, 1), np.float32))
    for name in {*FURTHER} - set(columns):
        segment = without(segment, name)
    store = ReplayStore.open(tmp_path, GREEDY, 200, columns)
    store.insert(segment, source(0))
    store.close()
    for path in description_files(tmp_path):
        values = read_checked(path)
        del values["sizes"], values["contract"]
        if version < 7:
            del values["further_columns"]
        write_checked(path, {**values, "format_version": version, "discrete_actions": 0})
    store = ReplayStore.open(tmp_path, GREEDY, 200, columns)
    assert store.total_transitions == 4
    store.close()
    with pytest.raises(ConflictError):
        ReplayStore.open(tmp_path, GREEDY, 200, () if columns else ("greedy_actions",))


def test_a_replay_of_a_later_contract_is_refused_in_one_line(tmp_path: Path) -> None:
    ReplayStore.open(tmp_path, SPEC, 200).close()
    for path in description_files(tmp_path):
        write_checked(path, {**read_checked(path), "contract": CONTRACT + 1})
    with pytest.raises(UserError, match=f"contract {CONTRACT + 1} .* up to {CONTRACT}"):
        ReplayStore.open(tmp_path, SPEC, 200)


def test_a_replay_without_log_probabilities_cannot_be_a_queue(tmp_path: Path) -> None:
    for name, kept, wanted in (("queue", ("log_probabilities",), ()), ("replay", (), ("log_probabilities",))):
        ReplayStore.open(tmp_path / name, SPEC, 200, kept).close()
        with pytest.raises(ConflictError, match=f"{tmp_path / name} has {'' if kept else 'no '}log probabilities"):
            ReplayStore.open(tmp_path / name, SPEC, 200, wanted)
