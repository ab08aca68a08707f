"""Which calls a certificate allows: its role, run and name, and the deny list, also for open streams."""

import collections
import queue
import re
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.client import LearnerClient
from actorq.errors import DeniedError, UnavailableError, UserError
from actorq.transport.errors import translated
from actorq.transport.options import Certificates
from actorq.transport.security.access import Access
from actorq.transport.security.denied import DenyList
from actorq.transport.security.identity import (
    Identity,
    identity_of,
    identity_uri,
    parse_identity,
    require_member,
    serial_number,
)
from actorq.v1 import learner_pb2
from tests.actorq.transport.certificate_authority import Authority
from tests.actorq.transport.staged_servicer import TIMEOUT_S, Flood, StagedLearner, WritingFlood, serving
from tests.actorq.transport.test_tls import wait_for_ever

SERIAL = 0x0A1B2C3D4E5F
OPERATOR = identity_uri("operator", "actorq")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def server_certificates(authority: Authority, folder: Path) -> Certificates:
    return Certificates.load(authority.issue(folder, "server"))


@pytest.mark.parametrize(
    ("uris", "fact"),
    [
        ((), "spiffe://actorq/run/RUN/role/ROLE.* 0;"),
        ((OPERATOR, identity_uri("monitor", "actorq")), "spiffe://actorq/run/RUN/role/ROLE.* 2;"),
        (("spiffe://actorq/run/actorq/role/king",), "learner, quantizer, relay, actor,.*role/king'"),
        (("spiffe://actorq/run/actorq/role/operator/a/b",), "'spiffe://actorq/run/actorq/role/operator/a/b'"),
        ((f"{OPERATOR}/{'n' * 3000}",), "learner, quantizer, relay, actor,.*nnn"),
        (("spiffe://elsewhere/run/actorq/role/operator",), "spiffe://actorq/run/RUN/role/ROLE.* 0;"),
        ((identity_uri("operator", "lab"),), "run lab.*run actorq"),
        ((identity_uri("meter", "actorq"),), r"meter.*LearnerService\.GetStatus.*monitor, operator"),
    ],
)
def test_the_refusal_of_a_call_names_the_reason(
    uris: tuple[str, ...], fact: str, authority: Authority, tmp_path: Path
) -> None:
    client = Certificates.load(authority.issue(tmp_path, "client", uris=uris))
    with (
        serving(StagedLearner(), server_certificates(authority, tmp_path)) as stage,
        LearnerClient(stage.address, client) as learner,
        pytest.raises(DeniedError, match=fact) as caught,
    ):
        learner.status()
    assert "\n" not in str(caught.value)


def test_ignores_other_uris_in_a_certificate(authority: Authority, tmp_path: Path) -> None:
    uris = ("https://example.org/me", OPERATOR, "spiffe://example.org/workload")
    client = Certificates.load(authority.issue(tmp_path, "client", uris=uris))
    with (
        serving(StagedLearner(), server_certificates(authority, tmp_path)) as stage,
        LearnerClient(stage.address, client) as learner,
    ):
        assert learner.status().run_id == "run"


def test_a_service_serves_only_its_configured_run(authority: Authority, tmp_path: Path) -> None:
    client = Certificates.load(authority.issue(tmp_path, "client", uris=(identity_uri("operator", "lab"),)))
    server = server_certificates(authority, tmp_path)
    with (
        serving(StagedLearner(), server, access=Access(run="lab")) as stage,
        LearnerClient(stage.address, client) as learner,
    ):
        assert learner.status().run_id == "run"


def test_a_denied_certificate_is_refused_from_the_next_call_on_and_its_open_stream_ends(
    authority: Authority, tmp_path: Path
) -> None:
    denied = tmp_path / "denied"
    server = server_certificates(authority, tmp_path)
    bad = Certificates.load(authority.issue(tmp_path, "bad", serial=SERIAL))
    good = Certificates.load(authority.issue(tmp_path, "good"))
    staged = StagedLearner(wait_for_ever)
    with (
        serving(staged, server, access=Access(deny=denied)) as stage,
        LearnerClient(stage.address, bad) as mallory,
        LearnerClient(stage.address, good) as alice,
    ):
        stream, other = mallory.watch(), alice.watch()
        assert next(stream).run_id == "run"
        assert next(other).run_id == "run"
        denied.write_text(f"# left the team\nserial={SERIAL:012X}\n")
        with pytest.raises(DeniedError, match=f"learner at {stage.address}.*A1B2C3D4E5F"):
            next(mallory.watch())
        # The stream waits for a message that never comes. Only its end can end the wait.
        with pytest.raises(DeniedError, match=f"learner at {stage.address}.*A1B2C3D4E5F"):
            next(stream)
        assert next(alice.watch()).run_id == "run"
        # A missing list admits no denied certificate again. An empty list does.
        denied.unlink()
        with pytest.raises(DeniedError):
            next(mallory.watch())
        denied.write_text("")
        assert next(mallory.watch()).run_id == "run"


