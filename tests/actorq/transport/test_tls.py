"""Mutual TLS refuses every peer without a certificate of the same authority."""

import asyncio
import datetime
import re
from pathlib import Path

import grpc
import pytest

from actorq.client import LearnerClient
from actorq.config.sections import TransportConfig
from actorq.errors import UnavailableError, UserError
from actorq.transport.errors import translated
from actorq.transport.options import CLIENT_OPTIONS, Certificates
from actorq.transport.security.renewal import Renewal
from actorq.v1 import learner_pb2, learner_pb2_grpc
from tests.actorq.transport.certificate_authority import END, LATER, MUCH_LATER, START, Authority
from tests.actorq.transport.staged_servicer import StagedLearner, serving

HUNG_UP = "closed the connection.*mutual TLS"


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@pytest.fixture
def authority() -> Authority:
    return Authority()


def test_members_of_one_authority_connect(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    client = Certificates.load(authority.issue(tmp_path, "client"))
    with serving(StagedLearner(), server) as stage, LearnerClient(stage.address, client) as learner:
        assert learner.status().run_id == "run"
        assert next(learner.watch()).run_id == "run"


def test_refuses_a_client_of_another_authority(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    stranger = Certificates.load(Authority().issue(tmp_path, "stranger"))
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address, stranger) as learner,
        pytest.raises(UnavailableError, match=f"learner at {stage.address} .*certificate signature failure"),
    ):
        learner.status()


def test_refuses_an_unknown_client_that_trusts_the_server(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    stranger = Certificates.load(Authority().issue(tmp_path, "stranger"))
    mixed = Certificates(server.authority, stranger.certificate, stranger.key)
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address, mixed) as learner,
        pytest.raises(UnavailableError, match=HUNG_UP),
    ):
        learner.status()


def test_refuses_a_client_without_a_certificate(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    credentials = grpc.ssl_channel_credentials(server.authority)
    with (
        serving(StagedLearner(), server) as stage,
        grpc.secure_channel(stage.address, credentials, options=CLIENT_OPTIONS) as channel,
        pytest.raises(UnavailableError),
        translated("learner"),
    ):
        learner_pb2_grpc.LearnerServiceStub(channel).GetStatus(learner_pb2.GetStatusRequest(), timeout=10.0)


def test_refuses_a_client_without_tls(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address) as learner,
        pytest.raises(UnavailableError, match=HUNG_UP),
    ):
        learner.status()


def test_refuses_a_server_whose_certificate_has_another_name(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server", address="192.0.2.1"))
    client = Certificates.load(authority.issue(tmp_path, "client"))
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address, client) as learner,
        pytest.raises(UnavailableError, match=f"learner at {stage.address} .*certificate.*names"),
    ):
        learner.status()


@pytest.mark.parametrize(
    ("valid", "reason"),
    [((START, LATER), "certificate has expired"), ((MUCH_LATER, END), "certificate is not yet valid")],
    ids=["expired", "not yet valid"],
)
def test_refuses_a_certificate_outside_its_validity_at_the_start(
    valid: tuple[datetime.datetime, datetime.datetime], reason: str, authority: Authority, tmp_path: Path
) -> None:
    folder = authority.issue(tmp_path, "server", valid=valid)
    with pytest.raises(UserError, match=f"{folder / 'tls.crt'}.*{reason}.*clock"):
        Certificates.load(folder)


