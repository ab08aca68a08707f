"""Mutual TLS: whoever has no certificate of the same authority gets nowhere."""

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
from actorq.v1 import learner_pb2, learner_pb2_grpc

START = datetime.datetime(2020, 1, 1)
END = datetime.datetime(2100, 1, 1)


class Authority:
    """Signs certificates for this host."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._builder(self._name, self._key).add_extension(constraint, critical=True)

    def issue(self, folder: Path, name: str, password: bytes | None = None) -> Path:
        """Write ca.crt, tls.crt and tls.key of a new member into a folder of its own."""
        folder = folder / name
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = self._builder(subject, key).add_extension(addresses, critical=False)
        for file, builder in (("ca.crt", self._certificate), ("tls.crt", certificate)):
            signed = builder.sign(self._key, hashes.SHA256())
            (folder / file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        (folder / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
        return folder

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(START)
            .not_valid_after(END)
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
        pytest.raises(UnavailableError, match=f"learner at {stage.address} cannot be reached"),
    ):
        learner.status()


def test_a_client_that_trusts_the_server_but_is_a_stranger_to_it_gets_nowhere(
    authority: Authority, tmp_path: Path
) -> None:
    server = Certificates.load(authority.issue(tmp_path, "server"))
    stranger = Certificates.load(Authority().issue(tmp_path, "stranger"))
    mixed = Certificates(server.authority, stranger.certificate, stranger.key)
    with (
        serving(StagedLearner(), server) as stage,
        LearnerClient(stage.address, mixed) as learner,
        pytest.raises(UnavailableError),
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
        pytest.raises(UnavailableError),
    ):
        learner.status()


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