def test_the_open_stream_of_a_denied_actor_ends_too(authority: Authority, tmp_path: Path) -> None:
    denied = tmp_path / "denied"
    server = server_certificates(authority, tmp_path)
    uris = (identity_uri("actor", "actorq"),)
    actor = Certificates.load(authority.issue(tmp_path, "actor", uris=uris, serial=SERIAL))
    requests: queue.SimpleQueue[learner_pb2.StreamTrajectoriesRequest | None] = queue.SimpleQueue()
    requests.put(learner_pb2.StreamTrajectoriesRequest())
    with (
        serving(StagedLearner(), server, access=Access(deny=denied)) as stage,
        LearnerClient(stage.address, actor) as learner,
    ):
        responses = learner.stub.StreamTrajectories(iter(requests.get, None), timeout=20.0)
        next(responses)
        denied.write_text(f"{SERIAL:X}")
        # The server waits for the next request, which never comes.
        with pytest.raises(DeniedError, match="A1B2C3D4E5F"), translated(learner.peer):
            next(responses)
        requests.put(None)


@pytest.mark.parametrize("flood", [Flood, WritingFlood])
def test_a_stream_that_is_denied_in_a_write_ends_when_its_client_reads(
    flood: type[StagedLearner], authority: Authority, tmp_path: Path
) -> None:
    denied = tmp_path / "denied"
    server = server_certificates(authority, tmp_path)
    bad = Certificates.load(authority.issue(tmp_path, "bad", serial=SERIAL))
    with (
        serving(flood(), server, access=Access(deny=denied)) as stage,
        LearnerClient(stage.address, bad) as mallory,
    ):
        stream = mallory.stub.WatchStatus(learner_pb2.WatchStatusRequest(), timeout=TIMEOUT_S)
        next(stream)
        denied.write_text(f"{SERIAL:X}")
        with pytest.raises(DeniedError, match="A1B2C3D4E5F"), translated(mallory.peer):
            mallory.status()
        # The server looks at open streams once in a second.
        threading.Event().wait(2.5)
        with pytest.raises(DeniedError, match="A1B2C3D4E5F"), translated(mallory.peer):
            collections.deque(stream, maxlen=0)


