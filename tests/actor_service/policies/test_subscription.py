"""The newest valid policy is in the slot, for any policies from the quantizer."""

import logging
import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from actor_service.counts import ActorCounts
from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot, check_state
from actor_service.policies.subscription import Subscription
from actorq.client import QuantizerClient
from actorq.domain.policy import Policy, PolicyDescriptor
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import ConflictError, ExhaustedError, InvalidInputError, NotFoundError, UnavailableError
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedQuantizer, serving
from tests.actor_service.actor_policies import as_policy, constant_policy, recurrent_policy

CARTPOLE = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,))


class Side:
    """The actor around a subscription."""

    def __init__(self, address: str) -> None:
        self.counts = ActorCounts()
        self.slot = PolicySlot(self.counts)
        self.loads: queue.Queue[int] = queue.Queue()
        self.faults: queue.Queue[BaseException] = queue.Queue()
        self.broken: Exception | None = None
        self.while_loading: Callable[[], None] = lambda: None
        self.least_wanted = self.state_size = 0
        self.asked: queue.Queue[int] = queue.Queue()
        self.subscription = Subscription(
            lambda: QuantizerClient(address),
            self.slot,
            self._load,
            self.faults.put,
            PolicyCheck(self._load, self.slot.wake, discrete=True),
            "int8-weights",
            lambda _, __: pytest.fail("nothing is chosen"),
            self._is_wanted,
        )

    def has(self, version: int) -> bool:
        """Wait for a version."""
        return self.slot.wait(lambda descriptor: descriptor.version == version, DEADLINE_S) is not None

    def _is_wanted(self, descriptor: PolicyDescriptor) -> bool:
        self.asked.put(descriptor.version)
        return descriptor.version >= self.least_wanted

    def _load(self, policy: Policy) -> OnnxPolicy:
        self.loads.put(policy.descriptor.version)
        self.while_loading()
        if self.broken is not None:
            raise self.broken
        loaded = OnnxPolicy(policy, ArraySpec((4,), "float32"), batch=2)
        check_state(loaded, self.state_size)
        return loaded


@pytest.fixture
def quantizer() -> ScriptedQuantizer:
    return ScriptedQuantizer()


@pytest.fixture
def side(quantizer: ScriptedQuantizer) -> Iterator[Side]:
    with serving(quantizer) as address:
        side = Side(address)
        side.subscription.start()
        yield side
        side.subscription.close()


def good(version: int) -> Policy:
    return constant_policy([0.0, 1.0], version=version)


def test_every_newer_policy_replaces_the_previous_one(quantizer: ScriptedQuantizer, side: Side) -> None:
    request = quantizer.watched()
    assert (request.scheme, request.after_version) == ("int8-weights", 0)
    for version in (1, 2, 5):
        quantizer.serve(good(version))
        assert side.has(version)


def test_a_bad_policy_is_skipped_and_the_next_good_one_is_used(quantizer: ScriptedQuantizer, side: Side) -> None:
    quantizer.watched()
    quantizer.serve(good(1))
    assert side.has(1)
    bad = [as_policy(b"garbage", version=2), constant_policy([0.0, 1.0], observation_size=9, version=3)]
    for policy in bad:
        quantizer.serve(policy)
        while side.loads.get(timeout=DEADLINE_S) != policy.descriptor.version:
            pass
    newest = side.slot.peek()
    assert newest is not None
    assert newest.descriptor.version == 1
    quantizer.serve(good(4))
    assert side.has(4)
    assert side.faults.empty()


