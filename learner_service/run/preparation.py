"""Decides a run's environment: builds the training for the first spec that fits, and resets it on request."""

import asyncio
import logging
import shutil
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.policy import PolicyGraph
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import EnvironmentReset, Receipt
from actorq.errors import ConflictError, InvalidInputError, UnavailableError, UserError, foreign_cause
from actorq.statefiles.documents import copy_of, read_either, remove_both, write_twice
from actorq.statefiles.tolerance import Tolerated
from actorq.tasks import may_be_left
from actorq.text import one_line
from learner_service.actors.members import Member
from learner_service.actors.storage_thread import StorageThread
from learner_service.actors.streams import Streams
from learner_service.objectstorage.copies import opened_source
from learner_service.replay import LastSequences, SegmentSource
from learner_service.run.evaluations import count_file
from learner_service.run.lifecycle import Lifecycle
from learner_service.run.records import Records
from learner_service.training.checkpoint import Checkpoints, LearnerState
from learner_service.training.training import Training, build_training

_log = logging.getLogger(__name__)

# Maximum length of the text about a refused environment in the status.
_MOST_BYTES = 500
# Records the decision on a reset, until all files are moved.
_PENDING = "reset.json"
_SPEC = Path("environment.json")
_EVALUATIONS = Path("evaluations.jsonl")
# The files of an environment. The spec comes last, so that no run without a spec finds the other files.
NAMES = ("checkpoints", "best", "replay", copy_of(_SPEC).name, _SPEC.name)


