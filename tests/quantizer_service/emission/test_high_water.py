"""A version number has one content for ever, wherever the quantizer is killed."""

import asyncio
import os
import shutil
import signal
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

from actorq.client import QuantizerClient
from actorq.domain.policy import MAX_VERSION_STEP, Policy, Variant
from actorq.errors import ConflictError, InvalidInputError, UnavailableError
from actorq.statefiles.highwater import BLOCK, HighWaterMark
from actorq.telemetry.process_stats import measure_process
from quantizer_service.emission.emitter import Emitter
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.store.store import PolicyStore
from tests.builders.processors import INT8_HERE
from tests.builders.service_process import service_process
from tests.quantizer_service.policy_runs import checkpoint, random_parameters
from tests.quantizer_service.quantizer_server import SOURCE, Publisher

KILLS = 4


def opened(path: Path) -> Emitter:
    return Emitter(PolicyStore(path, retain_newest=4, retain_best=1))


def ready(path: Path) -> Emitter:
    emitter = opened(path)
    emitter.catalog.claim("run")
    emitter.add_graph(SOURCE)
    return emitter


def goes_on_after_a_kill(store: Path) -> int:
    """The version above which a quantizer continues that starts with the present files."""
    found = store.with_name("found")
    shutil.rmtree(found, ignore_errors=True)
    # What is being written on another thread may be renamed before it is copied.
    shutil.copytree(store, found, ignore=shutil.ignore_patterns(".*.partial"))
    return opened(found).catalog.claim("run")[0]


def test_a_version_number_is_reserved_before_the_version_is_served(tmp_path: Path) -> None:
    store = tmp_path / "store"
    emitter = ready(store)
    goes_on: list[int] = []

    def check(_: object = None) -> None:
        goes_on.append(goes_on_after_a_kill(store))

    for version in (1, 2, BLOCK, 5 * BLOCK, 10**9):
        goes_on.clear()
        emitter.publish(checkpoint(SOURCE, version), ["int8"], announce=check)
        check()
        assert len(goes_on) == 2
        assert min(goes_on) >= version


def test_the_number_of_a_served_version_stays_reserved_if_its_files_are_lost(tmp_path: Path) -> None:
    store = tmp_path / "store"

    async def scenario() -> None:
        quantizer = serving(ready(store))
        with await quantizer.watch(Variant("int8"), 0) as watcher:
            for version in range(1, 2 * BLOCK, 7):
                publishing = asyncio.create_task(quantizer.publish(checkpoint(SOURCE, version), "int8", 0.0))
                await watcher.next()
                # Other files on the disk do not count, because the worker writes them meanwhile.
                shutil.copy(store / "high_water.json", tmp_path)
                assert HighWaterMark(tmp_path / "high_water.json", 0).floor >= version
                await publishing

    asyncio.run(scenario())


def serving(emitter: Emitter) -> Quantizer:
    return Quantizer(emitter, partial(measure_process, "quantizer", "quantizer"))


def test_a_version_is_not_served_when_its_number_cannot_be_stored(tmp_path: Path) -> None:
    emitter = ready(tmp_path)
    in_the_way = tmp_path / ".high_water.json.partial"

    async def scenario() -> None:
        quantizer = serving(emitter)
        in_the_way.mkdir()
        with pytest.raises(UnavailableError, match=r"high_water\.json"):
            await quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0)
        assert emitter.catalog.newest_version == 0
        in_the_way.rmdir()
        assert (await quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0)).version == 1

    asyncio.run(scenario())


def test_a_version_that_cannot_be_stored_is_also_served_in_schemes_requested_later(tmp_path: Path) -> None:
    emitter = ready(tmp_path)
    in_the_way = tmp_path / ".00000001.partial"
    in_the_way.mkdir()

    async def scenario() -> None:
        quantizer = serving(emitter)
        with await quantizer.watch(Variant("int8"), 0) as watcher:
            with pytest.raises(UnavailableError, match=f"{tmp_path} .*File exists"):
                await quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0)
            found = await watcher.next()
            assert found is not None
            assert found.descriptor.version == 1
        assert (await quantizer.get(Variant("fp32"))).descriptor.version == 1
        assert emitter.catalog.list_versions() == ((), "")
        in_the_way.rmdir()
        await quantizer.publish(checkpoint(SOURCE, 2), "int8", 0.0)
        assert [entry.version for entry in emitter.catalog.list_versions()[0]] == [2]

    asyncio.run(scenario())


