"""Uploads the newest checkpoint on its own thread. Training never waits for it, and no failure ends the run."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

from actorq.config.sections import CheckpointConfig
from actorq.errors import ActorQError, ConflictError, UnavailableError
from actorq.statefiles.documents import copy_of
from learner_service.files import BEST_POLICY
from learner_service.objectstorage.generations import PART_BYTES, Manifest, Part, manifest_name, number_of
from learner_service.objectstorage.volume import RUN_FILE, Volume, require_whole_documents

_log = logging.getLogger(__name__)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
# Small files of a run, if it has them.
_FILES = (
    *(RUN_FILE, copy_of(Path(RUN_FILE)).name, "published.json", "environment.json", "environment.copy.json"),
    *("outcome.json", "outcome.copy.json", "evaluations.jsonl"),
)
# The order matters. Rows change while they are read, and the segments' checksums detect the changed ones. The table of
# sequences must not be newer than the directory of segments, or lost segments would count as stored.
_REPLAY = ("sequences.previous.json", "sequences.json", "directory.bin")


class Uploader:
    """Uploads generations of a volume. At most one upload waits; the newest checkpoint replaces an older one.

    before: called on the thread before each upload, to update files. Its failure does not stop the upload.
    """

    def __init__(
        self,
        volume: Volume,
        run_id: str,
        config: CheckpointConfig,
        before: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._volume = volume
        self._run_id = run_id
        # At least two, so that a reader can finish with the generation that it has begun.
        self._keep = max(2, config.keep)
        self._replay = config.object_storage_replay
        self._before = before
        self._clock = clock
        self._changed = threading.Condition()
        self._requested = 0
        self._done = 0
        self._closing = False
        self._number = 0
        self._stored: set[Part] = set()
        self._generations: list[tuple[str, Manifest]] = []
        self._uploaded_at = clock()
        # Resets of the run at the newest generation with a checkpoint; -1 before the first such generation.
        self._had_checkpoint = -1
        self.failures = 0
        """Failed attempts since this process started."""
        self.conflict: ConflictError | None = None
        """Set when another learner has taken over the run. Nothing is uploaded afterwards."""
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="uploader", daemon=True)

    @property
    def age_s(self) -> float:
        """Seconds since the newest uploaded checkpoint was read; before the first one, since the learner's start."""
        return self._clock() - self._uploaded_at

    def request(self) -> None:
        """Upload the newest checkpoint soon. Returns at once."""
        with self._changed:
            if not self._requested:
                self._thread.start()
            self._requested += 1
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Try the waiting upload once more, and wait for it. Gives up after `timeout_s` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._requested:
            self._thread.join(timeout_s)
        if self._thread.is_alive() or (self._done < self._requested and self.conflict is None):
            _log.warning("the last checkpoint is not in %s", self._volume.generations.url)

    def _run(self) -> None:
        wait_s = 0.0
        while True:
            with self._changed:
                # After a failure, a newer request does not shorten the wait.
                self._changed.wait_for(lambda: self._closing, wait_s)
                self._changed.wait_for(lambda: self._closing or self._done < self._requested)
                requested, closing = self._requested, self._closing
            if self._done < requested:
                if self._attempt():
                    wait_s, self._done = 0.0, requested
                    continue
                wait_s = min(_LONGEST_WAIT_S, max(_FIRST_WAIT_S, 2 * wait_s))
            if closing or self.conflict is not None:
                return

    def _attempt(self) -> bool:
        try:
            self._upload()
        except ConflictError as error:
            self.conflict = error
            return False
        except Exception as error:
            self.failures += 1
            if not self._failing:
                known = isinstance(error, ActorQError | OSError)
                _log.warning("checkpoints cannot be uploaded (%s); trying again", error, exc_info=not known)
            self._failing = True
            return False
        if self._failing:
            _log.info("checkpoints are uploaded again")
        self._failing = False
        return True

    def _upload(self) -> None:
        generations = self._volume.generations
        self._volume.require_claim(self._run_id)
        if not self._number or generations.left_some:
            self._generations = generations.keep_newest(self._keep)
            self._number = 1 + max((number_of(name) for name, _ in self._generations), default=0)
            self._stored = self._needed()
        self._stored = generations.present(self._stored)
        try:
            self._before()
        except (ActorQError, OSError) as error:
            _log.info("the best policy is not uploaded yet: %s", error)
        at = self._clock()
        # Without this check, damaged copies would soon replace all whole copies.
        require_whole_documents(self._volume.directory)
        resets = self._volume.resets
        files = self._read()
        self._require_whole(files, resets)
        # Another volume may have claimed the run meanwhile.
        claim = self._volume.require_claim(self._run_id)
        name, manifest = manifest_name(claim, self._number), Manifest(self._run_id, files, resets)
        generations.write(name, manifest)
        self._number += 1
        self._uploaded_at = at
        before = self._generations
        retained = [each for each in before if each[1].resets == resets][1 - self._keep :]
        self._generations = [*retained, (name, manifest)]
        # Includes the parts that failed attempts have stored.
        unused, self._stored = self._stored - self._needed(), self._stored & self._needed()
        generations.remove((each[0] for each in before if each not in retained), (part.name for part in unused))

    def _require_whole(self, files: Mapping[str, object], resets: int) -> None:
        """Raise UnavailableError for lost files. Otherwise a generation without progress would become the newest."""
        has_checkpoint = any(name.startswith("checkpoints/") for name in files)
        if RUN_FILE not in files or (self._had_checkpoint == resets and not has_checkpoint):
            raise UnavailableError(f"{self._volume.directory} has lost files of the run")
        if has_checkpoint:
            self._had_checkpoint = resets

    def _needed(self) -> set[Part]:
        return {part for _, manifest in self._generations for part in manifest.parts}

    def _read(self) -> dict[str, tuple[Part, ...]]:
        """Store the parts of all files. A checkpoint stays readable even if the learner removes it meanwhile."""
        root = self._volume.directory
        names = [name for name in _FILES if (root / name).exists()]
        names += [f"{BEST_POLICY}/{path.name}" for path in sorted((root / BEST_POLICY).glob("[!.]*"))]
        if checkpoints := sorted(path.name for path in (root / "checkpoints").glob("[0-9]*") if path.name.isdigit()):
            folder = f"checkpoints/{checkpoints[-1]}"
            names += [f"{folder}/state.json", f"{folder}/tensors.safetensors"]
        if self._replay:
            found = {path.name for path in (root / "replay").glob("[!.]*") if path.is_file()}
            first = [name for name in _REPLAY if name in found]
            names += [f"replay/{name}" for name in (*first, *sorted(found.difference(first)))]
        with contextlib.ExitStack() as stack:
            files = {name: stack.enter_context((root / name).open("rb")) for name in names}
            return {name: self._parts(file) for name, file in files.items()}

    def _parts(self, file: BinaryIO) -> tuple[Part, ...]:
        put = self._volume.generations.put
        return tuple(put(data, self._stored) for data in iter(partial(file.read, PART_BYTES), b""))