def test_a_refused_call_is_logged_with_the_reason(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = Certificates.load(authority.issue(tmp_path, "client", uris=(identity_uri("meter", "actorq"),)))
    with (
        serving(StagedLearner(), server_certificates(authority, tmp_path)) as stage,
        LearnerClient(stage.address, client) as learner,
        pytest.raises(DeniedError),
    ):
        learner.status()
    (line,) = caplog.messages
    assert re.search("/actorq.v1.LearnerService/GetStatus .*meter.*monitor, operator", line)


def test_the_serial_number_is_that_of_the_certificate(authority: Authority, tmp_path: Path) -> None:
    for serial in (1, 0x7F, 0x80, 0xFFFF, SERIAL, (1 << 158) + 5):
        folder = authority.issue(tmp_path, "member", serial=serial)
        assert serial_number((folder / "tls.crt").read_bytes()) == serial


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_bytes_that_are_no_certificate_are_denied(data: bytes) -> None:
    with pytest.raises(DeniedError):
        serial_number(b"-----BEGIN CERTIFICATE-----\n" + data.hex().encode() + b"\n-----END")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_a_damaged_certificate_has_a_number_or_is_denied(data: bytes) -> None:
    with suppress(DeniedError):
        assert serial_number(ssl.DER_cert_to_PEM_cert(data).encode()) >= 0


@pytest.mark.parametrize(
    ("allowed", "name", "may"),
    [
        ("", "anything", True),
        ("actor-3", "actor-3", True),
        ("actor-3", "actor-30", False),
        ("actor-", "actor-5d9c7-x2x4p", True),
        ("actor-", "evaluator-0", False),
        ("actor-", "actor", False),
    ],
)
def test_names_that_a_certificate_allows(allowed: str, name: str, may: bool) -> None:
    identity = parse_identity([identity_uri("actor", "actorq", allowed)])
    assert identity == Identity("actor", "actorq", allowed)
    assert identity.may_be_called(name) is may


class Call:
    """The context of a call whose peer has presented a certificate."""

    def __init__(self, authentication: dict[str, list[bytes]]) -> None:
        self._authentication = authentication

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._authentication


def test_an_actor_has_the_name_and_the_role_that_its_certificate_allows(authority: Authority, tmp_path: Path) -> None:
    pem = (authority.issue(tmp_path, "actor") / "tls.crt").read_bytes()
    uri = identity_uri("actor", "actorq", "actor-").encode()
    call = Call({"x509_pem_cert": [pem], "peer_uri": [uri]})
    require_member(call, "actor-1", "actor")
    require_member(call, "actor-1", None)
    with pytest.raises(DeniedError, match=r"role actor.*evaluator 'actor-1'"):
        require_member(call, "actor-1", "evaluator")
    with pytest.raises(DeniedError, match=r"actor_name.*actor-.*'x'"):
        require_member(call, "x", "actor")


def test_without_tls_an_actor_has_any_name() -> None:
    assert identity_of({"security_level": [b"TSI_SECURITY_NONE"]}) is None
    require_member(Call({}), "anything", "evaluator")
    require_member(None, "anything", "evaluator")


def test_a_deny_list_accepts_serial_numbers_in_all_usual_forms(tmp_path: Path) -> None:
    path = tmp_path / "denied"
    path.write_text("serial=0A1B\n\n0a:1c  # of an actor\n  ff\n")
    denied = DenyList(path)
    assert all(serial in denied for serial in (0x0A1B, 0x0A1C, 0xFF))
    assert 1 not in denied
    assert 1 not in DenyList(None)


def test_a_deny_list_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "denied"
    path.write_text("12\nnot a number\n")
    with pytest.raises(UserError, match=r"line 2 of .*/denied.*'not a number'"):
        DenyList(path)
    with pytest.raises(UserError, match=f"{tmp_path}.*directory"):
        DenyList(tmp_path)


def test_logs_a_damaged_deny_list_once_and_keeps_the_previous_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "denied"
    path.write_text("12\n")
    denied = DenyList(path)
    path.write_text("12\n13 or 14\n")
    assert 0x12 in denied
    assert 0x13 not in denied
    (line,) = caplog.messages
    assert re.search(f"line 2 of {path}.*'13 or 14'.*previous list", line)
    path.write_text("13\n")
    assert 0x13 in denied
    assert 0x12 not in denied


def test_an_unreadable_deny_list_still_denies_its_certificates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "denied"
    path.write_text("12\n")
    denied = DenyList(path)
    path.unlink()
    # The system cannot determine whether the file exists, as with missing permissions.
    path.symlink_to(path)
    assert 0x12 in denied
    assert 0x12 in denied
    (line,) = caplog.messages
    assert re.search(f"{path}.*symbolic links.*previous list", line)
    with pytest.raises(UserError, match=f"{path}.*symbolic links"):
        DenyList(path)
    path.unlink()
    assert 0x12 in denied
    path.write_text("")
    assert 0x12 not in denied


def test_a_connection_has_to_be_opened_again_after_its_age(authority: Authority, tmp_path: Path) -> None:
    server = server_certificates(authority, tmp_path)
    client = Certificates.load(authority.issue(tmp_path, "client"))
    with (
        serving(StagedLearner(wait_for_ever), server, access=Access(connection_age_s=3.0)) as stage,
        LearnerClient(stage.address, client) as learner,
    ):
        stream = learner.watch(patience_s=0.0)
        assert next(stream).run_id == "run"
        Authority().issue(tmp_path, "server")
        # The server's new authority did not sign the client's certificate, but the connection is older.
        with pytest.raises(UnavailableError):
            next(stream)
        with pytest.raises(UnavailableError, match=stage.address):
            next(learner.watch())
