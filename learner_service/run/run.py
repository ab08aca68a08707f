"""The run: creates the parts of a learner, and executes the operators' commands."""

import asyncio
import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState
from actorq.errors import ConflictError
from actorq.rundirectory import RunDirectory
from actorq.statefiles.tolerance import Tolerated
from learner_service.actors.shares import PATIENCE_S, Shares
from learner_service.actors.storage_thread import StorageThread
from learner_service.actors.streams import Streams
from learner_service.objectstorage.copies import opened_source
from learner_service.objectstorage.policy_export import PolicyExport
from learner_service.objectstorage.uploader import Uploader
from learner_service.objectstorage.volume import open_volume
from learner_service.run.best_policy import BestPolicy
from learner_service.run.connections import Connections
from learner_service.run.identity import RunIdentity, check_same_run, locked
from learner_service.run.judge import Judge
from learner_service.run.lifecycle import Lifecycle
from learner_service.run.preparation import Preparation, finish_reset
from learner_service.run.records import Records
from learner_service.training.checkpoint import Checkpoints
from learner_service.training.drawing import steps_per_policy
from learner_service.training.training import Training
from learner_service.training.warm_start import check_settings

_log = logging.getLogger(__name__)

# Time limit of the last upload at the end of a run.
_FINAL_UPLOAD_S = 10.0
# Number of successive missing reports after which an actor counts as silent.
_MISSED_REPORTS = 3


class Run:
    """The learner's central object: it creates the parts, and the servicers call them. Lives on the event loop.

    Coroutine methods wait for threads. All others return at once.
    uploader: copies checkpoints to object storage; None without it.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        client: QuantizerClient,
        resume: bool,
        node: str = "",
        stays_over: bool = False,
    ) -> None:
        """stays_over: a finished run stays over unless its target or budget has changed. If False, it continues."""
        # Before anything is written.
        self._lock = locked(directory)
        with ExitStack() as refused:
            refused.callback(self._lock.close)
            volume = open_volume(config.checkpoint, directory)
            files = RunDirectory(directory)
            export = PolicyExport(config, files.evaluations, client, volume)
            if resume:
                finish_reset(directory)
            found = volume.prepare(resume) if volume is not None else None
            identity = RunIdentity.read(directory, resume)
            checkpoints = Checkpoints(directory / "checkpoints", config.checkpoint.keep, config.checkpoint.new_networks)
            restored = checkpoints.load_newest(found) if resume else None
            values = restored.values if restored else {}
            # Nothing is written before this check, because this learner may not be allowed to continue the run.
            check_same_run(config, values, identity.read_environment())
            if config.init_from is not None and restored is None:
                # The spaces of the other run are checked when the first actor has reported the environment's spaces.
                with opened_source(config, directory, with_rows=False) as source:
                    check_settings(source, config)
            export.begin(identity.run_id)
            identity.write()
            files.record_config(config)
            if volume is not None:
                volume.begin(identity.run_id)
            refused.pop_all()
        records = self.records = Records(config, identity, values, node)
        self.uploader: Uploader | None = None
        if volume is not None:
            best = BestPolicy(directory, client, self.records.evaluations)
            self.uploader = Uploader(volume, identity.run_id, config.checkpoint, best.update)
        self._beats, self._is_writing = Tolerated("the run's clock or evaluations"), False
        storage = self._storage = StorageThread()
        steps = steps_per_policy(config) if config.queue.synchronous else 0
        self._shares = Shares(steps, config.actors, config.actor.segment_length) if steps else None
        streams = self.streams = Streams(storage)
        judge = self.judge = Judge(records)
        self.lifecycle = Lifecycle(records, streams, judge, checkpoints, export, self.uploader, stays_over)
        self.preparation = Preparation(records, self.lifecycle, streams, storage, client, checkpoints, restored)
        self.connections = Connections(records, self.preparation, self.lifecycle, judge, streams, storage)

    @property
    def training(self) -> Training | None:
        """The parts that depend on the environment; None before they are built."""
        return self.records.training

    @property
    def conflict(self) -> ConflictError | None:
        """The error that another learner continues the run from object storage; None if none does."""
        return None if self.uploader is None else self.uploader.conflict

    def beat(self) -> None:
        """Once a second, write time and evaluations, measure for scaling, and end a run that is solved or out of time.

        Writes do not overlap on a slow disk, because segments are stored after them.
        """
        if not self._is_writing:
            self._is_writing = True
            self._storage.submit(partial(self._beats.attempt, self.records.sync), self._on_written, self._on_failure)
        if self.judge.reconsider():
            self.lifecycle.finish(RunState.SOLVED)
        limit_s = self.records.config.max_seconds
        if limit_s is not None and self.training is not None and self.records.clock.elapsed_s >= limit_s:
            self.lifecycle.finish(RunState.BUDGET_ENDED)
        config = self.records.config
        if config.offline and self.training is not None and self.training.trainer.updates >= config.max_updates:
            self.lifecycle.finish(RunState.BUDGET_ENDED)
        if self._shares is not None and self.training is not None:
            # An actor reports at this interval, even while its environments hang.
            silent_s = max(PATIENCE_S, _MISSED_REPORTS * self.records.config.actor.report_period_s)
            self.streams.tell_share(self._shares.update(*self.records.members.names("actor", silent_s)))
        if self.training is not None and self.lifecycle.wants_actors:
            limiter, trainer = self.training.replay.limiter, self.training.trainer
            connected = self.records.members.connected("actor")
            stored = self.training.replay.total_transitions
            self.records.scaling.observe(
                *(limiter.samples, limiter.starved_seconds, stored, connected, trainer.paused, limiter.missing)
            )

    def _on_written(self, written: bool) -> None:
        self._is_writing = False
        if written:
            self.streams.tell_durable("evaluator", self.records.evaluations.durable_sequences)

    def _on_failure(self, error: BaseException) -> None:
        self._is_writing = False
        _log.warning("the run's clock could not be written: %s", error)

    async def pause(self) -> int:
        """Pause training until `resume`, by any learner. Returns the updates. Raises as `Commands.write`."""
        trainer = self._require_training().trainer
        await asyncio.to_thread(self.lifecycle.commands.write, paused=True)
        return await asyncio.to_thread(trainer.pause)

    async def resume(self) -> int:
        """Resume training. Returns the updates so far."""
        trainer = self._require_training().trainer
        await asyncio.to_thread(self.lifecycle.commands.write, paused=False)
        trainer.resume()
        return trainer.updates

    async def save(self) -> tuple[Path, int]:
        """Write a checkpoint. Returns its folder and its number of updates."""
        path = await asyncio.to_thread(self._require_training().trainer.save)
        return path, int(path.name)

    async def close(self) -> None:
        """End all threads and close all files."""
        await self._storage.close()
        if self.training is not None:
            await asyncio.to_thread(self.training.close)
        Tolerated("the log of evaluations", "the next learner reads the lines that it has").attempt(self.records.close)
        # The time until the next learner of a run that is not over is a restart, not a pause.
        self._beats.attempt(partial(self.records.clock.beat, ended=not self.lifecycle.wants_actors))
        if self.uploader is not None:
            await asyncio.to_thread(self.uploader.close, _FINAL_UPLOAD_S)
        self._lock.close()

    def _require_training(self) -> Training:
        self.lifecycle.require_here()
        if self.training is None or not self.lifecycle.wants_actors:
            raise ConflictError(f"the run is {self.lifecycle.state.value}: there is no training to control")
        return self.training
