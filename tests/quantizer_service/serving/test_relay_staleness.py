"""A relay's knowledge of the past is never served instead of newer data."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from actorq.client import QuantizerClient
from actorq.domain.policy import Variant
from actorq.errors import NotFoundError, UnavailableError
from actorq.transport.reconnect import Backoff
from quantizer_service.serving.policy_stream import policy_messages
from quantizer_service.serving.relay import Relay
from quantizer_service.serving.upstream import Upstream
from tests.quantizer_service.scripted_upstream import DEADLINE_S, ScriptedUpstream, policy, scripted_upstream


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[Relay, ScriptedUpstream]]:
    """A relay in this event loop, and the upstream that it watches over a real socket."""
    with scripted_upstream() as (address, upstream):
        relay = Relay(Upstream(QuantizerClient(address)), Backoff(0.01, 0.1), now=lambda: 1_700_000_010.0)
        yield relay, upstream
        relay.begin_drain()
        await relay.settle()


async def all_that_waits_is_done() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def until_connected(relay: Relay, connected: bool) -> None:
    await until(lambda: relay.connected == {Variant("int8"): connected})


async def version_of(relay: Relay) -> tuple[str, int]:
    descriptor = (await relay.get(Variant("int8"))).descriptor
    return descriptor.run_id, descriptor.version


def test_a_policy_of_the_previous_runs_stream_is_ignored() -> None:
    async def scenario() -> None:
        async with relayed() as (relay, upstream):
            with await relay.watch(Variant("int8"), 0) as watching, await relay.watch(Variant("fp32"), 0):
                upstream.send(policy_messages(policy(5, "first")))
                assert await watching.next() is not None
                # Both streams were opened, and that of int8 once more.
                for _ in range(3):
                    upstream.wait_for_call()
                # The event loop stands still until both streams have brought a policy: a stream is opened again then.
                upstream.send(policy_messages(policy(1, "second")))
                upstream.wait_for_call()
                upstream.send(policy_messages(policy(6, "first", "fp32")), "fp32")
                upstream.wait_for_call()
                await all_that_waits_is_done()
                assert relay.run_id == "second"
                assert relay.policies.version(Variant("fp32")) == 0

    asyncio.run(scenario())


def test_a_policy_that_arrives_after_the_last_watcher_left_is_ignored() -> None:
    async def scenario() -> None:
        async with relayed() as (relay, upstream):
            with await relay.watch(Variant("int8"), 0):
                upstream.wait_for_call()
                upstream.send(policy_messages(policy(1)))
                upstream.wait_for_call()
            await all_that_waits_is_done()
            assert (relay.policies.version(Variant("int8")), relay.relayed[Variant("int8")]) == (0, 0)

    asyncio.run(scenario())


def test_for_an_unwatched_scheme_the_newer_of_the_local_and_upstream_policy_is_served() -> None:
    async def scenario() -> None:
        async with relayed() as (relay, upstream):
            with await relay.watch(Variant("int8"), 0) as watching:
                upstream.send(policy_messages(policy(7)))
                assert await watching.next() is not None
            assert await version_of(relay) == ("run", 7)
            # An upstream that was started again may serve an older one for a moment.
            for newest, served in ((policy(6), ("run", 7)), (policy(8), ("run", 8))):
                upstream.newest = policy_messages(newest)
                assert await version_of(relay) == served
            # Versions of another run cannot be compared.
            upstream.newest = policy_messages(policy(2, "next"))
            assert await version_of(relay) == ("next", 2)

    asyncio.run(scenario())


def test_a_local_version_is_not_requested_upstream() -> None:
    async def scenario() -> None:
        async with relayed() as (relay, upstream):
            with await relay.watch(Variant("int8"), 0) as watching:
                upstream.send(policy_messages(policy(7)))
                assert await watching.next() is not None
                upstream.newest = policy_messages(policy(8))
                assert (await relay.get(Variant("int8"), 7)).descriptor.version == 7

    asyncio.run(scenario())


def test_the_measurements_of_a_run_end_with_it() -> None:
    async def scenario() -> None:
        async with relayed() as (relay, upstream):
            with (
                await relay.watch(Variant("int8"), 0) as watching,
                await relay.watch(Variant("fp32"), 0) as floats,
            ):
                for scheme, watcher in (("int8", watching), ("fp32", floats)):
                    upstream.send(policy_messages(policy(4, "first", scheme)), scheme)
                    assert await watcher.next() is not None
                assert relay.lag_seconds == {Variant("int8"): 6.0, Variant("fp32"): 6.0}
                # The same version with other bytes is refused, and so is a version whose bytes differ from its
                # descriptor. They come one after the other, because a late loop gets only the newest policy.
                upstream.send(policy_messages(policy(4, "first", size=2_000)))
                await until(lambda: relay.refused[Variant("int8")] == 1)
                upstream.send(policy_messages(replace(policy(5, "first"), model=bytes(1_000))))
                await until(lambda: relay.refused[Variant("int8")] == 2)
                upstream.send(policy_messages(policy(5, "first")))
                assert await watching.next() is not None
                assert (relay.relayed, relay.refused) == (
                    {Variant("int8"): 2, Variant("fp32"): 1},
                    {Variant("int8"): 2},
                )
                upstream.send(policy_messages(policy(1, "second")))
                assert await watching.next() is None
                assert relay.lag_seconds == {Variant("int8"): 9.0}

    asyncio.run(scenario())


def test_a_watcher_after_a_refusal_makes_the_relay_ask_its_upstream_again() -> None:
    async def scenario() -> None:
        async with relayed() as (relay, upstream):
            with await relay.watch(Variant("int8"), 0) as refused:
                upstream.refuse("scheme: expected one of fp32")
                with pytest.raises(NotFoundError, match="fp32"):
                    await refused.next()
                # Also while the refused watchers are still there.
                with await relay.watch(Variant("int8"), 0) as later:
                    upstream.send(policy_messages(policy(1)))
                    assert await later.next() is not None

    asyncio.run(scenario())


def test_a_relay_reports_a_missing_upstream_and_refuses_watchers_while_it_drains() -> None:
    async def scenario() -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            relay = Relay(Upstream(QuantizerClient(f"127.0.0.1:{nobody.getsockname()[1]}")))
            with await relay.watch(Variant("int8"), 0):
                assert relay.connected == {Variant("int8"): False}
                relay.begin_drain()
                with pytest.raises(UnavailableError, match="draining"):
                    await relay.watch(Variant("int8"), 0)
            await relay.settle()
            # Its connections are closed. Calls that are still open may succeed elsewhere.
            for call in (relay.describe("int8"), relay.get(Variant("int8"), 1), relay.hold(1, 1.0)):
                with pytest.raises(UnavailableError, match="ending"):
                    await call

    asyncio.run(scenario())


def test_a_relay_reports_that_its_upstream_is_unreachable() -> None:
    async def scenario() -> None:
        with ExitStack() as there:
            address, upstream = there.enter_context(scripted_upstream())
            relay = Relay(Upstream(QuantizerClient(address)), Backoff(0.01, 0.1))
            with await relay.watch(Variant("int8"), 0) as watching:
                upstream.send(policy_messages(policy(1)))
                assert await watching.next() is not None
                # The upstream has ended that stream, and the next one stays open.
                await until_connected(relay, True)
                there.close()
                await until_connected(relay, False)
            relay.begin_drain()
            await relay.settle()

    asyncio.run(scenario())


def test_a_stream_that_fails_unexpectedly_is_a_failure_of_the_relay() -> None:
    async def scenario() -> None:
        upstream = Upstream(QuantizerClient("127.0.0.1:1"))
        relay = Relay(upstream)
        upstream.close()
        with await relay.watch(Variant("int8"), 0):
            with pytest.raises(ValueError, match="Channel closed"):
                await relay.failed
            assert relay.connected == {}
        await relay.settle()

    asyncio.run(scenario())


def test_the_end_of_a_stream_that_brought_a_policy_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with relayed() as (relay, upstream):
            with await relay.watch(Variant("int8"), 0) as watching:
                for messages in (policy_messages(policy(1)), ()):
                    upstream.send(messages)
                assert await watching.next() is not None
                for _ in range(3):
                    upstream.wait_for_call()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    levels = [record.levelname for record in caplog.records if "stream of int8" in record.getMessage()]
    assert levels[:2] == ["INFO", "WARNING"]
