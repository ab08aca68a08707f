"""The publisher against a real quantizer on a real socket."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.policy import PolicyGraph
from actorq.domain.status import Receipt
from actorq.domain.trajectory import Evaluation
from actorq.errors import ConflictError
from actorq_apps.local.services import reserved_addresses
from learner_service.training.publisher import Publisher, Snapshot
from tests.builders.graphs import graph_of
from tests.learner_service.learner_servers import DEADLINE_S, running_quantizer

SHAPES = {"0.weight": [8, 4], "0.bias": [8], "1.weight": [2, 8], "1.bias": [2]}


def policy_graph() -> PolicyGraph:
    """Two layers, weights as graph inputs."""
    nodes = [
        helper.make_node("Gemm", ["observations", "0.weight", "0.bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["relu"]),
        helper.make_node("Gemm", ["relu", "1.weight", "1.bias"], ["q_values"], transB=1),
    ]
    inputs = [helper.make_tensor_value_info("observations", TensorProto.FLOAT, ["batch", 4])]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
    outputs = [helper.make_tensor_value_info("q_values", TensorProto.FLOAT, ["batch", 2])]
    body = helper.make_graph(nodes, "policy", inputs, outputs)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return graph_of(model.SerializeToString(), ("observations",))


def snapshot(step: int) -> Snapshot:
    rng = np.random.default_rng(step)
    parameters = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    calibration = {"observations": rng.standard_normal((16, 4)).astype(np.float32)}
    return Snapshot(step, parameters, calibration, at=1_700_000_000.0 + step)


class Receipts:
    """Takes a publisher's receipts and waits for them."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Receipt] = queue.Queue()
        self.put = self._queue.put

    def next(self) -> Receipt:
        return self._queue.get(timeout=DEADLINE_S)

    @property
    def empty(self) -> bool:
        return self._queue.empty()


@pytest.fixture
def receipts() -> Receipts:
    return Receipts()


MakePublisher = Callable[..., Publisher]


@pytest.fixture
def make_publisher(receipts: Receipts) -> Iterator[MakePublisher]:
    made: list[tuple[Publisher, QuantizerClient]] = []

    def make(address: str, run_id: str = "run", first_version: int = 1) -> Publisher:
        client = QuantizerClient(address)
        made.append((Publisher(client, wire.Opening(run_id, "int8"), receipts.put, first_version), client))
        return made[-1][0]

    yield make
    for publisher, client in made:
        publisher.close()
        client.close()


class Refusal(logging.Handler):
    """Set as soon as the log has a refused version. `then` is called first, in the publisher's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = threading.Event()
        self.then: Callable[[], object] = lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        if "refused" in record.getMessage():
            self.then()
            self.noted.set()


@pytest.fixture
def refusal() -> Iterator[Refusal]:
    handler, logger = Refusal(), logging.getLogger("learner_service.training.publisher")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def until(condition: Callable[[], bool]) -> None:
    """Wait for an event in the publisher's thread."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_a_receipt_comes_for_each_version(tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher) -> None:
    with running_quantizer(tmp_path) as address:
        publisher = make_publisher(address)
        publisher.start(policy_graph())
        for version in (1, 2, 3):
            assert publisher.offer(snapshot(version * 100)) == version
            receipt = receipts.next()
            assert receipt.version == version
            (policy,) = receipt.policies
            assert (policy.run_id, policy.scheme, policy.learner_step) == ("run", "int8", version * 100)
            assert policy.snapshot_at == 1_700_000_000.0 + version * 100
            assert policy.fidelity.observations == 16
            assert receipt.process.role == "quantizer"
        assert publisher.flush(DEADLINE_S)
        assert publisher.connected
        assert (publisher.version, publisher.fault) == (3, None)


def test_the_newest_snapshot_replaces_older_ones(
    tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher
) -> None:
    with running_quantizer(tmp_path) as address:
        publisher = make_publisher(address)
        for step in range(1, 21):
            publisher.offer(snapshot(step))
        publisher.start(policy_graph())
        assert publisher.flush(DEADLINE_S)
        assert receipts.next().version == 20
        assert receipts.empty


def test_a_leaving_learner_waits_only_for_a_connected_quantizer(
    tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher
) -> None:
    publisher = make_publisher("127.0.0.1:1")
    publisher.start(policy_graph())
    publisher.offer(snapshot(1))
    # For ever, if it waited.
    assert not publisher.flush(threading.TIMEOUT_MAX, wait_for_quantizer=False)
    with running_quantizer(tmp_path) as address:
        publisher = make_publisher(address)
        publisher.start(policy_graph())
        publisher.offer(snapshot(1))
        receipts.next()
        assert publisher.offer(snapshot(2)) == 2
        assert publisher.flush(DEADLINE_S, wait_for_quantizer=False)
        assert receipts.next().version == 2


