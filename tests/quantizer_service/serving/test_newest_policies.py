import asyncio

import pytest

from actorq.domain.policy import Variant
from actorq.errors import NotFoundError
from quantizer_service.serving.newest_policies import NewestPolicies
from quantizer_service.serving.policy_stream import EncodedPolicy
from tests.quantizer_service.scripted_upstream import policy


def encoded(version: int, scheme: str = "int8") -> EncodedPolicy:
    return EncodedPolicy.of(policy(version, scheme=scheme, size=10))


def test_a_watcher_gets_the_newest_policy_and_skips_earlier_ones() -> None:
    async def scenario() -> list[EncodedPolicy | None]:
        newest = NewestPolicies()
        with newest.watch(Variant("int8")) as slow:
            newest.put([encoded(1)])
            first = await slow.next()
            for version in range(2, 100):
                newest.put([encoded(version)])
            return [first, await slow.next()]

    assert asyncio.run(scenario()) == [encoded(1), encoded(99)]


def test_a_waiting_watcher_is_woken_and_shares_the_policy_with_the_others() -> None:
    async def scenario() -> None:
        newest = NewestPolicies()
        item = encoded(1)
        with newest.watch(Variant("int8")) as one, newest.watch(Variant("int8")) as other:
            waiting = [asyncio.create_task(one.next()), asyncio.create_task(other.next())]
            await asyncio.wait(waiting, timeout=0)
            newest.put([item])
            found = await asyncio.gather(*waiting)
            assert found[0] is found[1] is item

    asyncio.run(scenario())


def test_a_watcher_gets_only_versions_of_its_scheme_above_the_named_one() -> None:
    async def scenario() -> EncodedPolicy | None:
        newest = NewestPolicies()
        newest.put([encoded(3), encoded(3, "fp32")])
        with newest.watch(Variant("int8"), after_version=3) as watcher:
            waiting = asyncio.create_task(watcher.next())
            newest.put([encoded(9, "fp32")])
            await asyncio.wait([waiting], timeout=0)
            assert not waiting.done()
            newest.put([encoded(4)])
            return await waiting

    assert asyncio.run(scenario()) == encoded(4)


def test_an_older_version_never_replaces_a_newer_one() -> None:
    newest = NewestPolicies()
    newest.put([encoded(5)])
    newest.put([encoded(4), encoded(4, "fp32")])

    assert (newest.version(Variant("int8")), newest.version(Variant("fp32")), newest.version(Variant("int4"))) == (
        5,
        4,
        0,
    )
    assert (newest.get(Variant("int8")), newest.get(Variant("int4"))) == (encoded(5), None)
    assert {scheme: each.version for scheme, each in newest.descriptors.items()} == {
        Variant("int8"): 5,
        Variant("fp32"): 4,
    }


def test_old_unwatched_policies_are_forgotten() -> None:
    newest = NewestPolicies()
    newest.put([encoded(5), encoded(4, "fp32"), encoded(4, "int4")])
    with newest.watch(Variant("int4")):
        newest.forget_unwatched(below=5)
        assert {scheme: each.version for scheme, each in newest.descriptors.items()} == {
            Variant("int8"): 5,
            Variant("int4"): 4,
        }


def test_watchers_and_their_schemes_are_counted() -> None:
    newest = NewestPolicies()
    with newest.watch(Variant("int8")), newest.watch(Variant("fp32")) as left:
        assert newest.watchers_by_variant == {Variant("fp32"): 1, Variant("int8"): 1}
        left.close()
        left.close()
        assert (newest.watchers_by_variant, newest.variants) == ({Variant("int8"): 1}, (Variant("int8"),))
    assert newest.variants == ()
    assert not newest.watchers_by_variant


def test_a_leaving_watcher_does_not_end_the_others_of_its_scheme() -> None:
    async def scenario() -> list[EncodedPolicy | None]:
        newest = NewestPolicies()
        with newest.watch(Variant("fp32")) as staying, newest.watch(Variant("fp32")) as leaving:
            tasks = [asyncio.create_task(each.next()) for each in (staying, leaving)]
            await asyncio.wait(tasks, timeout=0)
            leaving.close()
            newest.put([encoded(1, "fp32")])
            return await asyncio.gather(*tasks)

    assert asyncio.run(scenario()) == [encoded(1, "fp32"), None]


def test_the_callback_runs_when_the_last_watcher_of_a_scheme_leaves() -> None:
    idle: list[Variant] = []
    newest = NewestPolicies(idle.append)
    with newest.watch(Variant("int8")), newest.watch(Variant("fp32")) as one:
        with newest.watch(Variant("fp32")):
            pass
        assert idle == []
        one.close()
        assert idle == [Variant("fp32")]
    assert idle == [Variant("fp32"), Variant("int8")]


def test_a_refusal_reaches_current_watchers_and_no_later_ones() -> None:
    async def scenario() -> EncodedPolicy | None:
        newest = NewestPolicies()
        with newest.watch(Variant("int2")) as refused:
            waiting = asyncio.create_task(refused.next())
            await asyncio.wait([waiting], timeout=0)
            newest.refuse(Variant("int2"), NotFoundError("no such scheme"))
            with pytest.raises(NotFoundError, match="no such scheme"):
                await waiting
        with newest.watch(Variant("int2")) as later:
            newest.put([encoded(1, "int2")])
            return await later.next()

    assert asyncio.run(scenario()) == encoded(1, "int2")


def test_closing_ends_waiting_watchers_after_their_last_unseen_policy() -> None:
    async def scenario() -> list[EncodedPolicy | None]:
        newest = NewestPolicies()
        with newest.watch(Variant("int8")) as waiting, newest.watch(Variant("fp32")) as behind:
            task = asyncio.create_task(waiting.next())
            await asyncio.wait([task], timeout=0)
            newest.put([encoded(1, "fp32")])
            newest.close()
            return [await task, await behind.next(), await behind.next()]

    assert asyncio.run(scenario()) == [None, encoded(1, "fp32"), None]