@dataclass(eq=False)
class Preparation:
    """Builds the training once. Lives on the event loop. Building and resetting run on other threads.

    restored: the state to resume from; None for a new run. known: the run's spec; None before it is decided.
    problem: why the newest environment was refused, in one line. refused: number of refused environments.
    """

    records: Records
    lifecycle: Lifecycle
    streams: Streams
    storage: StorageThread
    client: QuantizerClient
    checkpoints: Checkpoints
    restored: LearnerState | None

    def __post_init__(self) -> None:
        self._config = self.records.config
        self._directory = self.records.identity.directory
        self.known = self.records.identity.read_environment()
        if self.known is None:
            self.lifecycle.restored.set()
        self.problem = ""
        self.refused = 0
        self._building: tuple[EnvironmentSpec, asyncio.Task[None]] | None = None
        self._resetting: asyncio.Task[EnvironmentReset] | None = None
        # After a reset: the newest version and the stored sequences from before it.
        self._published = 0
        self._sequences = LastSequences()
        self._sequences.is_member = self.records.members.has_key

    async def restore(self) -> None:
        """Resume from the disk, before the first actor is back. An error becomes the run's fault."""
        try:
            if self.known is not None:
                await self._build(self.known)
        except Exception as error:
            self.lifecycle.fail(error)
        else:
            self.lifecycle.resume()

    async def prepare(self, spec: EnvironmentSpec, name: str) -> None:
        """Build the training for actor `name` in an environment of this spec, unless there is one that fits.

        Raises ConflictError when the run is on another environment, and InvalidInputError when no training can be built
        for this one. The run then does not change, and another actor may fit.
        """
        try:
            await self._prepare(spec)
        except (ConflictError, InvalidInputError) as error:
            self.refused += 1
            self.problem = one_line(f"{name}: {error}", _MOST_BYTES)
            raise

    def resume_after(self, member: Member) -> int:
        """The highest stored sequence of this incarnation, including before a reset; 0 when there is none."""
        training = self.records.training
        tables = (self._sequences, training.replay.sequences) if training else (self._sequences,)
        return max(table.last(*member.source_key) for table in tables)

    async def reset(self, discard: bool) -> EnvironmentReset:
        """Forget the spec, and set the training's files aside. The next spec that fits is the run's.

        discard: reset a run that has made progress. Otherwise, progress raises ConflictError. A run that is over always
            raises it.

        Raises UnavailableError while the run is restored, because this reads the files that a reset moves.
        """
        self.lifecycle.require_here()
        self.lifecycle.require_restored()
        if not self.lifecycle.wants_actors:
            raise ConflictError(f"the run is {self.lifecycle.state.value}: expected a run that is not over")
        self._require_idle()
        training = self.records.training
        if training is not None and not discard and (training.trainer.updates or not training.replay.limiter.missing):
            raise ConflictError(
                f"the run has made progress: {training.trainer.updates} updates, {training.replay.total_transitions} "
                "transitions; to set all of them aside and begin again, use `discard` (actorq reset-environment "
                "--discard)"
            )
        self._resetting = may_be_left(asyncio.create_task(self._reset()), "the environment's reset")
        self.lifecycle.change(self._resetting)
        try:
            # Shielded, so that a caller that disconnects does not leave half of the files in place.
            return await asyncio.shield(self._resetting)
        except OSError as error:
            raise UnavailableError(f"cannot set the run's files aside: {error}; try again") from error

    async def _prepare(self, spec: EnvironmentSpec) -> None:
        configured = self._config.environment
        if spec.environment_id != configured:
            raise ConflictError(f"environment: the run is on {configured}, got {spec.environment_id}")
        expected = replace(spec, environment_arguments=self._config.environment_arguments)
        if spec != expected:
            raise ConflictError(f"environment: expected the run's, got one with {expected.differences(spec)}")
        while (training := self.records.training) is None:
            if self._building is None:
                self._require_idle()
                building = may_be_left(asyncio.create_task(self._build(spec)), "building the run's networks")
                self._building = (spec, building)
                self.lifecycle.change(building)
            built_for, building = self._building
            try:
                # Shielded, so that an actor that leaves does not cancel the build for all others.
                await asyncio.shield(building)
            except InvalidInputError as error:
                # The refusal of another actor's spec does not affect this actor's spec.
                if built_for == spec:
                    raise InvalidInputError(str(error)) from None
        if spec != training.spec:
            raise ConflictError(
                f"environment: expected the run's {configured}, got one with {training.spec.differences(spec)}; "
                "if the run's environment is wrong, use actorq reset-environment"
            )

    async def _build(self, spec: EnvironmentSpec) -> None:
        loop = asyncio.get_running_loop()

        def on_receipt(receipt: Receipt) -> None:
            loop.call_soon_threadsafe(self.records.record_receipt, receipt)

        make = self._make if self.known is not None else self._make_first
        try:
            training, graph = await asyncio.to_thread(make, spec, on_receipt)
        finally:
            self._building = None
        self.known, self.problem = spec, ""
        try:
            self.lifecycle.begin(training, graph)
        except Exception as error:
            # Without this fault, actors would wait forever, because the training is not begun twice.
            self.lifecycle.fail(error)
            raise

    def _make_first(self, spec: EnvironmentSpec, on_receipt: Callable[[Receipt], None]) -> tuple[Training, PolicyGraph]:
        """Build for an actor's spec. A failed build leaves no files."""
        replay = self._directory / "replay"
        existed = replay.exists()
        try:
            training, graph = self._make(spec, on_receipt)
            try:
                self.records.identity.write_environment(spec)
            except BaseException:
                training.close()
                raise
            return training, graph
        except Exception as error:
            if not existed:
                shutil.rmtree(replay, ignore_errors=True)
            raise _refusal(error) from None

    def _make(self, spec: EnvironmentSpec, on_receipt: Callable[[Receipt], None]) -> tuple[Training, PolicyGraph]:
        identity = self.records.identity
        opening = wire.Opening(identity.run_id, self._config.scheme, identity.lineage)
        with ExitStack() as stack:
            source = None
            if self._config.init_from is not None and self.restored is None:
                source = stack.enter_context(opened_source(self._config, self._directory, with_rows=True))
            training, graph = build_training(
                *(self._config, spec, self._directory, opening, self.client, self.restored),
                save=lambda updates: self.lifecycle.save(training, updates),
                on_receipt=on_receipt,
                published=self._published,
                source=source,
            )
        if source is not None:
            # After this the run resumes from its own files, for any changes of the other run.
            first = Tolerated("the first checkpoint", "the run begins with the other run's networks until the next one")
            first.attempt(partial(self.lifecycle.save, training, 0))
        return training, graph

    async def _reset(self) -> EnvironmentReset:
        training, (spec, self.known) = self.records.training, (self.known, None)
        try:
            # All actors rejoin. Their received segments are stored first.
            self.records.forget_training()
            self.streams.forget("the run's environment was reset; join again")
            await self.storage.settle()
            if training is not None:
                self._published = training.publisher.version
                for source, sequence in training.replay.sequences.as_dict().items():
                    self._sequences.advance(SegmentSource(*source, sequence))
                await asyncio.to_thread(training.close)
            set_aside = await asyncio.to_thread(self._set_aside)
        except Exception:
            # The files are in their old place: the next training continues from the newest checkpoint, as after a
            # restart.
            self.restored = await asyncio.to_thread(self.checkpoints.load_newest)
            raise
        finally:
            self._resetting = None
        self.restored, self.problem = None, ""
        if set_aside is not None:
            # Until this copy is uploaded, a loss of the volume would restore the earlier files.
            self.lifecycle.upload()
        return EnvironmentReset(set_aside, spec)

    def _set_aside(self) -> Path | None:
        """Move the files of the environment. Returns where they are; None when there were none."""
        names = [name for name in NAMES if (self._directory / name).exists()]
        if names == ["checkpoints"] and not any((self._directory / "checkpoints").iterdir()):
            return None
        self.records.identity.count_reset()
        folder = begin_reset(self._directory)
        self.records.evaluations.set_aside(folder)
        finish_reset(self._directory)
        (self._directory / "checkpoints").mkdir(exist_ok=True)
        return folder

    def _require_idle(self) -> None:
        if self._building is not None or self._resetting is not None:
            raise UnavailableError("the run's environment is being decided: try again")


