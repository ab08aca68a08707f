import asyncio

import pytest

from actorq.errors import NotFoundError
from quantizer_service.serving.board import Board


def test_a_watcher_gets_the_newest_and_misses_what_was_between() -> None:
    async def scenario() -> list[str | None]:
        board: Board[str] = Board()
        with board.subscribe("int8") as slow:
            board.post(1, [("int8", "one")])
            first = await slow.next()
            for version in range(2, 100):
                board.post(version, [("int8", f"version {version}")])
            return [first, await slow.next()]

    assert asyncio.run(scenario()) == ["one", "version 99"]


def test_a_waiting_watcher_is_woken_and_shares_the_item_with_the_others() -> None:
    async def scenario() -> tuple[object, list[object]]:
        board: Board[object] = Board()
        item = object()
        with board.subscribe("int8") as one, board.subscribe("int8") as other:
            waiting = [asyncio.create_task(one.next()), asyncio.create_task(other.next())]
            await asyncio.wait(waiting, timeout=0)
            board.post(1, [("int8", item)])
            return item, await asyncio.gather(*waiting)

    item, (one, other) = asyncio.run(scenario())
    assert item is one is other


def test_only_versions_above_the_one_that_is_named_and_of_the_scheme_count() -> None:
    async def scenario() -> str | None:
        board: Board[str] = Board()
        board.post(3, [("int8", "old"), ("fp32", "other scheme")])
        with board.subscribe("int8", after_version=3) as subscription:
            waiting = asyncio.create_task(subscription.next())
            board.post(9, [("fp32", "other scheme")])
            await asyncio.wait([waiting], timeout=0)
            assert not waiting.done()
            board.post(4, [("int8", "new")])
            return await waiting

    assert asyncio.run(scenario()) == "new"


def test_an_older_version_never_replaces_a_newer_one() -> None:
    board: Board[str] = Board()
    board.post(5, [("int8", "five")])
    board.post(4, [("int8", "four"), ("fp32", "four")])

    assert (board.version("int8"), board.version("fp32"), board.version("int4")) == (5, 4, 0)


def test_subscribers_and_their_schemes_are_counted() -> None:
    board: Board[str] = Board()
    with board.subscribe("int8"), board.subscribe("fp32") as left:
        assert (board.subscribers, board.schemes) == (2, ("fp32", "int8"))
        assert board.subscribers_by_scheme == {"fp32": 1, "int8": 1}
        left.close()
        left.close()
        assert (board.subscribers, board.schemes) == (1, ("int8",))
    assert (board.subscribers, board.schemes) == (0, ())
    assert not board.subscribers_by_scheme


def test_a_post_and_a_leaving_watcher_wake_nobody_whom_they_do_not_concern() -> None:
    async def scenario() -> tuple[bool, bool]:
        board: Board[str] = Board()
        with board.subscribe("int8") as concerned, board.subscribe("fp32") as other, board.subscribe("fp32") as leaving:
            tasks = [asyncio.create_task(each.next()) for each in (concerned, other, leaving)]
            await asyncio.wait(tasks, timeout=0)
            waits_for = other._waiting
            board.post(1, [("int8", "one")])
            leaving.close()
            await asyncio.gather(tasks[0], tasks[2])
            untouched = other._waiting is waits_for and not tasks[1].done()
            board.close()
            return untouched, await tasks[1] is None

    assert asyncio.run(scenario()) == (True, True)


def test_it_tells_when_nobody_watches_a_scheme_any_more() -> None:
    idle: list[str] = []
    board: Board[str] = Board(idle.append)
    with board.subscribe("int8"), board.subscribe("fp32") as one:
        with board.subscribe("fp32"):
            pass
        assert idle == []
        one.close()
        assert idle == ["fp32"]
    assert idle == ["fp32", "int8"]


def test_a_refusal_reaches_those_who_watch_now_and_nobody_later() -> None:
    async def scenario() -> str | None:
        board: Board[str] = Board()
        with board.subscribe("int2") as refused:
            waiting = asyncio.create_task(refused.next())
            await asyncio.wait([waiting], timeout=0)
            board.refuse("int2", NotFoundError("no such scheme"))
            with pytest.raises(NotFoundError, match="no such scheme"):
                await waiting
        with board.subscribe("int2") as later:
            board.post(1, [("int2", "one")])
            return await later.next()

    assert asyncio.run(scenario()) == "one"


def test_closing_ends_watchers_that_wait_after_what_they_have_not_seen() -> None:
    async def scenario() -> list[str | None]:
        board: Board[str] = Board()
        with board.subscribe("int8") as waiting, board.subscribe("fp32") as behind:
            task = asyncio.create_task(waiting.next())
            await asyncio.wait([task], timeout=0)
            board.post(1, [("fp32", "one")])
            board.close()
            return [await task, await behind.next(), await behind.next()]

    assert asyncio.run(scenario()) == [None, "one", None]
