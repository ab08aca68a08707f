"""An actor whose processor computes a scheme wrongly detects this and acts with int8-weights."""

import logging
import queue
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from actor_service.policies.comparison import FACTOR, LEAST_ERROR, ROWS, Comparison, PolicyCheck, compare
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.subscription import Subscription
from actorq.client import QuantizerClient
from actorq.domain.policy import FLOAT32, FidelityReport, LayerReport, Policy
from actorq.domain.spaces import ArraySpec
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedQuantizer, serving
from tests.actor_service.actor_policies import as_policy, gaussian_policy, linear_policy

BATCH = 4
OBSERVATIONS = ArraySpec((4,), "float32")
WEIGHTS = np.random.default_rng(7).standard_normal((4, 2)).astype(np.float32)
# Mean error 1% and largest 3% of a range of 5.
REPORT = FidelityReport(256, 0.05, 0.15, 0.01, 0.03, 0.97, (LayerReport("a", "int8 per channel"),))


def policy(scheme: str, version: int = 1, factor: float = 1.0, report: FidelityReport = REPORT) -> Policy:
    """A policy whose outputs are `factor` times those of fp32."""
    plain = as_policy(linear_policy(WEIGHTS * factor, np.zeros(2, np.float32)).model, version, scheme)
    return replace(plain, descriptor=replace(plain.descriptor, fidelity=report, graph_digest=b"t" * 32))


def load(given: Policy) -> OnnxPolicy:
    return OnnxPolicy(given, OBSERVATIONS, BATCH, actions=2)