def test_a_policy_with_a_state_of_another_size_is_skipped(
    quantizer: ScriptedQuantizer, side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    """The run's segments have states of one size, so such a policy is never swapped in."""
    quantizer.watched()
    side.state_size = 8
    served = [recurrent_policy(size, version=version) for version, size in ((1, 8), (2, 16), (3, 8))]
    for policy in served[:2]:
        quantizer.serve(policy)
        while side.loads.get(timeout=DEADLINE_S) != policy.descriptor.version:
            pass
    quantizer.serve(served[2])
    assert side.has(3)
    assert side.faults.empty()
    (told,) = (record.getMessage() for record in caplog.records if "keeping the previous policy" in record.getMessage())
    assert told.startswith(
        "policy version 2: expected a state of 8 numbers, as the run says, got a state of 16 numbers"
    )
    assert "\n" not in told


def test_a_policy_is_loaded_only_once_a_thread_wants_it(quantizer: ScriptedQuantizer, side: Side) -> None:
    quantizer.watched()
    side.least_wanted = 4
    for version in (1, 2, 5):
        quantizer.serve(good(version))
    assert side.has(5)
    side.least_wanted = 100
    quantizer.serve(good(6))
    while side.asked.get(timeout=DEADLINE_S) != 6:
        pass
    # So the quantizer is not the reason for the old policy.
    assert side.slot.served_version == 6
    side.least_wanted = 6
    side.subscription.recheck()
    assert side.has(6)
    assert list(side.loads.queue) == [5, 6]


def test_after_a_broken_stream_it_requests_newer_versions(quantizer: ScriptedQuantizer, side: Side) -> None:
    quantizer.watched()
    quantizer.serve(good(3))
    assert side.has(3)
    quantizer.fail(UnavailableError("as the test wants it"))
    assert quantizer.watched().after_version == 3
    quantizer.end()
    assert quantizer.watched().after_version == 3
    assert side.counts.quantizer_retries.value == 2
    quantizer.serve(good(4))
    assert side.has(4)
    assert side.faults.empty()


def test_a_broken_policy_opens_the_stream_again(quantizer: ScriptedQuantizer, side: Side) -> None:
    quantizer.watched()
    quantizer.serve(good(1))
    assert side.has(1)
    # Its digest no longer matches its descriptor.
    quantizer.serve(replace(good(2), model=b"other bytes"))
    assert quantizer.watched().after_version == 1
    # A name that reaches for the terminal.
    quantizer.serve(replace(good(3), descriptor=replace(good(3).descriptor, run_id="\x1b[2J")))
    assert quantizer.watched().after_version == 1
    quantizer.serve(good(4))
    assert side.has(4)
    assert side.faults.empty()


def test_an_unrequested_policy_opens_the_stream_again(quantizer: ScriptedQuantizer, side: Side) -> None:
    quantizer.watched()
    quantizer.serve(good(3))
    assert side.has(3)
    other_scheme = replace(good(4), descriptor=replace(good(4).descriptor, scheme="fp32"))
    for policy in (other_scheme, good(2), good(3)):
        quantizer.serve(policy)
        assert quantizer.watched().after_version == 3
    quantizer.serve(good(4))
    assert side.has(4)
    assert list(side.loads.queue) == [3, 4]
    assert side.faults.empty()


@pytest.mark.parametrize(
    "error",
    [
        ExhaustedError("this service takes at most 1 open calls at a time; try again later"),
        InvalidInputError("it took more than 60 s and was ended"),
        ConflictError("this quantizer does not have the graph"),
        RuntimeError("an error in the quantizer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_quantizer_that_cannot_serve_now_is_asked_again(
    quantizer: ScriptedQuantizer, side: Side, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    quantizer.watched()
    quantizer.fail(error)
    quantizer.watched()
    assert "connected again" not in caplog.text
    quantizer.serve(good(1))
    assert side.has(1)
    assert side.faults.empty()
    # The first policy is the answer that ends the count of failures.
    assert re.search("connected again .*1 attempts", caplog.text)


def test_an_unknown_scheme_is_a_fault(quantizer: ScriptedQuantizer, side: Side) -> None:
    quantizer.watched()
    quantizer.fail(NotFoundError("scheme 'int8-weights' does not exist"))
    fault = side.faults.get(timeout=DEADLINE_S)
    assert isinstance(fault, NotFoundError)
    assert "scheme 'int8-weights' does not exist" in str(fault)


def test_a_loader_that_fails_unexpectedly_is_a_fault(quantizer: ScriptedQuantizer, side: Side) -> None:
    side.broken = MemoryError("as the test wants it")
    quantizer.watched()
    quantizer.serve(good(1))
    assert side.faults.get(timeout=DEADLINE_S) is side.broken
    assert side.slot.peek() is None


def test_closing_ends_the_stream_and_is_not_a_fault(quantizer: ScriptedQuantizer, side: Side) -> None:
    quantizer.watched()
    side.subscription.close()
    assert quantizer.left.acquire(timeout=DEADLINE_S)
    assert side.faults.empty()
    assert side.counts.quantizer_retries.value == 0


def test_a_policy_that_waits_when_it_is_closed_is_never_loaded(quantizer: ScriptedQuantizer, side: Side) -> None:
    next_one_waits = threading.Event()

    def close() -> None:
        assert next_one_waits.wait(DEADLINE_S)
        side.subscription.close()

    side.while_loading = close
    quantizer.watched()
    quantizer.serve(good(1))
    assert side.loads.get(timeout=DEADLINE_S) == 1
    quantizer.serve(good(2))
    quantizer.end()
    assert quantizer.watched().after_version == 2
    next_one_waits.set()
    side.subscription.close()
    assert side.has(1)
    assert side.loads.empty()
