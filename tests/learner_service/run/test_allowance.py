"""No evaluator fills the disk with evaluations."""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from actorq.errors import ExhaustedError, UnavailableError
from actorq.statefiles.lines import encode_line
from learner_service.actors.credits import ActorStream
from learner_service.actors.members import Member
from learner_service.run.evaluations import Entry
from learner_service.run.judge import Allowance, EvaluationAllowance, most_line_bytes
from tests.builders.clocks import ManualClock
from tests.learner_service.learner_parts import acknowledged, config, evaluation, on_a_loop, segment, store, until
from tests.learner_service.run.run_parts import a_run, opened

LARGE = evaluation(1, 1, *[-1.2345678901234567e-30] * 10_000)


async def refused(stream: ActorStream) -> BaseException | None:
    await until(stream, lambda: stream.fault is not None)
    return stream.fault


def judge(name: str) -> Member:
    return Member(name, "evaluator", 0, incarnation=1)


def test_an_excess_over_the_allowance_is_paid_before_the_next_write() -> None:
    clock = ManualClock()
    allowance = Allowance(rate=10.0, most=100.0, clock=clock)
    allowance.spend(150)
    assert not allowance.has_some
    clock.now = 5.0
    assert not allowance.has_some
    clock.now = 5.1
    assert allowance.has_some
    clock.now = 1_000.0
    assert allowance.has_some
    allowance.spend(100)
    assert not allowance.has_some


def test_one_evaluator_does_not_use_the_allowance_of_another() -> None:
    allowance = EvaluationAllowance(ManualClock())
    busy, quiet = judge("busy"), judge("quiet")

    def flood() -> None:
        for _ in range(1_000):
            allowance.spend(busy, LARGE)

    with pytest.raises(ExhaustedError, match=r"16384.*'busy'"):
        flood()
    allowance.spend(quiet, LARGE)


def test_new_names_do_not_make_the_log_grow_faster() -> None:
    allowance = EvaluationAllowance(ManualClock())
    members = [judge(f"judge-{number}") for number in range(1_000)]

    def flood() -> None:
        for member in members:
            allowance.spend(member, LARGE)

    with pytest.raises(ExhaustedError, match="65536"):
        flood()


@on_a_loop
async def test_an_evaluator_that_sends_too_much_is_refused_and_another_is_not(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        busy, quiet = await opened(run, "busy", "evaluator"), await opened(run, "quiet", "evaluator")
        returns = LARGE.returns

        def flood() -> None:
            for sequence in range(1, 100):
                run.connections.evaluated(busy, evaluation(sequence, 1, *returns))

        with pytest.raises(ExhaustedError):
            flood()
        run.connections.evaluated(quiet, evaluation(1, 1, 10.0))
        await acknowledged(quiet, 1)
        # What was stored already is no new line.
        run.connections.evaluated(busy, evaluation(1, 1, *returns))
    log = tmp_path / "evaluations.jsonl"
    assert log.stat().st_size < 2**21


def test_a_line_is_no_larger_than_is_counted() -> None:
    longest = replace(LARGE, lengths=(2**62,) * 10_000)
    entry = Entry("\U0001f600" * 32, 2**63 - 1, 2**63 - 1, 1e12, longest)
    assert len(encode_line(asdict(entry))) <= most_line_bytes(longest)


@on_a_loop
async def test_evaluations_wait_while_the_disk_is_low_and_actors_do_not_wait_for_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The disk has more than actors need, and less than evaluations need.
    least = int(shutil.disk_usage(tmp_path).free / 1.12)
    settings = config(replay={"capacity": 2_000, "min_size": 64, "min_free_bytes": least})
    async with a_run(tmp_path, settings) as run:
        actor = await opened(run)
        for _ in range(2):
            stream = await opened(run, "judge", "evaluator")
            run.connections.evaluated(stream, evaluation(1, 1, 10.0))
            fault = await refused(stream)
            assert isinstance(fault, UnavailableError)
            assert "evaluations" in str(fault)
            assert run.records.evaluations.count == 0
        await store(run, actor, segment(1))
    assert caplog.text.count("evaluations wait") == 1
