"""The services that get hostile messages: their processes, and the checks of their ends and logs."""

import json
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import psutil

from actorq.config.run_config import RunConfig
from benchmarks.faults.fuzz.corpus import ENVIRONMENT
from benchmarks.faults.fuzz.targets import Publishing, play_messages
from benchmarks.processes import ServiceProcess, serving
from learner_service.algorithms import make_algorithm
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters

_MOST_LINE_BYTES = 2_000
# Attempts to begin a stream of a simulator, and the seconds between them.
_TRIES, _AGAIN_S = 300, 0.1
_CONFIG = {
    "environment": "CartPole-v1",
    # The learner does not train: the benchmark measures the effect of messages.
    "replay": {"capacity": 2_000_000, "min_size": 1_000_000},
    "max_environment_steps": 10**12,
    "energy": {"enabled": False},
}


@contextmanager
def started_services(folder: Path, names: Collection[str]) -> Iterator[dict[str, ServiceProcess]]:
    """The processes of these names, with addresses. The quantizer brings a relay and an actor that need it."""
    config = folder / "config.yaml"
    # JSON is YAML.
    config.write_text(json.dumps(_CONFIG), encoding="utf-8")
    given = ("--config", str(config))
    found: dict[str, ServiceProcess] = {}
    with ExitStack() as stack:

        def start(name: str, module: str, *flags: str) -> None:
            if name in names:
                found[name] = stack.enter_context(serving(module, *given, *flags))

        # Only this benchmark publishes. The learner's quantizer address leads nowhere.
        start("learner", "learner_service", "--run-directory", str(folder / "run"), "--quantizer", "127.0.0.1:9")
        start("quantizer", "quantizer_service", "--store", str(folder / "store"))
        if "quantizer" in found:
            address = found["quantizer"].address
            start("relay", "quantizer_service", "--upstream", address)
            start("actor", "actor_service", "--role", "standalone", "--quantizer", address)
        if "simulators" in names:
            found["simulators"] = stack.enter_context(_simulators(folder))
        yield found


@contextmanager
def _simulators(folder: Path) -> Iterator[ServiceProcess]:
    """An actor for simulators, with a learner and a quantizer that answer it. Its run has the spaces of `PLAY`."""
    config = folder / "simulators.yaml"
    config.write_text(json.dumps({**_CONFIG, "environment": "external/fuzz"}), encoding="utf-8")
    given = ("--config", str(config))
    with ExitStack() as stack:
        quantizer = stack.enter_context(serving("quantizer_service", *given, "--store", str(folder / "second")))
        peer = ("--quantizer", quantizer.address)
        run = ("--run-directory", str(folder / "simulated"))
        learner = stack.enter_context(serving("learner_service", *given, *run, *peer))
        external = ("--external", "--external.timeout-s", "5", "--learner", learner.address)
        actor = stack.enter_context(serving("actor_service", *given, *external, *peer))
        # The first valid spaces must be those of the valid messages.
        play(actor.address)
        yield actor


def first_publishing() -> Publishing:
    """A valid graph and its parameters, from which hostile versions are made."""
    config = RunConfig.model_validate({**_CONFIG, "dqn": {"hidden_sizes": (16, 16)}})
    policy = make_algorithm(config, ENVIRONMENT).policy
    return Publishing(export_policy_graph(policy, ENVIRONMENT), snapshot_parameters(policy))


def publish_first(address: str, publishing: Publishing) -> None:
    """Publish a first version, so that clients can ask for a policy."""
    with grpc.insecure_channel(address) as channel:
        stream = channel.stream_stream("/actorq.v1.QuantizerService/PublishCheckpoints")
        answers = list(stream(iter(publishing.first_version()), timeout=60.0))
    if len(answers) != 2:
        raise SystemExit(f"the quantizer did not accept a valid version: {len(answers)} answers")


def play(address: str) -> None:
    """Play a valid step. Raises SystemExit if the actor does not answer it."""
    with grpc.insecure_channel(address) as channel:
        for _ in range(_TRIES):
            stream = channel.stream_stream("/actorq.v1.ExternalEnvironmentService/Play")
            try:
                answers = list(stream(iter(play_messages()), timeout=60.0))
            except grpc.RpcError as error:
                # The actor has not joined its run yet.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                time.sleep(_AGAIN_S)
            else:
                if len(answers) != 2:
                    raise SystemExit(f"the actor did not answer a valid step: {len(answers)} answers")
                return
    raise SystemExit("the actor for simulators is not available")


def still_running(services: dict[str, ServiceProcess]) -> list[str]:
    """Ask learner and actors to end, with unknown fields in the request. Returns the names of those that did not."""
    drain = "/actorq.v1.ActorService/Drain"
    calls = {"learner": "/actorq.v1.LearnerService/StopRun", "actor": drain, "simulators": drain}
    running = []
    for name in [name for name in calls if name in services]:
        with grpc.insecure_channel(services[name].address) as channel:
            channel.unary_unary(calls[name])(b"\x7a\x03abc", timeout=60.0)
        try:
            services[name].process.wait(60.0)
        except psutil.TimeoutExpired:
            running.append(name)
    return running


def log_faults(services: dict[str, ServiceProcess]) -> list[str]:
    """Tracebacks, and overlong or unprintable lines."""
    faults = []
    for name, service in services.items():
        for line in service.log:
            text = line.removesuffix("\n")
            if "Traceback" in text or not text.isprintable() or len(text.encode()) > _MOST_LINE_BYTES:
                faults.append(f"{name}: {text[:300]!r}")
    return faults