def test_refuses_a_certificate_that_its_ca_file_did_not_sign(authority: Authority, tmp_path: Path) -> None:
    folder, other = authority.issue(tmp_path, "server"), Authority().issue(tmp_path, "other")
    (folder / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    with pytest.raises(UserError, match=f"{folder / 'tls.crt'}.*certificate signature failure"):
        Certificates.load(folder)


def test_a_key_is_never_shown(authority: Authority, tmp_path: Path) -> None:
    certificates = Certificates.load(authority.issue(tmp_path, "server"))
    assert "PRIVATE" not in repr(certificates)


def test_renewed_certificates_count_from_the_next_connection_on(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    client = Certificates.load(authority.issue(tmp_path, "client"))
    successor = Authority()
    with serving(StagedLearner(wait_for_ever), server) as stage, LearnerClient(stage.address, client) as before:
        running = before.watch()
        assert next(running).run_id == "run"
        successor.issue(tmp_path, "server")
        # A new client. The client that is already connected continues.
        with LearnerClient(stage.address, client) as late, pytest.raises(UnavailableError):
            next(late.watch())
        # A client also follows its own folder: the same object connects with the new files.
        successor.issue(tmp_path, "client")
        assert next(before.watch()).run_id == "run"
        with LearnerClient(stage.address, Certificates.load(tmp_path / "client")) as new:
            assert next(new.watch()).run_id == "run"


def test_a_closed_client_does_not_connect_again_with_renewed_certificates(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    client = Certificates.load(authority.issue(tmp_path, "client"))
    with serving(StagedLearner(), server) as stage:
        learner = LearnerClient(stage.address, client)
        assert learner.status().run_id == "run"
        learner.close()
        authority.issue(tmp_path, "client")
        # A watching thread would run forever, and `close` would wait for it.
        with pytest.raises(UnavailableError, match=f"{stage.address}.*closed"):
            learner.status()


def test_logs_unusable_renewed_certificates_once_and_ignores_them(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = authority.issue(tmp_path, "server")
    renewal = Renewal(Certificates.load(folder))
    assert renewal.poll() is None
    key = (folder / "tls.key").read_bytes()
    (folder / "tls.key").write_text("half of a ke")
    assert renewal.poll() is None
    assert renewal.poll() is None
    (line,) = caplog.messages
    assert re.search(f"{folder} .*tls.crt.*previous certificates", line)
    (folder / "tls.key").unlink()
    assert renewal.poll() is None
    (folder / "tls.key").write_bytes(key)
    assert renewal.poll() is None
    authority.issue(tmp_path, "server")
    assert renewal.poll() == Certificates.load(folder)
    assert renewal.poll() is None


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_missing_file_is_named(name: str, authority: Authority, tmp_path: Path) -> None:
    folder = authority.issue(tmp_path, "server")
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"certificates.*{folder / name}.*No such file"):
        Certificates.load(folder)


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_refuses_a_file_that_is_not_pem_before_serving(name: str, authority: Authority, tmp_path: Path) -> None:
    folder = authority.issue(tmp_path, "server")
    (folder / name).write_text("no PEM")
    with pytest.raises(UserError, match=f"certificates.*{folder} .*PEM"):
        Certificates.load(folder)


def test_the_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    folder, other = authority.issue(tmp_path, "server"), authority.issue(tmp_path, "other")
    (folder / "tls.key").write_bytes((other / "tls.key").read_bytes())
    with pytest.raises(UserError, match="KEY_VALUES_MISMATCH"):
        Certificates.load(folder)


def test_a_key_with_a_password_is_refused(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="password"):
        Certificates.load(authority.issue(tmp_path, "server", password=b"secret"))


def test_distinguishes_a_server_without_tls_from_an_absent_one(authority: Authority, tmp_path: Path) -> None:
    mine = Certificates.load(authority.issue(tmp_path, "client"))
    with (
        serving(StagedLearner()) as stage,
        LearnerClient(stage.address, mine) as learner,
        pytest.raises(UnavailableError, match=f"learner at {stage.address} .*without TLS"),
    ):
        learner.status()


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602])
def test_a_key_that_is_open_to_others_is_refused(mode: int, authority: Authority, tmp_path: Path) -> None:
    folder = authority.issue(tmp_path, "server")
    (folder / "tls.key").chmod(mode)
    with pytest.raises(
        UserError, match=f"{folder / 'tls.key'}.*{mode:04o}.*chmod 600.*--transport.allow-readable-keys"
    ):
        Certificates.load(folder)
    assert Certificates.load(folder, readable_key=True).key == (folder / "tls.key").read_bytes()
    assert TransportConfig(certificates=folder, allow_readable_keys=True).certificates_of("server")


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_key_may_be_read_by_its_owner_and_its_group(mode: int, authority: Authority, tmp_path: Path) -> None:
    folder = authority.issue(tmp_path, "server")
    (folder / "tls.key").chmod(mode)
    assert Certificates.load(folder).directory == folder


def test_a_renewed_key_that_is_open_to_others_is_not_used(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = authority.issue(tmp_path, "server")
    strict, lenient = Renewal(Certificates.load(folder)), Renewal(Certificates.load(folder, readable_key=True))
    authority.issue(tmp_path, "server")
    (folder / "tls.key").chmod(0o644)
    assert strict.poll() is None
    assert str(folder / "tls.key") in caplog.text
    assert lenient.poll() is not None