def test_a_watcher_of_a_scheme_that_cannot_be_emitted_or_of_a_draining_quantizer_is_refused(tmp_path: Path) -> None:
    emitter = ready(tmp_path)

    async def scenario() -> None:
        quantizer = serving(emitter)
        await quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0)
        (tmp_path / "00000001" / ".policy-fp32.onnx.partial").mkdir()
        with pytest.raises(UnavailableError, match=f"{tmp_path}/00000001 .*Is a directory"):
            await quantizer.watch(Variant("fp32"), 0)
        assert quantizer.policies.variants == ()
        quantizer.begin_drain()
        with pytest.raises(UnavailableError, match="draining"):
            await quantizer.watch(Variant("int8"), 0)

    asyncio.run(scenario())


def test_a_scheme_that_was_served_before_the_version_was_stored_is_stored_with_it(tmp_path: Path) -> None:
    emitter = ready(tmp_path)
    late: list[Policy] = []
    emitter.publish(
        checkpoint(SOURCE, 1), ["int8"], lambda _: late.append(emitter.catalog.get(Variant("int8-weights")))
    )

    assert PolicyStore.policy(opened_again(tmp_path), 1, Variant("int8-weights")) == late[0]


def opened_again(path: Path) -> PolicyStore:
    copy = path.with_name(f"{path.name} as it was left")
    shutil.copytree(path, copy)
    return PolicyStore(copy, retain_newest=4, retain_best=1)


def test_a_version_that_lacks_a_policy_that_was_stored_is_damaged(tmp_path: Path) -> None:
    emitter = ready(tmp_path)
    for version in (1, 2):
        taken = checkpoint(SOURCE, version)
        emitter.publish(taken, ["int8"])
    # As a power cut may leave it.
    for path in (tmp_path / "00000002").glob("policy-int8.*"):
        path.unlink()

    store = opened_again(tmp_path)

    assert store.versions()[0].version == 1
    assert f"['{INT8_HERE}']" in store.damaged[2]


def test_versions_beyond_the_step_are_refused_and_change_nothing(tmp_path: Path) -> None:
    emitter = ready(tmp_path)
    emitter.publish(checkpoint(SOURCE, 5), ["int8"])

    with pytest.raises(InvalidInputError, match=f"{5 + MAX_VERSION_STEP}, .*{6 + MAX_VERSION_STEP}"):
        emitter.publish(checkpoint(SOURCE, 6 + MAX_VERSION_STEP), ["int8"])
    with pytest.raises(ConflictError, match=r"above 5, .*5"):
        emitter.publish(checkpoint(SOURCE, 5), ["int8"])

    assert emitter.publish(checkpoint(SOURCE, 6), ["int8"])[0].descriptor.version == 6


def test_no_version_is_served_with_two_contents_by_processes_that_are_killed_while_they_publish(tmp_path: Path) -> None:
    """Each life has another publisher. It begins above the version in `ready`, like a learner without counters."""
    served: dict[int, bytes] = {}
    for life in range(KILLS):
        store = str(tmp_path / "store")
        with service_process("quantizer", "--store", store) as process, QuantizerClient(process.address) as client:
            publisher = Publisher(client)
            first = publisher.open().newest_version + 1
            publisher.send_graph(SOURCE)
            watch, versions = client.watch("int8", after_version=first - 1), count(first)
            for _ in range(1 + life):
                # Several at once: the kill comes while others are emitted, served or stored. More of them each time: a
                # watcher that is late sees the newest one only.
                for version in islice(versions, 20):
                    publisher.send_checkpoint(
                        checkpoint(SOURCE, version, parameters=random_parameters(SOURCE, 1000 * life + version))
                    )
                descriptor = next(watch).descriptor
                assert served.setdefault(descriptor.version, descriptor.sha256) == descriptor.sha256
                assert descriptor.version >= first
            os.kill(process.pid, signal.SIGKILL)
    assert len(served) >= KILLS
