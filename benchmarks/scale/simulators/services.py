"""A run that stores and never trains, so that nothing but its actor limits the steps."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorq.client import LearnerClient
from benchmarks.processes import ServiceProcess, serving
from benchmarks.scale.simulators.cart_pole import ENVIRONMENT

ENVIRONMENTS = 8
# More than a measurement stores. The learner trains once its replay has so many transitions.
_TRANSITIONS = 20_000_000
_READ_S = 0.1
_START_S = 120.0


@dataclass(frozen=True)
class IdleRun:
    """The services of a run without an actor. flags: of an actor that joins it."""

    learner: ServiceProcess
    flags: tuple[str, ...]

    @contextmanager
    def simulators(self) -> Iterator[ServiceProcess]:
        """An actor for simulators, with the default settings."""
        with serving("actor_service", *self.flags, "--external", "--name", "simulators") as actor:
            yield actor

    @contextmanager
    def environments(self) -> Iterator[ServiceProcess]:
        """An actor that steps the environments of the run itself."""
        with serving("actor_service", *self.flags, "--name", "environments") as actor:
            yield actor

    def steps_per_s(self, least: int, seconds: float) -> float:
        """Environment steps per second that the learner stores, once it has stored `least` more steps."""
        with LearnerClient(self.learner.address) as client:
            begun, latest = time.monotonic(), client.status().environment_steps + least
            while (first := client.status().environment_steps) < latest:
                if time.monotonic() - begun > _START_S:
                    raise SystemExit(f"the actor has made no {least} steps in {_START_S:g} s")
                time.sleep(_READ_S)
            before = time.monotonic()
            time.sleep(seconds)
            last, after = client.status().environment_steps, time.monotonic()
        return (last - first) / (after - before)


@contextmanager
def idle_run(environments: int = ENVIRONMENTS) -> Iterator[IdleRun]:
    """Run a learner and a quantizer. Simulators with the spaces of the example's cart-pole may join.

    environments: of an actor with environments of its own.
    """
    tree: dict[str, Any] = {
        "environment": ENVIRONMENT,
        "environments_per_actor": environments,
        "max_environment_steps": 10**12,
        "replay": {"capacity": 2 * _TRANSITIONS, "min_size": _TRANSITIONS},
        "rate_limiter": {"samples_per_insert": 1.0, "error_buffer": 1e15},
        "checkpoint": {"period_s": 3_600.0},
        "energy": {"enabled": False},
    }
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        # JSON is YAML.
        (folder / "config.yaml").write_text(json.dumps(tree), encoding="utf-8")
        given = ("--config", str(folder / "config.yaml"))
        quantizer = stack.enter_context(serving("quantizer_service", *given, "--store", str(folder / "store")))
        peer = ("--quantizer", quantizer.address)
        run = ("--run-directory", str(folder / "run"))
        learner = stack.enter_context(serving("learner_service", *given, *run, *peer))
        yield IdleRun(learner, (*given, *peer, "--learner", learner.address))
