"""Mutual TLS with one folder and one flag, and refusals of services without it."""

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from actorq import wire
from actorq.client import LearnerClient, QuantizerClient
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import RunStatus
from actorq.errors import DeniedError, UnavailableError
from actorq.transport.errors import translated
from actorq.transport.options import CLIENT_OPTIONS, Certificates
from actorq.v1 import learner_pb2, learner_pb2_grpc, quantizer_pb2, quantizer_pb2_grpc
from tests.builders.service_process import ServiceProcess, refusal, service_process
from tests.documentation.code_blocks import run_python
from tests.integration.training_run import ENDLESS, TrainingRun, actorq


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls") / "certificates"
    assert actorq("certificates", "init", str(directory)).returncode == 0
    return directory


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("strangers") / "certificates"
    assert actorq("certificates", "init", str(directory)).returncode == 0
    return directory


def status_of_learner(channel: grpc.Channel) -> None:
    learner_pb2_grpc.LearnerServiceStub(channel).GetStatus(learner_pb2.GetStatusRequest(), timeout=20.0)


def policies_of_quantizer(channel: grpc.Channel) -> None:
    quantizer_pb2_grpc.QuantizerServiceStub(channel).ListPolicies(quantizer_pb2.ListPoliciesRequest(), timeout=20.0)


def get_nowhere(service: ServiceProcess, call: Callable[[grpc.Channel], None], ours: Path, theirs: Path) -> None:
    """Checks that `call` fails without TLS, without a certificate, and with a certificate of another authority."""
    mine, other = Certificates.of(ours, "operator"), Certificates.of(theirs, "operator")
    assert mine
    assert other
    secrets = {
        "no certificate": grpc.ssl_channel_credentials(mine.authority),
        "another authority": grpc.ssl_channel_credentials(other.authority, other.key, other.certificate),
        "a certificate of another authority": grpc.ssl_channel_credentials(
            mine.authority, other.key, other.certificate
        ),
    }
    channels = {name: grpc.secure_channel(service.address, secret, CLIENT_OPTIONS) for name, secret in secrets.items()}
    channels["no TLS"] = grpc.insecure_channel(service.address, CLIENT_OPTIONS)
    for name, channel in channels.items():
        with channel, pytest.raises(UnavailableError), translated(name):
            call(channel)


@dataclass(frozen=True)
class Secured:
    """A learner and its quantizer with the certificates `ours`."""

    learner: ServiceProcess
    quantizer: ServiceProcess
    ours: Path


