"""Synchronizes a volume with object storage before the learner starts: refuses another run, restores a lost run."""

import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from actorq.config.sections import CheckpointConfig
from actorq.domain.lineage import unique_number
from actorq.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError, UserError
from actorq.statefiles.documents import copy_of, read_either, remove_both, write_document, write_twice
from actorq.statefiles.files import sync_folder
from actorq.statefiles.highwater import LEAP_OF_COPIES
from learner_service.files import OBJECT_STORAGE
from learner_service.objectstorage.generations import Claim, Generations, Part
from learner_service.objectstorage.store import ObjectStore
from learner_service.training.checkpoint import CheckpointScan, find_newest

_log = logging.getLogger(__name__)

# The lost volume may have used more numbers after its last upload: one life for each restart of its learner, one
# version for each publication. These limits are the most that are possible without a successful upload in between.
_LIVES, _VERSIONS = 2**12, LEAP_OF_COPIES
_MOST_FILES, _MOST_GENERATIONS = 1000, 1000
RUN_FILE = "run.json"
"""Each generation has this file. A volume without it has no run."""
_MARK_FILE = "published.json"
# A generation in which one of them is damaged is not whole. All except the mark have a copy.
_DOCUMENTS = (RUN_FILE, _MARK_FILE, "environment.json", "outcome.json")


