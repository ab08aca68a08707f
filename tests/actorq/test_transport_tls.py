"""Mutual TLS: whoever has no certificate of the same authority gets nowhere."""

import asyncio
import datetime
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from staged_servicer import StagedLearner, serving

from actorq.client import LearnerClient
from actorq.errors import UnavailableError, UserError
from actorq.transport.errors import translated
from actorq.transport.options import CLIENT_OPTIONS, Certificates
from actorq.transport.renewal import Renewal
from actorq.v1 import learner_pb2, learner_pb2_grpc

START = datetime.datetime(2020, 1, 1)
LATER = datetime.datetime(2021, 1, 1)
MUCH_LATER = datetime.datetime(2099, 1, 1)
END = datetime.datetime(2100, 1, 1)


HUNG_UP = "it hung up: with mutual TLS, one does on whoever has no valid certificate of its authority"


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


class Authority:
    """Signs certificates for this host."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._builder(self._name, self._key).add_extension(constraint, critical=True)

    def issue(
        self,
        folder: Path,
        name: str,
        password: bytes | None = None,
        address: str = "127.0.0.1",
        valid: tuple[datetime.datetime, datetime.datetime] = (START, END),
    ) -> Path:
        """Write ca.crt, tls.crt and tls.key of a member into a folder of its own, over those that it had."""
        folder = folder / name
        folder.mkdir(exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        certificate = self._builder(subject, key, valid).add_extension(addresses, critical=False)
        for file, builder in (("ca.crt", self._certificate), ("tls.crt", certificate)):
            signed = builder.sign(self._key, hashes.SHA256())
            (folder / file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        (folder / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
        return folder

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        valid: tuple[datetime.datetime, datetime.datetime] = (START, END),
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(valid[0])
            .not_valid_after(valid[1])
        )


@pytest.fixture
def authority() -> Authority:
    return Authority()


def test_members_of_one_authority_talk(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    client = Certificates.load(authority.issue(tmp_path, "client"))
    with serving(StagedLearner(), server) as stage, LearnerClient(stage.address, client) as learner:
        assert learner.status().run_id == "run"
        assert next(learner.watch()).run_id == "run"


def test_a_client_of_another_authority_gets_nowhere(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    stranger = Certificates.load(Authority().issue(tmp_path, "stranger"))
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address, stranger) as learner,
        pytest.raises(UnavailableError) as caught,
    ):
        learner.status()
    reason = "TLS handshake failed, certificate signature failure"
    assert str(caught.value) == f"learner at {stage.address} cannot be reached ({reason})"


def test_a_client_that_trusts_the_server_but_is_a_stranger_to_it_gets_nowhere(
    authority: Authority, tmp_path: Path
) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    stranger = Certificates.load(Authority().issue(tmp_path, "stranger"))
    mixed = Certificates(server.authority, stranger.certificate, stranger.key)
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address, mixed) as learner,
        pytest.raises(UnavailableError, match=HUNG_UP),
    ):
        learner.status()


def test_a_client_without_a_certificate_gets_nowhere(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    credentials = grpc.ssl_channel_credentials(server.authority)
    with (
        serving(StagedLearner(), server) as stage,
        grpc.secure_channel(stage.address, credentials, options=CLIENT_OPTIONS) as channel,
        pytest.raises(UnavailableError),
        translated("learner"),
    ):
        learner_pb2_grpc.LearnerServiceStub(channel).GetStatus(learner_pb2.GetStatusRequest(), timeout=10.0)


def test_a_client_without_tls_gets_nowhere(authority: Authority, tmp_path: Path) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address) as learner,
        pytest.raises(UnavailableError, match=HUNG_UP),
    ):
        learner.status()


def test_a_server_that_shows_a_certificate_of_another_name_is_not_believed(
    authority: Authority, tmp_path: Path
) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server", address="192.0.2.1"))
    client = Certificates.load(authority.issue(tmp_path, "client"))
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address, client) as learner,
        pytest.raises(UnavailableError, match=r"cannot be reached \(its certificate is for other names than that\)"),
    ):
        learner.status()


@pytest.mark.parametrize(
    ("valid", "reason"),
    [((START, LATER), "certificate has expired"), ((MUCH_LATER, END), "certificate is not yet valid")],
    ids=["expired", "not yet valid"],
)
def test_a_certificate_that_is_not_valid_now_is_refused_before_anybody_else_does(
    valid: tuple[datetime.datetime, datetime.datetime], reason: str, authority: Authority, tmp_path: Path
) -> None:
    folder = authority.issue(tmp_path, "server", valid=valid)
    with pytest.raises(UserError) as caught:
        Certificates.load(folder)
    assert str(caught.value) == (
        f"certificates: nobody would accept {folder / 'tls.crt'} with the authority in ca.crt beside it ({reason}); "
        "make new ones, or set this machine's clock"
    )


def test_a_certificate_of_another_authority_than_the_one_beside_it_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    folder, other = authority.issue(tmp_path, "server"), Authority().issue(tmp_path, "other")
    (folder / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    with pytest.raises(UserError, match=r"nobody would accept .* \(certificate signature failure\)"):
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
        # Another client than the one that is connected already, which goes on.
        with LearnerClient(stage.address, client) as late, pytest.raises(UnavailableError):
            next(late.watch())
        # A client follows its own folder, too: the same object gets in with what is there now.
        successor.issue(tmp_path, "client")
        assert next(before.watch()).run_id == "run"
        with LearnerClient(stage.address, Certificates.load(tmp_path / "client")) as new:
            assert next(new.watch()).run_id == "run"


def test_renewed_certificates_that_cannot_be_used_are_told_once_and_left(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = authority.issue(tmp_path, "server")
    renewal = Renewal(Certificates.load(folder))
    assert renewal.take() is None
    key = (folder / "tls.key").read_bytes()
    (folder / "tls.key").write_text("half of a ke")
    assert renewal.take() is None
    assert renewal.take() is None
    (line,) = caplog.messages
    assert line.startswith(f"certificates: {folder} must hold ca.crt, tls.crt and the key of tls.crt")
    assert line.endswith("going on with those from before")
    (folder / "tls.key").unlink()
    assert renewal.take() is None
    (folder / "tls.key").write_bytes(key)
    assert renewal.take() is None
    authority.issue(tmp_path, "server")
    assert renewal.take() == Certificates.load(folder)
    assert renewal.take() is None


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_missing_file_is_named(name: str, authority: Authority, tmp_path: Path) -> None:
    folder = authority.issue(tmp_path, "server")
    (folder / name).unlink()
    with pytest.raises(UserError) as caught:
        Certificates.load(folder)
    assert str(caught.value) == (
        f"certificates: {folder} must hold ca.crt, tls.crt and tls.key, but {folder / name} cannot be read "
        "(No such file or directory)"
    )


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_file_that_is_no_pem_is_refused_before_anything_is_served(
    name: str, authority: Authority, tmp_path: Path
) -> None:
    folder = authority.issue(tmp_path, "server")
    (folder / name).write_text("no PEM")
    with pytest.raises(UserError, match=f"certificates: {folder} must hold .* all as PEM, but they cannot be used"):
        Certificates.load(folder)


def test_the_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    folder, other = authority.issue(tmp_path, "server"), authority.issue(tmp_path, "other")
    (folder / "tls.key").write_bytes((other / "tls.key").read_bytes())
    with pytest.raises(UserError, match="KEY_VALUES_MISMATCH"):
        Certificates.load(folder)


def test_a_key_with_a_password_is_refused(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without a password"):
        Certificates.load(authority.issue(tmp_path, "server", password=b"secret"))


def test_a_server_without_tls_is_told_apart_from_one_that_is_away(authority: Authority, tmp_path: Path) -> None:
    mine = Certificates.load(authority.issue(tmp_path, "client"))
    with (
        serving(StagedLearner()) as stage,
        LearnerClient(stage.address, mine) as learner,
        pytest.raises(UnavailableError, match=r"cannot be reached \(it serves without TLS\)"),
    ):
        learner.status()
