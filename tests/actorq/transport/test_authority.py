"""The development authority: its files, and connections between its members."""

import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from actorq.client import LearnerClient
from actorq.errors import UnavailableError, UserError
from actorq.transport.options import CLIENT_OPTIONS, Certificates
from actorq.transport.security.authority import write_certificates
from actorq.transport.security.identity import identity_uri
from actorq.transport.security.roles import ROLES
from actorq.v1 import learner_pb2, learner_pb2_grpc
from tests.actorq.transport.staged_servicer import StagedLearner, serving

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("authority") / "certificates"
    write_certificates(directory, "lab", ("gpu-box.example.org", "10.1.2.3"), NOW, days=30)
    return directory


def certificate(directory: Path, member: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / member / "tls.crt").read_bytes())


def names(directory: Path, member: str) -> x509.SubjectAlternativeName:
    return certificate(directory, member).extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_every_member_has_a_folder_that_can_be_used(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == {"ca.crt", *ROLES}
    for member in ROLES:
        assert {path.name for path in (made / member).iterdir()} == {"ca.crt", "tls.crt", "tls.key"}
        assert Certificates.of(made, member) == Certificates.load(made / member)
    assert len({Certificates.load(made / member).key for member in ROLES}) == len(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_a_certificate_names_its_role_and_its_run(role: str, made: Path) -> None:
    assert names(made, role).get_values_for_type(x509.UniformResourceIdentifier) == [identity_uri(role, "actorq")]
    certificates = Certificates.of(made, role)
    assert certificates
    certificates.require_role(role, "actorq")
    other = "learner" if role == "actor" else "actor"
    with pytest.raises(UserError, match=f"{other} of run actorq.*spiffe://actorq/run/.*{role} of run actorq"):
        certificates.require_role(other, "actorq")
    with pytest.raises(UserError, match=rf"{role} of run lab.*{role} of run actorq.*transport\.run"):
        certificates.require_role(role, "lab")


def test_a_members_own_folder_serves_as_well_as_the_folder_of_all(made: Path) -> None:
    assert Certificates.of(made / "actor", "actor") == Certificates.of(made, "actor")
    assert Certificates.of(None, "actor") is None


def test_keys_are_for_their_owner_alone_and_the_authoritys_own_is_not_kept(made: Path) -> None:
    keys = sorted(made.rglob("*.key"))
    assert len(keys) == len(ROLES)
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_certificates_last_as_long_as_asked(made: Path) -> None:
    issued = certificate(made, "learner")
    assert issued.not_valid_before_utc <= NOW
    assert abs(issued.not_valid_after_utc - NOW - timedelta(days=30)) < timedelta(seconds=2)


def test_certificates_are_valid_for_the_services_names_in_a_cluster(made: Path) -> None:
    dns = names(made, "learner").get_values_for_type(x509.DNSName)
    assert {"localhost", "learner", "learner.lab.svc", "learner.lab.svc.cluster.local", "gpu-box.example.org"} <= set(
        dns
    )
    assert "*.learner-headless.lab.svc.cluster.local" in dns
    assert names(made, "learner").get_values_for_type(x509.IPAddress) == [
        ip_address("127.0.0.1"),
        ip_address("::1"),
        ip_address("10.1.2.3"),
    ]
    of_quantizer = names(made, "quantizer").get_values_for_type(x509.DNSName)
    assert {"quantizer.lab.svc", "quantizer.lab"} <= set(of_quantizer)
    assert {"relay", "relay.lab.svc"} <= set(names(made, "relay").get_values_for_type(x509.DNSName))
    assert "learner" not in names(made, "operator").get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("member", ROLES)
def test_every_member_is_reached_through_port_forward(member: str, made: Path) -> None:
    assert "localhost" in names(made, member).get_values_for_type(x509.DNSName)
    addresses = names(made, member).get_values_for_type(x509.IPAddress)
    assert {ip_address("127.0.0.1"), ip_address("::1")} <= set(addresses)


def test_members_connect_only_to_members_of_the_same_authority(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_certificates(other, "lab", (), NOW, days=1)
    with serving(StagedLearner(), Certificates.of(made, "learner")) as stage:
        port = stage.address.rpartition(":")[2]
        for address in (f"127.0.0.1:{port}", f"localhost:{port}"):
            with LearnerClient(address, Certificates.of(made, "operator")) as client:
                assert client.status().run_id == "run"
        with (
            LearnerClient(stage.address, Certificates.of(other, "operator")) as client,
            pytest.raises(UnavailableError),
        ):
            client.status()


def test_clients_do_not_accept_an_actors_certificate_from_the_learner(made: Path) -> None:
    certificates = Certificates.of(made, "operator")
    assert certificates
    credentials = grpc.ssl_channel_credentials(
        certificates.authority, private_key=certificates.key, certificate_chain=certificates.certificate
    )
    options = [*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", "learner")]
    request = learner_pb2.GetStatusRequest()
    with (
        serving(StagedLearner(), Certificates.of(made, "learner")) as stage,
        grpc.secure_channel(stage.address, credentials, options=options) as channel,
    ):
        learner_pb2_grpc.LearnerServiceStub(channel).GetStatus(request, timeout=10.0)
    with (
        serving(StagedLearner(), Certificates.of(made, "actor")) as stage,
        grpc.secure_channel(stage.address, credentials, options=options) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        learner_pb2_grpc.LearnerServiceStub(channel).GetStatus(request, timeout=10.0)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_nothing_is_ever_overwritten(made: Path) -> None:
    before = (made / "ca.crt").read_bytes()
    with pytest.raises(UserError, match=f"{made}.*overwritten"):
        write_certificates(made, "lab", (), NOW, days=1)
    assert (made / "ca.crt").read_bytes() == before


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_certificates(tmp_path / "empty", "lab", (), NOW, days=1)
    assert (tmp_path / "empty" / "operator" / "tls.key").is_file()


@pytest.mark.parametrize("name", ["", "two words", "-a", "https://learner", "a" * 254, "ü.org", "a..b"])
def test_a_malformed_name_leaves_no_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"DNS name.*{name[:60]}"):
        write_certificates(tmp_path / "new", "lab", (name,), NOW, days=1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/new"):
        write_certificates(tmp_path / "file" / "new", "lab", (), NOW, days=1)
