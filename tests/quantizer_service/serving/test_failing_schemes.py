"""A scheme of an installed package that fails ends its own watchers' streams, and no publication."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorq.config.schemes import installed_schemes
from actorq.domain.policy import Variant
from actorq.errors import UnavailableError
from actorq.telemetry.process_stats import measure_process
from quantizer_service.emission.emitter import Emitter
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.store.store import PolicyStore
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint

SOURCE = mlp(8, 8)
SCHEMES = '''
from actorq.quantization.schemes.int8 import Int8


class Unplanned(Int8):
    name = "unplanned"

    def plan(self, graph, options):
        raise ZeroDivisionError("bits / 0")


class Unemitted:
    """Plans as int8, and cannot emit."""

    name, observed = "unemitted", ()

    def plan(self, graph, options):
        return self

    def emit(self, parameters, statistics, metadata):
        raise ZeroDivisionError("bits / 0")
'''


@pytest.fixture(params=["unplanned", "unemitted"])
def scheme(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a scheme that fails, of a package that is installed for this test."""
    information = tmp_path / "failing-1.0.dist-info"
    information.mkdir()
    (tmp_path / "failing_schemes.py").write_text(SCHEMES, "utf-8")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n", "utf-8")
    points = "unplanned = failing_schemes:Unplanned\nunemitted = failing_schemes:Unemitted\n"
    (information / "entry_points.txt").write_text(f"[actorq.schemes]\n{points}", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    installed_schemes.cache_clear()
    yield str(request.param)
    installed_schemes.cache_clear()


@pytest.mark.parametrize("own", ["int8", "auto"])
def test_it_ends_the_streams_of_its_watchers_alone(
    scheme: str, own: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        quantizer = Quantizer(Emitter(PolicyStore(tmp_path / "store", 4, 1)), lambda: measure_process("x", "quantizer"))
        await quantizer.claim("run", own)
        await quantizer.add_graph(SOURCE)
        with (
            quantizer.policies.subscribe(Variant(scheme)) as failing,
            quantizer.policies.subscribe(Variant("int8")) as watching,
        ):
            receipt = await quantizer.publish(checkpoint(SOURCE, 1), own, 0.0)
            assert [policy.scheme for policy in receipt.policies] == ["int8"]
            found = await watching.next()
            assert found is not None
            assert found.descriptor.version == 1
            with pytest.raises(UnavailableError, match=f"^{scheme}: emitting the policy failed: ZeroDivisionError"):
                await failing.next()

    asyncio.run(scenario())
    assert f"{scheme} is left out of this version" in caplog.text
