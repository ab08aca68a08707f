"""The learner's process: runs one learner, in a pod or for the launcher."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import grpc
from prometheus_client import Metric
from pydantic import Field

from actorq.client import QuantizerClient
from actorq.config.algorithms import ALGORITHMS
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.errors import ActorQError, InvalidInputError, UnreadableError, UserError
from actorq.externalscaler import externalscaler_pb2, externalscaler_pb2_grpc
from actorq.process import EXIT_OF_STATE, EXIT_OK, ProcessSettings, Service, parse_arguments, run_process
from actorq.statefiles.documents import read_document, write_document
from actorq.text import one_line
from actorq.v1 import learner_pb2, learner_pb2_grpc
from learner_service.algorithms import chosen_algorithm
from learner_service.keda_servicer import ScalerServicer
from learner_service.kernels.memory import keep_memory
from learner_service.metrics import learner_metrics
from learner_service.report import Reporter
from learner_service.run.lifecycle import written_at_the_end
from learner_service.run.run import Run
from learner_service.servicer import LearnerServicer
from learner_service.training.threads import set_configured

_log = logging.getLogger(__name__)

# Time between two rows of scalars.
_PERIOD_S = 1.0
# Time for actors and watchers, before the server stops, to learn that the run is over or the learner leaves.
_FAREWELL_S = 3.0


def fails_again(directory: Path, failure: BaseException, life: int, made_updates: bool) -> bool:
    """Record `failure`. Returns whether the previous learner ended with the same failure, without an update in between.

    Another restart would then end in the same way, for example after a mistake in a user's algorithm.
    life: number of this learner in its run.
    """
    path, text = directory / "failure.json", one_line(f"{type(failure).__name__}: {failure}")
    try:
        before = read_document(path)
    except (FileNotFoundError, InvalidInputError, UnreadableError):
        before = {}
    if before == {"exception": text, "life": life - 1} and not made_updates:
        return True
    try:
        write_document(path, {"exception": text, "life": life})
    except OSError as error:
        _log.warning("%s cannot be written (%s): the next learner cannot detect a repetition", path, error.strerror)
    return False


# Settings of the run that other services read.
_IGNORES = ("environment_backend", "quantizer", "energy", "actor.environment_timeout_s", "actor.allow_modules")


class LearnerSettings(Settings):
    """Settings of the learner process: its run directory and its quantizer."""

    run_directory: Path = Field(Path("runs/learner"), description="folder of the run's replay, checkpoints and events")
    quantizer: str = Field("127.0.0.1:50052", description="HOST:PORT of the quantizer")
    resume: bool = Field(False, description="continue the run in the run directory, or start one if there is none")
    linger: bool = Field(
        False, description="serve the status of a finished run until SIGTERM; a finished run stays over when resumed"
    )
    pod: str = Field("", description="name of this learner's StatefulSet pod; only the first pod (-0) may train")

    def require_first_pod(self) -> None:
        """Raise UserError in a second pod of a StatefulSet: a run has one learner."""
        name, _, ordinal = self.pod.rpartition("-")
        if name and ordinal.isdigit() and int(ordinal):
            raise UserError(
                f"--pod: only pod {name}-0 may train, and this is {self.pod}: return to one learner with `kubectl "
                f"scale statefulset/{name} --replicas=1`; for more actors use `kubectl scale deployment/actor`"
            )


class LearnerService(Service):
    """One run, from its first actor to its summary."""

    def __init__(self, config: RunConfig, settings: LearnerSettings, node: str = "") -> None:
        certificates = config.transport.certificates_of("learner")
        client = QuantizerClient(settings.quantizer, certificates)
        self._run = Run(config, settings.run_directory, client, settings.resume, node, settings.linger)
        self._reporter = Reporter(self._run)
        self._directory = settings.run_directory
        self._summary = settings.run_directory / "summary.json"
        self._linger = settings.linger
        self._summary_writes = written_at_the_end("summary.json", settings.linger)
        self._told_to_end = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add LearnerService and KEDA's ExternalScaler; return their full names."""
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(LearnerServicer(self._run, self._reporter), server)
        externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(ScalerServicer(self._run), server)
        return (
            learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].full_name,
            externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"].full_name,
        )

    async def until_ready(self) -> None:
        """Wait until the run is restored."""
        await self._run.lifecycle.restored.wait()

    async def run(self, address: str) -> int:
        """Train until the run is over or this learner gets SIGTERM.

        Returns 0 when the run was solved, 3 when its budget ended, 4 when it was stopped, and 6 when it was
        interrupted. A learner with `linger` serves until SIGTERM, and always returns 0. Raises UserError when another
        learner has continued the run from object storage. The run here is then interrupted.
        """
        try:
            await self._train()
        except Exception as error:
            await self._close_after_fault(error)
            raise
        await self._run.close()
        if self._run.conflict is not None:
            raise UserError(f"checkpoint.object_storage: {self._run.conflict}")
        return EXIT_OK if self._linger else EXIT_OF_STATE[self._run.lifecycle.state]

    async def _train(self) -> None:
        """Serve the run until this learner must end, and write its end. Raises the run's fault."""
        run, lifecycle = self._run, self._run.lifecycle
        was_over = not lifecycle.wants_actors
        await run.preparation.restore()
        while not lifecycle.ended.is_set() and lifecycle.fault is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_S):
                    await lifecycle.ended.wait()
            run.beat()
            self._reporter.write_events()
            if run.conflict is not None:
                self.begin_drain()
        if lifecycle.fault is not None:
            self._raise(lifecycle.fault)
        # Leaving actors send a last report of the resources that they used.
        await run.streams.until_closed(_FAREWELL_S)
        if not (was_over and self._summary.exists()):
            run.records.resources.record_self()
            run.records.resources.ledger.estimate_to_now(run.records.clock.elapsed_s)
            summary = self._reporter.summary()
            written = self._write_end(summary)
            await asyncio.to_thread(run.records.events.close, summary)
            # The disk may have room again while the learner lingers. After SIGTERM, the learner writes for the last
            # time.
            last = False
            while not (written or last) and self._linger:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PERIOD_S):
                        await self._told_to_end.wait()
                last = self._told_to_end.is_set()
                written = self._write_end(summary)
        if self._linger:
            await self._told_to_end.wait()

    async def _close_after_fault(self, fault: Exception) -> None:
        """Close sinks and files. The fault stays the error of the run, also when this fails."""
        run = self._run
        try:
            run.lifecycle.fail(fault)
            await asyncio.to_thread(run.records.events.close)
            await run.close()
        except Exception:
            _log.exception("the run could not be closed cleanly")

    def metrics(self) -> Iterable[Metric]:
        """The Prometheus metrics of the run."""
        return learner_metrics(self._run, self._reporter)

    def _write_end(self, summary: Mapping[str, Any]) -> bool:
        """Write summary and outcome. Returns False when the disk refuses one of them."""
        written = self._summary_writes.attempt(partial(write_document, self._summary, summary, indent=2))
        if not written:
            # The summary of an earlier learner must not be mistaken for this learner's summary.
            with contextlib.suppress(OSError):
                self._summary.unlink()
        return self._run.lifecycle.write_outcome() and written

    def _raise(self, fault: BaseException) -> NoReturn:
        if isinstance(fault, UserError):
            # A new exception is raised, because the failing call holds the old one and clears its traceback frames.
            raise UserError(str(fault)) from fault
        training = self._run.training
        trainer = training.trainer if training is not None and fault is training.trainer.fault else None
        life = self._run.records.identity.lives
        if trainer is not None and fails_again(self._directory, fault, life, trainer.made_updates):
            raise UserError(
                f"training has failed twice in a row, without an update between: {type(fault).__name__}: {fault}; fix "
                "the cause, then continue with --resume"
            ) from None
        raise ActorQError(f"the run cannot continue: {fault}") from fault

    def begin_drain(self) -> None:
        """Save everything after SIGTERM. The next learner continues the run, unless the run is over."""
        self._told_to_end.set()
        self._run.lifecycle.interrupt()


def run() -> int:
    """Run the learner that the command line describes, and return the exit code."""
    config, process, settings = parse_arguments(
        "actorq learner",
        "Train from the trajectories of actors.",
        [RunConfig, ProcessSettings, LearnerSettings],
        ignores=_IGNORES,
    )
    assert isinstance(config, RunConfig)
    assert isinstance(process, ProcessSettings)
    assert isinstance(settings, LearnerSettings)
    settings.require_first_pod()
    keep_memory()
    set_configured(config)
    if config.algorithm not in ALGORITHMS:
        # Report a mistake in a user's algorithm before an actor joins.
        chosen_algorithm(config)
    make = partial(_service, config, settings, process)
    return run_process(make, process, process.name or "learner", config, "learner")


def _service(config: RunConfig, settings: LearnerSettings, process: ProcessSettings) -> LearnerService:
    try:
        return LearnerService(config, settings, process.node)
    except OSError as error:
        raise UserError(
            f"--run-directory: {settings.run_directory} cannot be written or read: {error.strerror or error}"
        ) from error
