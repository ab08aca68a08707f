"""One replica acts at a time: a Lease that is held, handed over, lost, and protected from older versions."""

import threading
from collections.abc import Iterator

import pytest

from actorq.errors import ActorQError
from actorq_apps.operator.leader import LEASE, Leader, NewerVersionError, Times
from tests.actorq_apps.cluster.hanging import hanging
from tests.actorq_apps.operator.kube_api import KubeApi, kube_api

TIMES = Times(duration_s=15.0, give_up_s=10.0, retry_s=0.001)


class Clock:
    """A clock that the test advances. Each reading adds `step`."""

    def __init__(self, step: float = 0.0) -> None:
        self.at = 0.0
        self._step = step

    def __call__(self) -> float:
        self.at += self._step
        return self.at


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with kube_api() as server:
        yield server


def leader(api: KubeApi, name: str, clock: Clock, version: str = "0.2.0") -> Leader:
    return Leader(api.cluster(), name, version, TIMES, clock)


def holder(api: KubeApi) -> str:
    return str(api.get("Lease", LEASE)["spec"]["holderIdentity"])


def test_only_one_of_two_replicas_leads(api: KubeApi) -> None:
    clock = Clock()
    assert leader(api, "a", clock).try_once()
    assert not leader(api, "b", clock).try_once()
    assert holder(api) == "a"


def test_another_replica_takes_over_when_the_lease_is_not_renewed(api: KubeApi) -> None:
    clock = Clock()
    assert leader(api, "a", clock).try_once()
    other = leader(api, "b", clock)
    assert not other.try_once()
    clock.at += 14.9
    assert not other.try_once()
    clock.at += 0.2
    assert other.try_once()
    assert holder(api) == "b"


def test_a_renewed_lease_is_not_taken_over(api: KubeApi) -> None:
    clock = Clock()
    first, other = leader(api, "a", clock), leader(api, "b", clock)
    assert first.try_once()
    for _ in range(5):
        clock.at += 10
        assert first.try_once()
        assert not other.try_once()


def test_a_released_lease_is_taken_at_once(api: KubeApi) -> None:
    clock = Clock()
    first, other = leader(api, "a", clock), leader(api, "b", clock)
    assert first.try_once()
    first.release()
    assert other.try_once()
    first.release()
    assert holder(api) == "b"


def test_a_replaced_holder_stops(api: KubeApi) -> None:
    clock = Clock()
    first, other = leader(api, "a", clock), leader(api, "b", clock)
    assert first.try_once()
    assert not other.try_once()
    clock.at += 16
    assert other.try_once()
    assert not first.hold(threading.Event())


def test_a_holder_that_cannot_renew_stops_before_another_may_begin(api: KubeApi) -> None:
    clock = Clock(step=1.0)
    first = leader(api, "a", clock)
    assert first.try_once()
    began = clock.at
    api.refuse = lambda verb, kind, name: (500, "down")
    assert not first.hold(threading.Event())
    assert clock.at - began < TIMES.duration_s


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_holder_gives_up_in_time_when_the_server_hangs(api: KubeApi, verb: str) -> None:
    first = Leader(api.cluster(), "a", "0.2.0", Times(duration_s=1.5, give_up_s=1.0, retry_s=0.01))
    assert first.acquire()
    with hanging(api, lambda each, kind: (each, kind) == (verb, "Lease")) as requests:
        assert not first.hold(threading.Event())
        assert requests.begun.is_set()
        assert not requests.outlasted


def test_the_time_to_give_up_counts_from_the_beginning_of_the_last_renewal(api: KubeApi) -> None:
    clock = Clock()
    first = leader(api, "a", clock)

    def slow(verb: str, kind: str, name: str) -> None:
        # The renewal is written at this time, and its answer is late.
        clock.at += 4 if (verb, kind) == ("patch", "Lease") else 0

    assert first.acquire()
    api.refuse = slow
    assert first.try_once()
    api.refuse = lambda verb, kind, name: (500, "down")
    clock.at += 6
    assert not first.hold(threading.Event())
    assert clock.at == 10


def test_of_two_that_try_at_once_one_wins(api: KubeApi) -> None:
    clock = Clock()
    first, other = leader(api, "a", clock), leader(api, "b", clock)

    def both(verb: str, kind: str, name: str) -> None:
        if verb == "create":
            api.refuse = lambda verb, kind, name: None
            assert other.try_once()

    api.refuse = both
    assert not first.try_once()
    assert holder(api) == "b"


def test_an_older_version_refuses_to_follow_a_newer_one(api: KubeApi) -> None:
    clock = Clock()
    newer, older = leader(api, "a", clock, "0.10.0"), leader(api, "b", clock, "0.9.1")
    assert newer.try_once()
    newer.release()
    with pytest.raises(NewerVersionError, match=r"\b0\.10\.0 .*\b0\.9\.1"):
        older.acquire()
    assert leader(api, "c", clock, "0.10.0").acquire()


def test_a_newer_version_takes_over_from_an_older_one(api: KubeApi) -> None:
    clock = Clock()
    older, newer = leader(api, "a", clock, "0.9.1"), leader(api, "b", clock, "0.10.0")
    assert older.try_once()
    assert not newer.try_once()
    older.release()
    assert newer.try_once()


def test_a_missing_permission_names_the_rule_to_add(api: KubeApi) -> None:
    said = 'User "operator" cannot get resource "leases" in API group "coordination.k8s.io" in the namespace "lab"'
    api.refuse = lambda verb, kind, name: (403, said)
    with pytest.raises(ActorQError, match=r"Role .*get .*leases"):
        leader(api, "a", Clock()).try_once()