class Volume:
    """The folder of a run whose checkpoints go to object storage.

    name: random, made once for each volume. If the newest claim in the storage has another name, another learner has
        continued the run.
    """

    def __init__(self, directory: Path, generations: Generations) -> None:
        self.directory = directory
        self.generations = generations
        self._file = directory / OBJECT_STORAGE
        values = {}
        with suppress(InvalidInputError):
            values = read_either(self._file) or {}
        self.name = str(values.get("volume") or uuid.uuid4().hex)
        # Set by `actorq restore`: this volume takes over the run from the volume in the storage.
        self._takes_over = bool(values.get("takes_over"))

    @property
    def resets(self) -> int:
        """Resets of the run's environment so far. Copies from before the last reset are no longer used."""
        return int((read_either(self.directory / RUN_FILE) or {}).get("resets", 0))

    def prepare(self, resume: bool) -> CheckpointScan | None:
        """Restore the run if the volume has none, and its newest checkpoint if that is damaged.

        Call before the learner claims the volume. Returns the checkpoints that it has read; None if it has read none.
        Raises UserError when nothing whole can be read, and when a new run would replace a stored one.
        """
        run = self.directory / RUN_FILE
        try:
            if not (run.exists() or copy_of(run).exists()):
                return self._fill(resume)
            return self._replace_damaged() if resume else None
        except (ConflictError, InvalidInputError, NotFoundError, UnavailableError) as error:
            raise UserError(f"checkpoint.object_storage: {error}") from None

    def begin(self, run_id: str) -> None:
        """Claim the storage for the run on this volume. If the storage is unreachable, the run begins anyway.

        Raises UserError when the storage has another run, or when another learner has continued this run.
        """
        try:
            self.require_claim(run_id)
            # One of the two files may be damaged.
            write_twice(self._file, {"volume": self.name})
        except UnavailableError as error:
            _log.warning("checkpoints are not uploaded for now: %s", error)
        except (ConflictError, InvalidInputError, NotFoundError) as error:
            raise UserError(f"checkpoint.object_storage: {error}") from None

    def require_claim(self, run_id: str) -> int:
        """The number of this volume's claim. Claims the storage if no run is in it. Raises as `check` does."""
        found = self.generations.newest_claim() if self._takes_over else None
        if found is not None and found[1].run_id == run_id:
            number, claim = found
            self._claim(number + 1, Claim(self.name, run_id, claim.lives, claim.versions))
        return self.check(run_id) or self._claim(1, Claim(self.name, run_id))

    def check(self, run_id: str) -> int:
        """The number of this volume's claim; 0 if no run is in the storage.

        Raises ConflictError when another run, or another volume of this run, has the claim.
        """
        found = self.generations.newest_claim()
        if found is None:
            return 0
        number, claim = found
        if claim.run_id != run_id:
            raise ConflictError(
                f"{self.generations.url} has run {claim.run_id}, {self.directory} has {run_id}; use another URL for "
                "each run"
            )
        if claim.volume != self.name:
            raise ConflictError(
                f"another learner has continued this run from {self.generations.url}; end that learner and move "
                f"{self.directory} away to continue from there, or use another URL to continue from this folder"
            )
        return number

    def _claim(self, number: int, claim: Claim) -> int:
        self.directory.mkdir(parents=True, exist_ok=True)
        write_twice(self._file, {"volume": self.name} | ({"takes_over": True} if self._takes_over else {}))
        self.generations.claim(number, claim)
        if self._takes_over:
            self._takes_over = False
            write_twice(self._file, {"volume": self.name})
        return number

    def _fill(self, resume: bool) -> CheckpointScan | None:
        """Restore the run into a volume without one. The file run.json comes last, so a killed restore begins again."""
        found = self.generations.newest_claim()
        if found is None:
            return None
        number, claim = found
        if not resume:
            raise ConflictError(
                f"{self.generations.url} has run {claim.run_id}; add --resume to continue it, or use another URL"
            )
        self.name = uuid.uuid4().hex
        partial, name, checkpoints = self._download_newest(claim)
        if name:
            _log.warning("the run is restored from %s, generation %s", self.generations.url, name)
        else:
            _log.warning("%s has no checkpoint yet: the run starts from its beginning", self.generations.url)
        run = read_either(partial / RUN_FILE) or {}
        # Older claims and generations have numbers of lives, which were also the numbers of the processes.
        process = unique_number(max(claim.lives, run.get("process", 0), run.get("lives", 0)) + _LIVES)
        versions = max(claim.versions, (read_either(partial / _MARK_FILE) or {}).get("mark", 0)) + _VERSIONS
        write_document(partial / _MARK_FILE, {"mark": versions})
        # From here on, the learner that lost the volume cannot upload, even if it is still alive.
        self._claim(number + 1, Claim(self.name, claim.run_id, process, versions))
        remove_both(partial / RUN_FILE)
        for path in sorted(partial.iterdir()):
            target = self.directory / path.name
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
            path.rename(target)
        sync_folder(self.directory)
        # The claims make the numbers of processes unique. As an epoch, the number also fences the learner's
        # publications.
        epoch = max(process, unique_number(run.get("epoch", 0)))
        own = {"run_id": claim.run_id, "process": process, "epoch": epoch}
        write_twice(self.directory / RUN_FILE, {"lives": 0, **run, **own})
        partial.rmdir()
        return checkpoints

    def _replace_damaged(self) -> CheckpointScan:
        """Restore a checkpoint from its copy if the newest is damaged, and the copy is newer than the whole ones.

        Renames damaged checkpoints to NAME.damaged. Raises an error of the storage if no checkpoint here is whole.
        """
        scan = find_newest(self.directory / "checkpoints")
        try:
            return self._restore_checkpoint(scan) if scan.damaged else scan
        except (InvalidInputError, NotFoundError, UnavailableError) as error:
            if scan.state is None:
                raise
            _log.warning("the run continues from its newest whole checkpoint, as no copy can be read: %s", error)
            return scan

    def _restore_checkpoint(self, scan: CheckpointScan) -> CheckpointScan:
        claim = self.generations.newest_claim()
        # A volume that has lost its claim is refused later.
        if claim is None or claim[1].volume != self.name:
            return scan
        partial, name, copy = self._download_newest(claim[1], "checkpoints/", scan.updates)
        if copy.state is not None:
            scan.set_damaged_aside()
            path = Path("checkpoints", f"{copy.updates:012d}")
            (partial / path).rename(self.directory / path)
            sync_folder(self.directory / "checkpoints")
            names = ", ".join(sorted({path.stem for path in scan.damaged}))
            _log.error(
                "damaged checkpoints: %s; checkpoint %d is restored from %s, generation %s",
                *(names, copy.updates, self.generations.url, name),
            )
            scan = copy
        shutil.rmtree(partial)
        return scan

    def _download_newest(self, claim: Claim, beginning: str = "", above: int = -1) -> tuple[Path, str, CheckpointScan]:
        """Download the newest whole generation with more updates than `above`, or its files with this beginning.

        Returns the folder, the generation's name, which is empty when there is none, and its checkpoint. Generations
        from before a reset of the environment do not count. Raises InvalidInputError when none is whole.
        """
        folder = self.directory / ".restored.partial"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            return folder, *self._download_whole(folder, claim, beginning, above)
        except OSError as error:
            raise UserError(
                f"--run-directory: {self.directory}: the run cannot be restored ({error.strerror})"
            ) from None

    def _download_whole(self, folder: Path, claim: Claim, beginning: str, above: int) -> tuple[str, CheckpointScan]:
        resets, damaged = self.resets, 0
        names = listed = self.generations.manifests()
        tried = 0
        # The attempts are bounded, because a learner that is still alive may upload faster than this one reads.
        while names and tried < _MOST_GENERATIONS:
            name, *names = names
            tried += 1
            try:
                manifest = self.generations.read(name)
                if manifest.resets < resets:
                    # An operator has dropped this generation and all earlier ones.
                    break
                resets = manifest.resets
                if manifest.run_id != claim.run_id:
                    raise InvalidInputError(f"{name}: expected run {claim.run_id}, got {manifest.run_id:.100}")
                if RUN_FILE not in manifest.files:
                    raise InvalidInputError(f"{name}: expected the files of a run, got {len(manifest.files)} others")
                if beginning and _updates(manifest.files) <= above:
                    return "", CheckpointScan()
                files = {path: parts for path, parts in manifest.files.items() if path.startswith(beginning)}
                download(self.generations, files, folder)
                require_whole_documents(folder)
                checkpoint = find_newest(folder / "checkpoints")
                for reason in checkpoint.damaged.values():
                    raise InvalidInputError(f"{name}: its checkpoint is damaged ({reason})")
                if checkpoint.state is not None and checkpoint.state.values.get("resets", resets) < resets:
                    raise InvalidInputError(f"{name}: it was uploaded while the environment was reset")
            except (NotFoundError, InvalidInputError) as error:
                shutil.rmtree(folder)
                folder.mkdir()
                if newer := [found for found in self.generations.manifests() if found > listed[0]]:
                    # A learner that is still alive has uploaded them, and has removed old ones meanwhile.
                    names = listed = [*newer, *names]
                    resets = self.resets
                    continue
                _log.error("generation %s is damaged, trying the previous one: %s", name, error)
                damaged += 1
            else:
                return name, checkpoint
        if damaged:
            raise InvalidInputError(f"{self.generations.url}: none of {damaged} generations is whole")
        return "", CheckpointScan()


