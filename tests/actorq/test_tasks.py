"""Work whose caller no longer waits."""

import asyncio
import gc

import pytest

from actorq.errors import InvalidInputError
from actorq.tasks import may_be_left


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (InvalidInputError("batch: must be positive"), []),
        (OSError("no space left"), ["writing version 3", "OSError", "no space left"]),
    ],
)
def test_logs_one_line_for_a_bug_and_none_for_domain_errors(
    error: Exception, facts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    async def scenario() -> None:
        work = may_be_left(asyncio.create_task(fail()), "writing version 3")
        await asyncio.wait((work,))

    asyncio.run(scenario())
    gc.collect()
    assert len(caplog.messages) == bool(facts)
    assert all(fact in caplog.text for fact in facts)


def test_a_caller_that_stays_gets_the_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise InvalidInputError("batch: must be positive")

    async def scenario() -> None:
        with pytest.raises(InvalidInputError, match="must be positive"):
            await may_be_left(asyncio.create_task(fail()), "a batch")

    asyncio.run(scenario())


def test_work_that_is_cancelled_has_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        work = may_be_left(asyncio.create_task(asyncio.Event().wait()), "waiting")
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait((work,))

    asyncio.run(scenario())
    assert caplog.messages == []
