"""A scheme of an installed package that fails ends its own watchers' streams, and no publication."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorq.arithmetic import arithmetic
from actorq.config.schemes import SCHEME_ENTRY_POINTS, installed_schemes
from actorq.domain.policy import SIGNED, UNSIGNED, Variant
from actorq.errors import InvalidInputError, UnavailableError
from actorq.telemetry.process_stats import measure_process
from quantizer_service.emission.emitter import Emitter
from quantizer_service.serving.publishers import Turn
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.store.store import PolicyStore
from tests.builders.packages import install_package
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint

SOURCE = mlp(8, 8)
SCHEMES = '''
from dataclasses import replace

import onnx

from actorq.quantization.schemes.int8 import INT8


class Unplanned:
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


class Unencoded:
    """As int8, with weights that are no constants, so that no unsigned ones can be made of them."""

    name = "unencoded"

    def plan(self, graph, options):
        return Computed(INT8.plan(graph, options))


class Computed:
    def __init__(self, plan):
        self.plan, self.observed, self.training = plan, plan.observed, plan.training

    def emit(self, parameters, statistics, metadata):
        emission = self.plan.emit(parameters, statistics, metadata)
        model = onnx.load_from_string(emission.model)
        for node in [node for node in model.graph.node if node.op_type == "DynamicQuantizeMatMul"]:
            made = onnx.helper.make_node("Identity", [node.input[1]], [node.input[1] + ":same"])
            node.input[1] = made.output[0]
            model.graph.node.insert(0, made)
        return replace(emission, model=model.SerializeToString())
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of failing schemes is installed for this test."""
    points = {name: f"failing_schemes:{name.title()}" for name in ("unplanned", "unemitted", "unencoded")}
    install_package(tmp_path, "failing_schemes", SCHEMES, SCHEME_ENTRY_POINTS, points)
    monkeypatch.syspath_prepend(tmp_path)
    installed_schemes.cache_clear()
    yield
    installed_schemes.cache_clear()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("scheme", ["unplanned", "unemitted"])
@pytest.mark.parametrize("own", ["int8", "auto"])
def test_a_failing_scheme_ends_the_streams_of_its_own_watchers_only(
    scheme: str, own: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        quantizer = Quantizer(Emitter(PolicyStore(tmp_path / "store", 4, 1)), lambda: measure_process("x", "quantizer"))
        await quantizer.claim("run", own, Turn())
        await quantizer.add_graph(SOURCE)
        with (
            quantizer.policies.watch(Variant(scheme)) as failing,
            quantizer.policies.watch(Variant("int8")) as watching,
        ):
            receipt = await quantizer.publish(checkpoint(SOURCE, 1), own, 0.0)
            assert [policy.scheme for policy in receipt.policies] == ["int8"]
            found = await watching.next()
            assert found is not None
            assert found.descriptor.version == 1
            with pytest.raises(UnavailableError, match=f"^{scheme}: .*ZeroDivisionError"):
                await failing.next()

    asyncio.run(scenario())
    assert f"{scheme} is left out" in caplog.text


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("own", ["unencoded", "int8"])
def test_a_watcher_of_an_encoding_that_cannot_be_made_ends_alone(own: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        quantizer = Quantizer(Emitter(PolicyStore(tmp_path / "store", 4, 1)), lambda: measure_process("x", "quantizer"))
        await quantizer.claim("run", own, Turn())
        source = mlp(16, 16, 16)
        await quantizer.add_graph(source)
        with (
            quantizer.policies.watch(Variant("unencoded", UNSIGNED)) as failing,
            quantizer.policies.watch(Variant("unencoded")) as watching,
        ):
            await quantizer.publish(checkpoint(source, 1), own, 0.0)
            found = await watching.next()
            assert found is not None
            assert found.descriptor.version == 1
            if SIGNED in arithmetic().weight_encodings:
                with pytest.raises(InvalidInputError, match="unsigned"):
                    await failing.next()
            else:
                # The gate cannot measure it here, so it is served in float.
                assert found.descriptor.effective_scheme == "fp32"

    asyncio.run(scenario())