def download(generations: Generations, files: Mapping[str, tuple[Part, ...]], folder: Path) -> None:
    """Write files of a generation below a folder, durably.

    Raises UserError when they do not fit on the disk, and the errors of `Generations.content`.
    """
    nbytes = sum(part.size for parts in files.values() for part in parts)
    if nbytes > (free := shutil.disk_usage(folder).free):
        raise UserError(f"--run-directory: the files to download have {nbytes} bytes, {free} are free")
    if len(files) > _MOST_FILES:
        raise InvalidInputError(f"expected at most {_MOST_FILES} files, got {len(files)}")
    for path, parts in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for data in generations.content(parts):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())


def require_whole_documents(folder: Path) -> None:
    """Raise InvalidInputError when a small file of a run in this folder is damaged, and has no whole copy."""
    for name in _DOCUMENTS:
        read_either(folder / name)


def _updates(files: Iterable[str]) -> int:
    """The updates of the checkpoint among a generation's files; -1 without one."""
    numbers = (path.split("/")[1] for path in files if path.startswith("checkpoints/"))
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def open_volume(config: CheckpointConfig, directory: Path) -> Volume | None:
    """The volume of a run with object storage; None without it. Raises UserError when the settings are unusable."""
    if not config.object_storage:
        return None
    store = ObjectStore(config.object_storage, config.object_storage_endpoint)
    return Volume(directory, Generations(store))