def begin_reset(directory: Path) -> Path:
    """Decide on a reset, durably, and make the folder for the earlier files."""
    taken = [path.name.rpartition("-")[2] for path in directory.glob("before-reset-*")]
    number = max((int(number) for number in taken if number.isdecimal()), default=0) + 1
    folder = directory / f"before-reset-{number}"
    write_twice(directory / _PENDING, {"folder": folder.name})
    folder.mkdir()
    return folder


def finish_reset(directory: Path) -> None:
    """Move the files that a reset in progress has not moved yet.

    Raises InvalidInputError when the file of the reset is damaged, and OSError.
    """
    pending = read_either(directory / _PENDING)
    if pending is None:
        return
    folder = directory / str(pending["folder"])
    folder.mkdir(exist_ok=True)
    evaluations = (_EVALUATIONS.name, count_file(_EVALUATIONS).name) if (directory / _EVALUATIONS).exists() else ()
    # A file that is there already was moved before, by a learner that has begun anew.
    for name in (*(evaluations if not (folder / _EVALUATIONS).exists() else ()), *NAMES):
        if (directory / name).exists() and not (folder / name).exists():
            (directory / name).rename(folder / name)
    remove_both(directory / _PENDING)
    _log.warning("the run's environment was reset; its earlier files are in %s", folder)


def _refusal(error: Exception) -> InvalidInputError:
    """The one-line error for an actor when no training can be built for its environment."""
    if isinstance(error, UserError):
        if cause := foreign_cause(error):
            _log.error("no training can be built for this environment", exc_info=cause)
        return InvalidInputError(str(error))
    lines = str(error).strip().splitlines()
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return InvalidInputError(
        f"no training can be built for this environment: {type(error).__name__}: {lines[0] if lines else ''} "
        f"({Path(frame.filename).name}:{frame.lineno})"
    )
