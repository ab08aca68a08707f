"""The actor changes over to the scheme that was chosen, chooses again when it has to, and acts meanwhile."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from actor_service.policies.comparison import ROWS, PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.selection import Selection
from actor_service.policies.subscription import Subscription
from actorq.client import QuantizerClient
from actorq.domain.policy import SCHEMES, Policy
from actorq.domain.spaces import ArraySpec
from actorq.errors import ActorQError, InvalidInputError, NotFoundError, UnavailableError
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedQuantizer, serving
from tests.actor_service.actor_policies import as_policy, constant_policy


def policy(scheme: str, version: int, graph_digest: bytes = b"first".ljust(32)) -> Policy:
    plain = as_policy(constant_policy([0.0, 1.0]).model, version, scheme)
    return replace(plain, descriptor=replace(plain.descriptor, graph_digest=graph_digest))


def policies(version: int, graph_digest: bytes = b"first".ljust(32)) -> list[Policy]:
    return [policy(scheme, version, graph_digest) for scheme in SCHEMES]


class Side:
    """The actor around a subscription. `choices` has the schemes to choose."""

    def __init__(self, address: str) -> None:
        self.slot = PolicySlot()
        self.faults: queue.Queue[BaseException] = queue.Queue()
        self.choices: queue.Queue[Selection | ActorQError] = queue.Queue()
        # The candidates of each choice, and the acting scheme.
        self.chosen_among: queue.Queue[tuple[dict[str, int], str]] = queue.Queue()
        self.check = PolicyCheck(self._load, self.slot.wake, discrete=True)
        self.clients: list[QuantizerClient] = []
        self.while_loading: Callable[[Policy], None] = lambda policy: None
        self._address = address
        self.subscription = Subscription(
            self._connect,
            self.slot,
            self._load,
            self.faults.put,
            self.check,
            "auto",
            self._select,
        )

    def _connect(self) -> QuantizerClient:
        self.clients.append(QuantizerClient(self._address))
        return self.clients[-1]

    def acts_with(self, scheme: str, version: int) -> bool:
        """Wait for a policy."""
        return self.slot.wait(lambda found: (found.scheme, found.version) == (scheme, version), DEADLINE_S) is not None

    def chose(self) -> tuple[dict[str, int], str]:
        """Wait for a choice: the versions of the candidates by scheme, and the scheme that acted."""
        return self.chosen_among.get(timeout=DEADLINE_S)

    def settles(self) -> bool:
        """Wait until the chosen scheme acts."""
        return self.slot.wait(self.subscription.settled, DEADLINE_S) is not None

    def _load(self, policy: Policy) -> OnnxPolicy:
        self.while_loading(policy)
        return OnnxPolicy(policy, ArraySpec((4,), "float32"), batch=2)

    def _select(self, candidates: Iterable[Policy], incumbent: str) -> Selection:
        versions = {candidate.descriptor.scheme: candidate.descriptor.version for candidate in candidates}
        self.chosen_among.put((versions, incumbent))
        choice = self.choices.get(timeout=DEADLINE_S)
        if isinstance(choice, ActorQError):
            raise choice
        return choice


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


def begin(quantizer: ScriptedQuantizer, side: Side, choice: Selection | ActorQError, version: int = 1) -> None:
    """fp32 acts, and the choice is made."""
    assert quantizer.watched().scheme == "fp32"
    quantizer.offer(*policies(version))
    quantizer.serve(policy("fp32", version))
    assert side.acts_with("fp32", version)
    side.choices.put(choice)
    assert side.chose() == (dict.fromkeys(SCHEMES, version), "fp32")


def test_it_acts_with_fp32_until_the_choice_and_then_with_the_chosen_scheme(
    quantizer: ScriptedQuantizer, side: Side
) -> None:
    request = quantizer.watched()
    assert (request.scheme, request.after_version) == ("fp32", 0)
    quantizer.offer(*policies(1))
    for version in (1, 2):
        quantizer.serve(policy("fp32", version))
        # The choice is not made yet.
        assert side.acts_with("fp32", version)
    side.choices.put(Selection("int8", {}))
    assert side.chose() == (dict.fromkeys(SCHEMES, 1), "fp32")
    request = quantizer.watched()
    # The fp32 stream has ended. The newest version acts again, now in the new scheme.
    assert (request.scheme, request.after_version) == ("int8", 1)
    assert quantizer.left.acquire(timeout=DEADLINE_S)
    assert side.subscription.scheme == "int8"
    quantizer.serve(policy("int8", 2))
    assert side.acts_with("int8", 2)
    assert side.settles()


def test_a_policy_of_the_old_scheme_that_is_still_loading_does_not_act(
    quantizer: ScriptedQuantizer, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[tuple[str, int]] = []
    put_policy = side.slot.put

    def noted(policy: OnnxPolicy) -> None:
        put.append((policy.descriptor.scheme, policy.descriptor.version))
        put_policy(policy)

    monkeypatch.setattr(side.slot, "put", noted)
    quantizer.watched()
    quantizer.offer(*policies(1))
    quantizer.serve(policy("fp32", 1))
    side.chose()
    loading, go_on = threading.Event(), threading.Event()

    def wait(_: Policy) -> None:
        loading.set()
        assert go_on.wait(DEADLINE_S)

    side.while_loading = wait
    quantizer.serve(policy("fp32", 2))
    assert loading.wait(DEADLINE_S)
    side.choices.put(Selection("int8", {}))
    request = quantizer.watched()
    assert (request.scheme, request.after_version) == ("int8", 0)
    go_on.set()
    quantizer.serve(policy("int8", 2))
    assert side.acts_with("int8", 2)
    assert put == [("fp32", 1), ("int8", 2)]


def test_closing_closes_its_connections(quantizer: ScriptedQuantizer, side: Side) -> None:
    begin(quantizer, side, Selection("int8", {}))
    assert quantizer.watched().scheme == "int8"
    side.subscription.close()
    # One to choose with, and one for the stream of each scheme.
    assert len(side.clients) == 3
    for client in side.clients:
        with pytest.raises(UnavailableError, match="closed"):
            client.get("fp32")


def test_a_choice_that_fails_unexpectedly_is_a_fault(quantizer: ScriptedQuantizer, side: Side) -> None:
    error = NotFoundError("as the test wants it")
    begin(quantizer, side, error)
    assert side.faults.get(timeout=DEADLINE_S) is error


def test_the_fp32_stream_continues_if_fp32_wins(quantizer: ScriptedQuantizer, side: Side) -> None:
    begin(quantizer, side, Selection("fp32", {}))
    assert side.settles()
    quantizer.serve(policy("fp32", 2))
    assert side.acts_with("fp32", 2)
    assert quantizer.watches.empty()
    assert side.chosen_among.empty()


def test_another_topology_acts_at_once_and_causes_a_new_choice(quantizer: ScriptedQuantizer, side: Side) -> None:
    begin(quantizer, side, Selection("int8", {}))
    assert quantizer.watched().scheme == "int8"
    quantizer.serve(policy("int8", 1))
    assert side.settles()
    quantizer.offer(*policies(2, b"second".ljust(32)))
    quantizer.serve(policy("int8", 2, b"second".ljust(32)))
    assert side.acts_with("int8", 2)
    assert side.chose() == (dict.fromkeys(SCHEMES, 2), "int8")
    newest = side.slot.peek()
    assert newest is not None
    assert not side.subscription.settled(newest.descriptor)
    side.choices.put(Selection("int4", {}))
    request = quantizer.watched()
    assert (request.scheme, request.after_version) == ("int4", 1)
    quantizer.serve(policy("int4", 2, b"second".ljust(32)))
    assert side.acts_with("int4", 2)
    assert side.settles()


def test_refused_schemes_are_tried_again_when_the_version_has_doubled(quantizer: ScriptedQuantizer, side: Side) -> None:
    begin(quantizer, side, Selection("fp32", {}, held_back=True), version=3)
    assert side.settles()
    for version in (4, 5):
        quantizer.serve(policy("fp32", version))
        assert side.acts_with("fp32", version)
    assert side.chosen_among.empty()
    quantizer.offer(*policies(6))
    quantizer.serve(policy("fp32", 6))
    assert side.chose() == (dict.fromkeys(SCHEMES, 6), "fp32")
    side.choices.put(Selection("int8", {}))
    assert quantizer.watched().scheme == "int8"


def test_a_scheme_that_the_quantizer_lacks_is_tried_again_later(quantizer: ScriptedQuantizer, side: Side) -> None:
    assert quantizer.watched().scheme == "fp32"
    quantizer.offer(policy("fp32", 1), policy("int4", 1))
    quantizer.serve(policy("fp32", 1))
    side.choices.put(Selection("fp32", {}))
    assert side.chose() == ({"fp32": 1, "int4": 1}, "fp32")
    assert side.settles()
    quantizer.offer(*policies(2))
    side.choices.put(Selection("fp32", {}))
    quantizer.serve(policy("fp32", 2))
    assert side.chose() == (dict.fromkeys(SCHEMES, 2), "fp32")


def test_without_candidates_the_present_scheme_stays(quantizer: ScriptedQuantizer, side: Side) -> None:
    begin(quantizer, side, InvalidInputError("as the test wants it"))
    assert side.settles()
    quantizer.serve(policy("fp32", 2))
    assert side.acts_with("fp32", 2)


def test_candidates_of_two_topologies_are_requested_again(quantizer: ScriptedQuantizer, side: Side) -> None:
    assert quantizer.watched().scheme == "fp32"
    newer = policies(2, b"second".ljust(32))
    quantizer.offer(policy("fp32", 2, b"second".ljust(32)), *policies(1)[1:])
    quantizer.serve(policy("fp32", 1))
    for _ in SCHEMES:
        quantizer.asked.get(timeout=DEADLINE_S)
    quantizer.offer(*newer)
    side.choices.put(Selection("fp32", {}))
    versions, _ = side.chose()
    assert set(versions.values()) == {2}


def test_a_fault_of_the_new_stream_is_reported(quantizer: ScriptedQuantizer) -> None:
    with serving(quantizer) as address:
        side = Side(address)
        side.subscription.start()
        begin(quantizer, side, Selection("int8", {}))
        assert quantizer.watched().scheme == "int8"
        quantizer.fail(NotFoundError("as the test wants it"))
        assert isinstance(side.faults.get(timeout=DEADLINE_S), NotFoundError)
        side.slot.close()
        side.subscription.close()


def test_closing_while_it_chooses_ends_all_streams(quantizer: ScriptedQuantizer, side: Side) -> None:
    assert quantizer.watched().scheme == "fp32"
    quantizer.offer(*policies(1))
    quantizer.serve(policy("fp32", 1))
    side.chose()
    side.slot.close()
    closing = threading.Thread(target=side.subscription.close)
    closing.start()
    side.choices.put(Selection("fp32", {}))
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert quantizer.left.acquire(timeout=DEADLINE_S)


def test_a_wrongly_computed_scheme_is_not_chosen_again(quantizer: ScriptedQuantizer, side: Side) -> None:
    begin(quantizer, side, Selection("int8", {}))
    quantizer.watched()
    wrong = reported(as_policy(constant_policy([9.0, 1.0]).model, 2, "int8"))
    quantizer.offer(*(wrong if each.descriptor.scheme == "int8" else each for each in policies(2)))
    quantizer.serve(wrong)
    assert side.acts_with("int8", 2)
    acting = side.slot.peek()
    assert acting is not None
    side.choices.put(Selection("int4", {}))
    for _ in range(ROWS // 2):
        acting(np.zeros((2, 4), np.float32))
    # Chosen again, without it.
    assert side.chose() == ({scheme: 2 for scheme in SCHEMES if scheme != "int8"}, "int8")
    assert quantizer.watched().scheme == "int4"
    assert side.subscription.avoided == "int8"


def reported(plain: Policy) -> Policy:
    """The policy with a report that a comparison may rely on."""
    fidelity = replace(plain.descriptor.fidelity, observations=256)
    return replace(plain, descriptor=replace(plain.descriptor, graph_digest=b"first".ljust(32), fidelity=fidelity))