@pytest.fixture(scope="module")
def secured(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    tls = ("--transport.certificates", str(certificates))
    with service_process("quantizer", "--store", str(folder / "policies"), *tls) as quantizer:
        state = ("--run-directory", str(folder / "run"), "--quantizer", quantizer.address)
        with service_process("learner", *state, *tls) as learner:
            yield Secured(learner, quantizer, certificates)


def test_a_caller_with_a_valid_certificate_is_answered(secured: Secured) -> None:
    mine = Certificates.of(secured.ours, "operator")
    with LearnerClient(secured.learner.address, mine) as learner:
        assert learner.status().environment_steps == 0
    with QuantizerClient(secured.quantizer.address, mine) as quantizer:
        assert quantizer.list() == []


def test_a_learner_refuses_callers_without_a_valid_certificate(secured: Secured, strangers: Path) -> None:
    get_nowhere(secured.learner, status_of_learner, secured.ours, strangers)


def test_a_quantizer_refuses_callers_without_a_valid_certificate(secured: Secured, strangers: Path) -> None:
    get_nowhere(secured.quantizer, policies_of_quantizer, secured.ours, strangers)


def test_an_actors_certificate_does_not_control_the_run(secured: Secured) -> None:
    actor = Certificates.of(secured.ours, "actor")
    with LearnerClient(secured.learner.address, actor) as learner:
        for call in (learner.stop, learner.pause, learner.save_checkpoint, learner.status):
            with pytest.raises(DeniedError, match=r"actor .*LearnerService\.\w+: .*operator"):
                call()
        with pytest.raises(DeniedError, match=r"role actor, .*evaluator 'actor-0'"):
            learner.join("actor-0", 1, "evaluator", "1")
        assert learner.join("actor-0", 1, "actor", "1").actor_index == 0
    with (
        QuantizerClient(secured.quantizer.address, actor) as quantizer,
        pytest.raises(DeniedError, match=r"actor .*QuantizerService\.PublishCheckpoints: .*learner"),
        translated(quantizer.peer),
    ):
        next(quantizer.stub.PublishCheckpoints(iter(()), timeout=20.0))


def test_an_evaluator_does_not_take_over_an_actors_stream(secured: Secured) -> None:
    environment = wire.environment_to_proto(
        EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
    )
    opened = learner_pb2.StreamTrajectoriesRequest(
        open=learner_pb2.StreamOpen(actor_name="actor-1", incarnation=7, environment=environment)
    )
    with LearnerClient(secured.learner.address, Certificates.of(secured.ours, "actor")) as learner:
        learner.join("actor-1", 7, "actor", "1")
    with (
        LearnerClient(secured.learner.address, Certificates.of(secured.ours, "evaluator")) as learner,
        pytest.raises(DeniedError, match=r"role evaluator, .*actor 'actor-1'"),
        translated(learner.peer),
    ):
        next(learner.stub.StreamTrajectories(iter([opened]), timeout=20.0))


def test_status_uses_the_given_certificates(secured: Secured, strangers: Path) -> None:
    asked = ("status", "--learner", secured.learner.address, "--certificates")
    known = actorq(*asked, str(secured.ours))
    assert known.returncode == 0, known.stderr
    stranger = actorq(*asked, str(strangers))
    assert stranger.returncode == 2
    assert stranger.stderr.count("\n") == 1
    assert re.match(f"error: .*{secured.learner.address} .*local issuer certificate.*--certificates", stranger.stderr)


@pytest.mark.parametrize("service", ["quantizer", "actor"])
def test_no_service_listens_to_other_machines_without_certificates(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fact = r"error: --listen: .*0\.0\.0\.0:0, .*--transport\.certificates .*--insecure"
    assert re.match(fact, refusal(service, "--listen", "0.0.0.0:0"))


def test_metrics_are_served_only_on_this_machine_by_default(tmp_path: Path) -> None:
    anywhere = ("--store", str(tmp_path / "policies"), "--metrics", "0.0.0.0:0")
    fact = r"error: --metrics: .*0\.0\.0\.0:0, .*127\.0\.0\.1, .*--open-metrics"
    assert re.match(fact, refusal("quantizer", *anywhere))
    for told in ("--open-metrics", "--insecure"):
        with service_process("quantizer", *anywhere, told) as service:
            assert service.metrics.startswith("0.0.0.0:")


def test_a_service_refuses_the_certificates_of_another_role_or_run(certificates: Path, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "policies"))
    assert re.match(
        f"error: certificates: .*spiffe://actorq/run/actorq/role/quantizer, .*{certificates / 'actor'} .*actor of run",
        refusal("quantizer", *store, "--transport.certificates", str(certificates / "actor")),
    )
    of_lab = ("--transport.certificates", str(certificates), "--transport.run", "lab")
    assert "spiffe://actorq/run/lab/role/quantizer" in refusal("quantizer", *store, *of_lab)


def test_a_service_listens_to_other_machines_when_insecure_or_with_certificates(
    certificates: Path, tmp_path: Path
) -> None:
    anywhere = ("--store", str(tmp_path / "policies"), "--listen", "0.0.0.0:0")
    with service_process("quantizer", *anywhere, "--insecure") as service:
        port = service.address.rpartition(":")[2]
        with QuantizerClient(f"127.0.0.1:{port}") as client:
            assert client.list() == []
    with service_process("quantizer", *anywhere, "--transport.certificates", str(certificates)) as service:
        port = service.address.rpartition(":")[2]
        with QuantizerClient(f"127.0.0.1:{port}", Certificates.of(certificates, "operator")) as client:
            assert client.list() == []


def test_a_whole_run_with_mutual_tls_between_all_its_services(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = {"learner", "quantizer", "actor-0", "evaluator", "meter"}

    def all_took_part(status: RunStatus) -> bool:
        reported = {process.name for process in status.processes}
        # The launcher writes the actor's address after its own first status.
        return status.evaluation is not None and everybody <= reported and "actor-0" in run.addresses()["actors"]

    # The command runs until it is interrupted.
    endless = (*ENDLESS, "--energy.enabled", "--actors", "1")
    run = TrainingRun.start(tmp_path / "run", "--certificates", str(certificates), *endless)
    run.until(all_took_part, Certificates.of(certificates, "operator"))
    monkeypatch.chdir(certificates.parent)
    for page in ("docs/how-to/tls.md", "docs/how-to/cluster-command.md", "docs/how-to/cluster-from-nothing.md"):
        run_python(page, run.addresses())
    assert (certificates.parent / "best.onnx").is_file()
    run.signal(signal.SIGINT)
    code, printed = run.finish()
    assert code == 130, printed
    summary = run.summary()
    assert summary["environment_steps"] > 0
    assert summary["evaluation"]["scheme"] == "int8"
    assert everybody <= set(summary["peak_memory_mb"])
    configured = (tmp_path / "run" / "config.yaml").read_text()
    assert f"certificates: {certificates}" in configured

    again = actorq("evaluate", str(run.directory), "--episodes", "2", "--certificates", str(certificates))
    assert again.returncode == 0, again.stderr
    assert "return mean" in again.stdout


def test_a_learner_copies_its_policies(certificates: Path, tmp_path: Path) -> None:
    """The copies are in the folder of the export, and in the run's folder for object storage."""
    ended = actorq(
        *("train", "--certificates", str(certificates), "--run-directory", str(tmp_path / "run"), "--actors", "1"),
        *("--target-return", "501", "--max-environment-steps", "3000"),
        *("--policy-export.url", f"file://{tmp_path}/exported"),
        *("--checkpoint.object-storage", f"file://{tmp_path}/copies"),
    )
    assert ended.returncode == 3, ended.stderr
    assert {path.name for path in (tmp_path / "exported").iterdir()} == {"policy.onnx", "policy.json"}
    assert {path.suffix for path in (tmp_path / "run" / "best").iterdir()} == {".onnx", ".json"}


def test_streams_outlive_the_age_of_their_connections(certificates: Path, tmp_path: Path) -> None:
    aged = ("--transport.connection-age-s", "2", "--certificates", str(certificates))
    endless = (*ENDLESS, "--energy.enabled", "--actors", "1")
    run = TrainingRun.start(tmp_path / "run", *aged, *endless)

    def log(name: str) -> str:
        file = tmp_path / "run" / "logs" / f"{name}.log"
        # The learner has a status before the last service starts.
        return file.read_text() if file.exists() else ""

    def all_connected_again(_: RunStatus) -> bool:
        """Whether each service has noticed the age of its connections, and has reconnected."""
        peers = {"actor-0": ("learner", "quantizer"), "evaluator": ("learner", "quantizer"), "learner": ("quantizer",)}
        for name, theirs in peers.items():
            for peer in theirs:
                lines = [line for line in log(name).splitlines() if f": {peer} at " in line]
                ages = [index for index, line in enumerate(lines) if "maximum age" in line]
                if not ages or not any("connected again" in line for line in lines[ages[0] :]):
                    return False
        return True

    tls = Certificates.of(certificates, "monitor")
    before = run.until(all_connected_again, tls)
    after = run.until(lambda status: status.environment_steps > before.environment_steps + 2_000, tls)
    run.signal(signal.SIGINT)
    run.finish()
    assert after.updates > before.updates
    # A lost segment is a gap in its actor's sequence, which ends the actor.
    assert log("actor-0").count("joined run") == 1
    for name in ("learner", "quantizer", "actor-0", "evaluator", "meter", "launcher"):
        assert " ERROR " not in log(name), log(name)
        assert "Traceback" not in log(name), log(name)


def test_a_folder_without_certificates_is_named_before_anything_starts(tmp_path: Path) -> None:
    result = actorq("train", "--certificates", str(tmp_path), "--run-directory", str(tmp_path / "run"))
    assert result.returncode == 2
    assert re.match(rf"error: certificates: {tmp_path} .*ca\.crt, tls\.crt .*tls\.key", result.stderr)
    assert not (tmp_path / "run").exists()
    assert result.stderr.count("\n") == 1
