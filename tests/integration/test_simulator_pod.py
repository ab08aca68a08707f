"""The containers of an actor's pod with a simulator work together, with the certificates of a TrainingRun.

The processes have the arguments and variables of the operator's objects. Only addresses, ports and folders differ.
"""

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from actorq.client import LearnerClient
from actorq.errors import DeniedError, UnavailableError
from actorq.transport.options import Certificates
from actorq_apps.operator.certificates import secrets
from actorq_apps.operator.render import objects
from actorq_apps.operator.resource.training_run import TrainingRun
from tests.actor_service.external.clients import Client
from tests.builders.service_process import ServiceProcess, service_process
from tests.k8s.rendered_manifests import ROOT, Object, environment, of_kind, pods

PATIENCE_S = 150
EXAMPLE = ROOT / "examples" / "simulator"
NAME = "simulator"


class Pods:
    """The pods of a run on this machine. folder: has the files that volumes would have."""

    def __init__(self, manifest: Object, folder: Path) -> None:
        metadata = {**manifest["metadata"], "namespace": "lab", "uid": "u"}
        run = TrainingRun.of({**manifest, "metadata": metadata})
        self._folder = folder
        self._objects = tuple(objects(run))
        self._secrets = {each["metadata"]["name"]: each["data"] for each in secrets(run, {}, datetime.now(UTC))}
        self._config = folder / "config.yaml"
        tree = yaml.safe_load(of_kind(self._objects, "ConfigMap")[f"{NAME}-run-config"]["data"]["config.yaml"])
        # Faster evaluations, and no end of the run.
        tree |= {"target_return": 501, "max_environment_steps": 10_000_000, "evaluation": {"episodes": 1}}
        self._config.write_text(yaml.safe_dump(tree), encoding="utf-8")

    def container(self, component: str, name: str) -> Object:
        """A container of a component's pod."""
        pod = pods(self._objects)[f"{NAME}-{component}"]
        container: Object = next(each for each in pod["containers"] if each["name"] == name)
        return container

    def variables(self, component: str, name: str) -> dict[str, str]:
        """The plain variables of a container, with folders of certificates on this machine."""
        container = self.container(component, name)
        volumes = {each["name"]: each for each in pods(self._objects)[f"{NAME}-{component}"]["volumes"]}
        root = self._folder / component / name
        for mount in container["volumeMounts"]:
            # The learner's volume for data is a template.
            if secret := volumes.get(mount["name"], {}).get("secret"):
                self._write(root / mount["mountPath"].lstrip("/"), secret["secretName"])
        paths = {
            key: str(root / value.lstrip("/")) if value.startswith("/etc/") else value
            for key, value in environment(container).items()
        }
        # No certificate is denied: the ConfigMap is optional. Pods have their own port for metrics.
        return {key: value for key, value in paths.items() if key not in _OF_PODS}

    def certificates(self, role: str) -> Certificates:
        """The certificates in the secret of a role."""
        folder = self._folder / role
        self._write(folder, f"{NAME}-{role}-tls")
        return Certificates.load(folder)

    def flags(self, component: str, **replaced: str) -> list[str]:
        """The arguments of a service, with other values of some flags."""
        given = [each.partition("=") for each in self.container(component, component)["args"]]
        values = {"config": str(self._config), **replaced}
        return [
            f"{flag}={values.get(flag[2:].replace('-', '_'), value)}" if sign else flag for flag, sign, value in given
        ]

    def _write(self, folder: Path, secret: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self._secrets[secret].items():
            (folder / name).write_bytes(base64.b64decode(data))
            (folder / name).chmod(0o600)


_OF_PODS = ("ACTORQ_TRANSPORT__DENY", "ACTORQ_METRICS", "ACTORQ_OPEN_METRICS")


@pytest.fixture
def pods_of_run(tmp_path: Path) -> Pods:
    manifest = yaml.safe_load((ROOT / "examples" / "trainingrun" / "simulator.yaml").read_text(encoding="utf-8"))
    return Pods(manifest, tmp_path)


@pytest.fixture
def running(pods_of_run: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Quantizer, learner and actor: the addresses of learner and actor."""
    with ExitStack() as stack:

        def start(component: str, service: str, *more: str, **replaced: str) -> ServiceProcess:
            with monkeypatch.context() as variables:
                for key, value in pods_of_run.variables(component, component).items():
                    variables.setenv(key, value)
                flags = pods_of_run.flags(component, **{"listen": "127.0.0.1:0", **replaced})
                return stack.enter_context(service_process(service, *flags, *more))

        quantizer = start("quantizer", "quantizer", store=str(tmp_path / "policies"))
        directory = str(tmp_path / "run")
        learner = start("learner", "learner", quantizer=quantizer.address, run_directory=directory)
        peers = {"learner": learner.address, "quantizer": quantizer.address}
        # The name of a pod, which the certificate must allow.
        actor = start("actor", "actor", "--name", f"{NAME}-actor-5d9c-x", **peers)
        yield learner.address, actor.address


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_simulator_trains_and_is_evaluated_with_the_certificates_of_its_pod(
    running: tuple[str, str], pods_of_run: Pods
) -> None:
    learner, actor = running
    variables = {**pods_of_run.variables("actor", NAME), "ACTOR_ADDRESS": actor, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(EXAMPLE / "cart_pole.py")]
    simulator = subprocess.Popen(
        command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        with LearnerClient(learner, pods_of_run.certificates("operator")) as client:
            for status in client.watch(period_s=0.2):
                assert simulator.poll() is None, simulator.communicate()[0]
                roles = {each.role: each.name for each in status.actors if each.connected}
                if status.environment_steps > 500 and status.evaluation is not None and "evaluator" in roles:
                    break
        assert roles == {"actor": f"{NAME}-actor-5d9c-x", "evaluator": f"{NAME}-actor-5d9c-x-evaluator"}
        # Port forwarding leads to the loopback of a pod, so a simulator needs a certificate there too.
        with pytest.raises(UnavailableError, match="TLS"):
            Client(actor).open()
        with pytest.raises(DeniedError, match="only simulator may"):
            Client(actor, pods_of_run.certificates("monitor")).open()
        # As the kubelet does at the end of a pod.
        simulator.send_signal(signal.SIGTERM)
        assert simulator.wait(PATIENCE_S) == 0
    finally:
        simulator.kill()
        simulator.communicate()