def test_versions_continue_after_the_quantizer_was_unreachable(
    tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher
) -> None:
    with reserved_addresses(1) as (address,):
        publisher = make_publisher(address)
        with running_quantizer(tmp_path, address):
            publisher.start(policy_graph())
            publisher.offer(snapshot(1))
            assert publisher.flush(DEADLINE_S)
        # A version that was sent to the ending quantizer would get a new number.
        until(lambda: not publisher.connected)
        for step in (2, 3):
            publisher.offer(snapshot(step))
        with running_quantizer(tmp_path, address):
            assert publisher.flush(DEADLINE_S)
            assert [receipts.next().version for _ in range(2)] == [1, 3]
            assert publisher.version == 3
        until(lambda: not publisher.connected)
        with running_quantizer(tmp_path, address):
            assert publisher.offer(snapshot(4)) == 4
            assert publisher.flush(DEADLINE_S)
            assert receipts.next().version == 4
        assert publisher.fault is None


@pytest.mark.parametrize("first_version", [1, 3])
def test_a_learner_that_lost_versions_continues_above_the_actors_versions(
    tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher, first_version: int
) -> None:
    with running_quantizer(tmp_path) as address:
        before = make_publisher(address)
        before.start(policy_graph())
        for step in (1, 2, 3):
            before.offer(snapshot(step))
            assert receipts.next().version == step
        before.close()
        after = make_publisher(address, first_version=first_version)
        after.offer(snapshot(100))
        after.start(policy_graph())
        assert after.flush(DEADLINE_S)
        receipt = receipts.next()
        assert (receipt.version, receipt.policies[0].learner_step) == (4, 100)
        assert after.version == 4


def test_a_learner_that_is_ahead_keeps_its_numbers(
    tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher
) -> None:
    with running_quantizer(tmp_path) as address:
        publisher = make_publisher(address, first_version=7)
        publisher.offer(snapshot(1))
        publisher.start(policy_graph())
        assert receipts.next().version == publisher.version == 7


def test_a_policy_that_diverged_is_refused_and_the_next_one_is_not(
    tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher, refusal: Refusal
) -> None:
    with running_quantizer(tmp_path) as address:
        publisher = make_publisher(address)
        publisher.start(policy_graph())
        publisher.offer(snapshot(1))
        assert receipts.next().version == 1
        diverged = snapshot(2)
        diverged.parameters["1.bias"][0] = np.nan
        publisher.offer(diverged)
        assert refusal.noted.wait(DEADLINE_S)
        publisher.offer(snapshot(3))
        assert publisher.flush(DEADLINE_S)
        assert receipts.next().version == 3
        assert publisher.fault is None


def test_a_snapshot_offered_as_a_stream_ends_goes_to_the_next_stream(
    tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher, refusal: Refusal
) -> None:
    with running_quantizer(tmp_path) as address:
        publisher = make_publisher(address)

        def offer_and_let_the_old_stream_take_it() -> None:
            publisher.offer(snapshot(2))
            publisher.flush(0.2)

        refusal.then = offer_and_let_the_old_stream_take_it
        diverged = snapshot(1)
        diverged.parameters["1.bias"][0] = np.nan
        publisher.offer(diverged)
        publisher.start(policy_graph())
        assert refusal.noted.wait(DEADLINE_S)
        assert publisher.flush(DEADLINE_S)
        # A number that the old stream used would count as sent, and the version would get a new number.
        assert receipts.next().version == 2


def test_evaluations_reach_the_quantizer(tmp_path: Path, receipts: Receipts, make_publisher: MakePublisher) -> None:
    with running_quantizer(tmp_path) as address:
        publisher = make_publisher(address)
        publisher.start(policy_graph())
        publisher.offer(snapshot(1))
        assert publisher.flush(DEADLINE_S)
        publisher.evaluated(Evaluation(1, 1, 100, "int8", (10.0, 30.0), (10, 30), 1.0))
        assert publisher.flush(DEADLINE_S)
        publisher.offer(snapshot(2))  # its receipt comes after the evaluation was received
        assert publisher.flush(DEADLINE_S)
        with QuantizerClient(address) as client:
            assert {policy.version: policy.mean_return for policy in client.list()} == {1: 20.0, 2: None}


def test_the_store_of_another_run_is_a_clear_fault(tmp_path: Path, make_publisher: MakePublisher) -> None:
    with running_quantizer(tmp_path) as address:
        first = make_publisher(address, run_id="first")
        first.start(policy_graph())
        first.offer(snapshot(1))
        assert first.flush(DEADLINE_S)
        second = make_publisher(address, run_id="second")
        second.start(policy_graph())
        second.offer(snapshot(1))
        assert not second.flush(DEADLINE_S)
        assert isinstance(second.fault, ConflictError)
        assert "first" in str(second.fault)
        assert not second.connected
        assert first.fault is None


def test_closing_does_not_wait_for_an_unreachable_quantizer(make_publisher: MakePublisher) -> None:
    publisher = make_publisher("127.0.0.1:1")
    publisher.start(policy_graph())
    publisher.offer(snapshot(1))
    assert not publisher.flush(0.0)
    publisher.close()
    assert not publisher.connected
    assert publisher.fault is None
