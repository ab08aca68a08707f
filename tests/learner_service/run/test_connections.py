"""Who joins a run, with which seed, and where the streams resume."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from actorq import wire
from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState
from actorq.domain.trajectory import PolicySpan, Role
from actorq.errors import NotFoundError, UnavailableError
from learner_service.replay import MOST_ACTORS, SegmentSource
from learner_service.report import Reporter
from learner_service.run.run import Run
from learner_service.training.publisher import Snapshot
from tests.learner_service.learner_parts import SPEC, acknowledged, config, evaluation, on_a_loop, segment, store, until
from tests.learner_service.run.run_parts import a_run, opened


async def seeds(directory: Path, settings: RunConfig | None = None, resume: bool = False) -> list[int]:
    """The seeds of actors 0 and 1, of evaluator 0, and of a second life of actor 0."""
    async with a_run(directory, settings, resume) as run:
        joins: list[tuple[str, int, Role]] = [
            ("a", 1, "actor"),
            ("b", 1, "actor"),
            ("judge", 1, "evaluator"),
            ("a", 2, "actor"),
        ]
        return [run.connections.join(name, incarnation, role).seed for name, incarnation, role in joins]


@on_a_loop
async def test_the_same_place_in_the_same_run_has_the_same_seed_and_any_other_another(tmp_path: Path) -> None:
    one = await seeds(tmp_path / "one")
    assert len(set(one)) == 4
    assert await seeds(tmp_path / "two") == one
    other_seed = await seeds(tmp_path / "three", config(seed=2))
    other_life = await seeds(tmp_path / "one", resume=True)
    assert len({*one, *other_seed, *other_life}) == 12


@on_a_loop
async def test_processes_without_a_nonce_have_separate_lives(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        lives = [run.connections.join("a", 0, "actor").incarnation for _ in range(3)]
        assert lives == sorted(set(lives))


@on_a_loop
async def test_joining_again_in_one_life_gives_the_same_seed(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        assert run.connections.join("a", 1, "actor") == run.connections.join("a", 1, "actor")


@on_a_loop
async def test_an_actor_that_leaves_during_the_build_does_not_take_the_training_with_it(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        for name in ("first", "second"):
            run.connections.join(name, 1, "actor")
        first = asyncio.create_task(run.connections.open_stream("first", 1, SPEC))
        second = asyncio.create_task(run.connections.open_stream("second", 1, SPEC))
        await asyncio.sleep(0)
        assert run.training is None
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        stream = await second
        assert run.training is not None
        assert run.lifecycle.fault is None
        assert [(status.name, status.connected) for status in run.records.members.statuses()] == [("second", True)]
        assert stream.credit > 0
        await store(run, stream, segment(1))
        assert run.training.replay.total_transitions == 8


@on_a_loop
async def test_a_training_whose_only_actor_left_is_there_for_the_next(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.connections.join("first", 1, "actor")
        first = asyncio.create_task(run.connections.open_stream("first", 1, SPEC))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        run.connections.close_stream(await opened(run, "second"))
        assert run.lifecycle.state is RunState.COLLECTING


@on_a_loop
async def test_no_actor_joins_a_restored_run_before_its_sequences_are_read(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        actor, judge = await opened(run), await opened(run, "judge", "evaluator")
        await store(run, actor, segment(1), segment(2))
        run.connections.evaluated(judge, evaluation(1, 1, 10.0))
        # The same once more: its acknowledgement was lost.
        run.connections.evaluated(judge, evaluation(1, 1, 10.0))
        await acknowledged(judge, 1)
        assert (actor.acknowledged, judge.acknowledged, run.records.evaluations.count) == (2, 1, 1)
    async with a_run(tmp_path, resume=True) as run:
        joins: list[tuple[str, Role]] = [("a", "actor"), ("judge", "evaluator")]
        for name, role in joins:
            with pytest.raises(UnavailableError, match="restoring"):
                run.connections.join(name, 1, role)
        await run.preparation.restore()
        assert run.connections.join("a", 1, "actor").resume_after_sequence == 2
        assert run.connections.join("a", 2, "actor").resume_after_sequence == 0
        assert run.connections.join("judge", 1, "evaluator").resume_after_sequence == 1


@on_a_loop
async def test_an_actor_is_informed_of_its_durable_segments(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(replay={"capacity": 2_000, "min_size": 64, "flush_s": 0.05})) as run:
        stream = await opened(run)
        await store(run, stream, segment(1), segment(2))
        await until(stream, lambda: stream.durable >= 2)
        run.connections.close_stream(stream)
        assert (await opened(run)).durable == 2


@on_a_loop
async def test_a_gap_that_an_actor_cannot_fill_is_counted_and_the_stream_goes_on_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_run(tmp_path) as run:
        await store(run, await opened(run), segment(1))
        assert run.connections.join("a", 1, "actor").resume_after_sequence == 1
        assert (await run.connections.open_stream("a", 1, SPEC, lost_through=5)).acknowledged == 5
        (lost,) = caplog.messages
        assert re.search("a: 4 .* 1 .*lost", lost)
        # Logged once, even if the actor reports it again.
        assert run.connections.join("a", 1, "actor").resume_after_sequence == 5
        stream = await run.connections.open_stream("a", 1, SPEC, lost_through=5)
        await store(run, stream, segment(6))
        assert run.connections.join("a", 1, "actor").resume_after_sequence == 6
        assert (await run.connections.open_stream("a", 1, SPEC, lost_through=5)).acknowledged == 6
        assert run.training is not None
        assert run.training.storage().lost_segments == 4
        # Nothing more is logged about an actor whose losses are all counted.
        assert (await run.connections.open_stream("a", 1, SPEC, lost_through=6)).acknowledged == 6
        assert caplog.messages == [lost]


def fill(run: Run) -> None:
    """As many actors store a segment as the learner remembers, each with its own name."""
    assert run.training is not None
    for number in range(MOST_ACTORS):
        run.training.replay.sequences.advance(SegmentSource(number.to_bytes(16), 2**33 + number, 1))


@on_a_loop
async def test_an_actor_whose_last_sequence_is_forgotten_stores_nothing_twice(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        gone, kept = (run.connections.join(name, 0, "actor").incarnation for name in ("gone", "kept"))
        for name, incarnation in (("gone", gone), ("kept", kept)):
            await store(run, await run.connections.open_stream(name, incarnation, SPEC), segment(1), segment(2))
    async with a_run(tmp_path, resume=True) as run:
        await run.preparation.restore()
        # It is back in time, and remains silent.
        assert run.connections.join("kept", kept, "actor").resume_after_sequence == 2
        fill(run)
        assert run.connections.join("kept", kept, "actor").resume_after_sequence == 2
        with pytest.raises(NotFoundError, match=f"'gone'.*{gone}"):
            run.connections.join("gone", gone, "actor")
        again = run.connections.join("gone", 0, "actor")
        assert (again.incarnation > gone, again.resume_after_sequence) == (True, 0)
        stream = await run.connections.open_stream("gone", again.incarnation, SPEC)
        await store(run, stream, segment(1))
        assert run.connections.join("gone", again.incarnation, "actor").resume_after_sequence == 1


@on_a_loop
async def test_an_older_process_of_a_name_is_forgotten_too(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        old = run.connections.join("a", 0, "actor").incarnation
        await store(run, await run.connections.open_stream("a", old, SPEC), segment(1))
    async with a_run(tmp_path, resume=True) as run:
        await run.preparation.restore()
        fill(run)
        # Another process takes over the name with a number that was never used.
        with pytest.raises(NotFoundError):
            run.connections.join("a", old - 1, "actor")
        with pytest.raises(NotFoundError):
            run.connections.join("a", old, "actor")


@on_a_loop
async def test_the_end_of_an_actor_is_logged_once_and_not_after_a_takeover(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with a_run(tmp_path) as run:
        broken, taken = await opened(run), await opened(run)
        again = run.connections.join("a", 0, "actor").incarnation
        for stream in (broken, taken):
            run.connections.close_stream(stream)
        assert "a left" not in caplog.messages
        streams = [await run.connections.open_stream("a", again, SPEC) for _ in range(2)]
        run.streams.close(streams[0])
        run.connections.close_stream(streams[1])
        run.connections.close_stream(streams[0])
    assert caplog.messages.count("a left") == 1


@on_a_loop
async def test_lost_sequences_of_hostile_members_fit_into_the_status(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        for number in range(5):
            run.connections.join(f"a-{number}", 1, "actor")
            await run.connections.open_stream(f"a-{number}", 1, SPEC, lost_through=2**62 - 1)
        message = wire.run_status_to_proto(Reporter(run).status())
        assert message.storage.lost_segments == 2**62


@on_a_loop
async def test_an_actor_that_rejoins_makes_only_the_remaining_random_steps(tmp_path: Path) -> None:
    async with a_run(tmp_path, settings=config(exploration={"random_steps": 73})) as run:
        first = run.connections.join("a", 1, "actor").exploration
        # 73 steps of the run, in 4 actors of 2 environments.
        assert first is not None
        assert first.random_steps == 10
        stream = await run.connections.open_stream("a", 1, SPEC)
        for number in range(1, 6):
            await store(run, stream, segment(number))
        again = run.connections.join("a", 1, "actor").exploration
        assert again is not None
        assert again.random_steps == 5


@on_a_loop
async def test_the_learner_continues_above_a_newer_version_that_an_actor_knows(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        stream = await opened(run)
        assert run.training is not None
        publisher = run.training.publisher
        known = publisher.version
        run.connections.check_state("a", 0, known)
        assert Reporter(run).status().outdated == ""
        run.connections.check_state("a", 0, known + 2800)
        assert re.match(f"a .*{known + 2800}, .*{known}", Reporter(run).status().outdated)
        assert publisher.version == known
        snapshot = Snapshot(1, {}, {}, 0.0)
        assert publisher.offer(snapshot) == known + 2801
        await store(run, stream, segment(1, spans=(PolicySpan(0, known + 2800, "int8"),)))
        # No actor uses the numbers up.
        run.connections.check_state("a", 0, 2**62 - 1)
        assert publisher.offer(snapshot) == known + 2802


@on_a_loop
async def test_an_actor_of_a_newer_epoch_is_refused_and_shown_in_the_status(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        with pytest.raises(UnavailableError, match="epoch 7"):
            run.connections.check_state("actor-3", 7, 0)
        assert re.match("actor-3 .*epoch 7", Reporter(run).status().outdated)
        assert run.connections.join("a", 1, "actor").epoch == 0