class Side:
    """The actor around a subscription to int8."""

    def __init__(self, address: str, *avoided: str) -> None:
        self.slot = PolicySlot()
        self.faults: queue.Queue[BaseException] = queue.Queue()
        self.check = PolicyCheck(load, self.slot.wake, discrete=True, avoided=avoided)
        self.subscription = Subscription(
            lambda: QuantizerClient(address),
            self.slot,
            load,
            self.faults.put,
            self.check,
            "int8",
            lambda _, __: pytest.fail("nothing is chosen"),
        )
        self.rng = np.random.default_rng(3)

    def acts(self, scheme: str, version: int, rows: int = ROWS) -> None:
        """Wait for a policy, and act with it."""
        acting = self.slot.wait(lambda found: (found.scheme, found.version) == (scheme, version), DEADLINE_S)
        assert acting is not None
        for _ in range(rows // BATCH):
            acting(self.rng.standard_normal((BATCH, 4)).astype(np.float32))


@pytest.fixture
def quantizer() -> ScriptedQuantizer:
    return ScriptedQuantizer()


@pytest.fixture
def side(quantizer: ScriptedQuantizer) -> Iterator[Side]:
    with serving(quantizer) as address:
        side = Side(address)
        side.subscription.start()
        yield side
        side.slot.close()
        side.subscription.close()
        assert side.faults.empty()


def test_a_wrongly_computed_policy_is_logged_and_the_same_version_acts_as_int8_weights(
    quantizer: ScriptedQuantizer, side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert quantizer.watched().scheme == "int8"
    quantizer.offer(policy("fp32", 5), policy("int8", 5, factor=0.5))
    quantizer.serve(policy("int8", 5, factor=0.5))
    side.acts("int8", 5)
    request = quantizer.watched()
    assert (request.scheme, request.after_version) == ("int8-weights", 4)
    quantizer.serve(policy("int8-weights", 5))
    side.acts("int8-weights", 5)
    assert (side.subscription.scheme, side.subscription.avoided) == ("int8-weights", "int8")
    assert side.check.newest is not None
    assert side.check.newest.error > FACTOR * LEAST_ERROR
    wrong, instead = caplog.messages
    assert wrong.startswith("int8: mean error ")
    assert re.search("int8-weights .*int8 ", instead)


def test_a_policy_with_the_reported_error_stays_and_is_not_compared_again(
    quantizer: ScriptedQuantizer, side: Side
) -> None:
    quantizer.watched()
    quantizer.offer(policy("fp32", 5), policy("int8", 5, factor=1.01))
    quantizer.serve(policy("int8", 5, factor=1.01))
    side.acts("int8", 5)
    assert [quantizer.asked.get(timeout=DEADLINE_S) for _ in range(2)] == ["int8", "fp32"]
    quantizer.serve(policy("int8", 6, factor=0.5))
    side.acts("int8", 6)
    assert quantizer.watches.empty()
    assert quantizer.asked.empty()
    assert side.subscription.avoided == ""


def test_a_comparison_that_fails_is_tried_again_with_a_newer_version(quantizer: ScriptedQuantizer, side: Side) -> None:
    quantizer.watched()
    quantizer.serve(policy("int8", 5, factor=0.5))  # a policy that cannot be requested
    side.acts("int8", 5)
    assert quantizer.asked.get(timeout=DEADLINE_S) == "int8"
    quantizer.offer(policy("fp32", 6), policy("int8", 6, factor=0.5))
    quantizer.serve(policy("int8", 6, factor=0.5))
    side.acts("int8", 6, rows=0)
    assert quantizer.watched().scheme == "int8-weights"


IN_FLOAT = replace(REPORT, layers=(LayerReport("a", FLOAT32, "fidelity gate"),))


@pytest.mark.parametrize(
    "newest",
    [policy("int8", 6, report=IN_FLOAT), policy("int8", 6, report=replace(REPORT, observations=1))],
    ids=["nothing is quantized", "measured on zeros"],
)
def test_a_newest_version_without_quantized_layers_defers_the_comparison(
    quantizer: ScriptedQuantizer, side: Side, newest: Policy
) -> None:
    quantizer.watched()
    # The gate puts the next version in float before this one is compared.
    quantizer.offer(policy("fp32", 6), newest)
    quantizer.serve(policy("int8", 5, factor=0.5))
    side.acts("int8", 5)
    assert quantizer.asked.get(timeout=DEADLINE_S) == "int8"
    quantizer.offer(policy("fp32", 7), policy("int8", 7, factor=0.5))
    quantizer.serve(policy("int8", 7, factor=0.5))
    side.acts("int8", 7, rows=0)
    assert quantizer.watched().scheme == "int8-weights"


def test_a_scheme_that_is_wrong_in_each_encoding_is_int8_weights_from_the_start(
    quantizer: ScriptedQuantizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with serving(quantizer) as address:
        side = Side(address, "int8", "int8-static")
        side.subscription.start()
        assert quantizer.watched().scheme == "int8-weights"
        assert side.subscription.avoided == "int8"
        side.slot.close()
        side.subscription.close()
    (line,) = caplog.messages
    assert re.search("processor .*int8 .*int8-weights", line)


@pytest.mark.parametrize(
    "changes",
    [{"observations": 1}, {"layers": (LayerReport("a", FLOAT32, "fidelity gate"),)}],
    ids=["measured on zeros", "nothing is quantized"],
)
def test_a_policy_without_a_useful_report_is_not_compared(changes: dict[str, object]) -> None:
    given = policy("int8", report=replace(REPORT, **changes))  # type: ignore[arg-type]
    check = PolicyCheck(load, lambda: None, discrete=True)
    acting = check.watch(load(given))
    for _ in range(ROWS // BATCH):
        assert acting.on_observations is not None
        acting(np.zeros((BATCH, 4), np.float32))
    assert acting.on_observations is None
    assert not check.is_due(given.descriptor)
    assert check.is_due(policy("int8").descriptor)
    assert not check.is_due(policy("int8-weights").descriptor)


def test_another_topology_is_compared_again() -> None:
    check = PolicyCheck(load, lambda: None, discrete=True)
    first, second = policy("int8"), policy("int8", version=2)
    second = replace(second, descriptor=replace(second.descriptor, graph_digest=b"a" * 32))
    for given in (first, second):
        acting = check.watch(load(given))
        assert not check.is_due(given.descriptor)
        for _ in range(ROWS // BATCH):
            acting(np.zeros((BATCH, 4), np.float32))
        assert check.is_due(given.descriptor)


@pytest.mark.parametrize(
    ("error", "reported", "agreement", "mismatch"),
    [
        (0.039, 0.0, None, False),
        (0.041, 0.0, None, True),
        (0.19, 0.05, None, False),
        (0.21, 0.05, None, True),
        (0.03, 0.002, 0.6, True),
        (0.03, 0.002, 0.9, False),
        (0.03, 0.02, 0.6, False),
    ],
)
def test_an_error_far_above_the_reported_one_is_a_mismatch(
    error: float, reported: float, agreement: float | None, mismatch: bool
) -> None:
    reported_agreement = None if agreement is None else 0.97
    assert Comparison("int8", error, reported, agreement, reported_agreement).mismatch is mismatch


def test_errors_are_relative_to_the_range_of_the_report_and_stay_finite() -> None:
    batches = [np.eye(4, dtype=np.float32)] * 2
    compared = compare(load(policy("int8", factor=2.0)), load(policy("fp32")), batches, discrete=True)
    assert compared.error == pytest.approx(float(np.abs(WEIGHTS).mean()) / 5.0, rel=1e-5)
    assert compared.agreement == 1.0
    for factor in (1e30, np.inf):
        broken = compare(load(policy("int8", factor=factor)), load(policy("fp32")), batches, discrete=False)
        assert (broken.error, broken.agreement, broken.mismatch) == (1e6, None, True)


def test_a_gaussian_policy_is_compared_by_its_actions() -> None:
    def told(mean: float, log_std: float) -> OnnxPolicy:
        return load(replace_report(gaussian_policy([mean] * 2, [log_std] * 2)))

    batches = [np.zeros((BATCH, 4), np.float32)]
    # The first output is compared: the actions, with an error of 0.1 of a range of 5.
    compared = compare(told(0.6, -1.0), told(0.5, 3.0), batches, discrete=False)
    assert compared.error == pytest.approx(0.02, rel=1e-4)
    assert not compared.mismatch


def replace_report(given: Policy) -> Policy:
    return replace(given, descriptor=replace(given.descriptor, scheme="int8", fidelity=REPORT))
