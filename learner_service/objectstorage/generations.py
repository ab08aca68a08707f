"""The layout of a run in object storage: claims of volumes, generations of files, and their content.

claims/NUMBER.json: the volume that may upload since this claim. A volume has one claim; a higher claim fences it.
manifests/CLAIM-NUMBER.json: a generation: its files, as lists of parts. Written after its parts, never changed.
objects/SHA256: a part of a file, named after its content.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from actorq.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from actorq.statefiles.documents import decode_document, encode_document
from learner_service.objectstorage.store import ObjectStore

_log = logging.getLogger(__name__)

PART_BYTES = 8 * 2**20
_MOST_MANIFEST_BYTES = 32 * 2**20
_MOST_CLAIM_BYTES = 4096
_FORMAT = 1
# Relative paths of a run's files, without hidden files and files outside the folder.
_PATH = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/){0,3}[A-Za-z0-9_-][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Claim:
    """The right of a volume to upload a run.

    volume: random name of the volume.
    lives, versions: highest numbers of learner processes and policy versions that may have existed before this volume
        had the run. The volume's own numbers are higher.
    """

    volume: str
    run_id: str
    lives: int = 0
    versions: int = 0


@dataclass(frozen=True)
class Part:
    """A part of a file, of at most `PART_BYTES`."""

    sha256: str
    size: int

    @property
    def name(self) -> str:
        """The name of its object."""
        return f"objects/{self.sha256}"


@dataclass(frozen=True)
class Manifest:
    """A generation: the parts of each file by its path in the run's folder, and the number of environment resets before
    it.
    """

    run_id: str
    files: Mapping[str, tuple[Part, ...]]
    resets: int = 0

    @property
    def parts(self) -> set[Part]:
        """All parts."""
        return {part for parts in self.files.values() for part in parts}


class Generations:
    """The claims and generations at one URL."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.url = store.url
        self.left_some = False
        """Whether the storage refused to remove some objects."""

    def newest_claim(self) -> tuple[int, Claim] | None:
        """The highest claim with its number; None when no run was uploaded here."""
        numbers = [_number(name) for name in self._store.names("claims")]
        if not numbers:
            return None
        name = f"claims/{(number := max(numbers)):08d}.json"
        values = decode_document(name, self._store.get(name, _MOST_CLAIM_BYTES))
        try:
            claim = Claim(**values)
        except TypeError as error:
            raise InvalidInputError(f"{self.url}/{name}: expected a claim, got {error}") from None
        return number, claim

    def claim(self, number: int, claim: Claim) -> None:
        """Claim a run for a volume. Raises ConflictError when another volume was faster."""
        if not self._store.create(f"claims/{number:08d}.json", encode_document(asdict(claim))):
            raise ConflictError(
                f"{self.url}: another learner has just claimed the run; two learners must not share a URL"
            )

    def manifests(self) -> list[str]:
        """The names of the generations, the newest first."""
        return self._store.names("manifests")[::-1]

    def read(self, name: str) -> Manifest:
        """A generation. Raises NotFoundError or InvalidInputError when its manifest is missing or damaged."""
        values = decode_document(name, self._store.get(f"manifests/{name}", _MOST_MANIFEST_BYTES))
        try:
            if values["format"] != _FORMAT:
                raise InvalidInputError(f"{name}: expected format {_FORMAT}, got {values['format']!r:.20}")
            files = {_checked_path(path): tuple(map(_part, parts)) for path, parts in values["files"].items()}
            return Manifest(str(values["run_id"]), files, int(values.get("resets", 0)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"{name}: expected a manifest, got {error!r:.100}") from None

    def write(self, name: str, manifest: Manifest) -> None:
        """Write a generation. All its parts must be stored."""
        files = {path: [(part.sha256, part.size) for part in parts] for path, parts in manifest.files.items()}
        values = {"format": _FORMAT, "run_id": manifest.run_id, "resets": manifest.resets, "files": files}
        self._store.put(f"manifests/{name}", encode_document(values))

    def put(self, data: bytes, stored: set[Part]) -> Part:
        """Store a part of a file, unless `stored` has it; adds it to `stored`."""
        part = Part(hashlib.sha256(data).hexdigest(), len(data))
        if part not in stored:
            self._store.put(part.name, data)
            stored.add(part)
        return part

    def content(self, parts: tuple[Part, ...]) -> Iterator[bytes]:
        """The parts of a file. Raises NotFoundError or InvalidInputError for a missing, truncated or changed part."""
        for part in parts:
            data = self._store.get(part.name, part.size)
            if (got := hashlib.sha256(data).hexdigest()) != part.sha256:
                raise InvalidInputError(f"{part.name}: expected {part.size} bytes, got {len(data)} with sha256 {got}")
            yield data

    def keep_newest(self, keep: int) -> list[tuple[str, Manifest]]:
        """The newest `keep` generations, oldest first. A damaged generation counts as one without files.

        Removes the other generations, and objects that belong to none. Only the volume with the newest claim may call
        it.
        """
        names = self.manifests()
        newest: list[tuple[str, Manifest]] = []
        for name in reversed(names[:keep]):
            try:
                newest.append((name, self.read(name)))
            except (NotFoundError, InvalidInputError) as error:
                _log.warning("%s: %s", self.url, error)
                newest.append((name, Manifest("", {})))
        needed = {part.name for _, manifest in newest for part in manifest.parts}
        self.remove(names[keep:], {f"objects/{name}" for name in self._store.names("objects")} - needed)
        return newest

    def present(self, parts: set[Part]) -> set[Part]:
        """The parts that are still stored. A lifecycle rule of the bucket may have removed the others."""
        names = set(self._store.names("objects"))
        return {part for part in parts if part.sha256 in names}

    def remove(self, generations: Iterable[str], objects: Iterable[str]) -> None:
        """Remove generations, then the objects that no other generation has.

        A refusal is logged; `keep_newest` tries again.
        """
        try:
            self._store.delete(f"manifests/{name}" for name in generations)
            self._store.delete(objects)
            self.left_some = False
        except UnavailableError as error:
            if not self.left_some:
                _log.warning("old copies stay in object storage: %s", error)
            self.left_some = True


def manifest_name(claim: int, number: int) -> str:
    """The name of generation `number`, by the volume with this claim."""
    return f"{claim:08d}-{number:012d}.json"


def number_of(name: str) -> int:
    """The number of a generation; 0 for a foreign name."""
    return _number(name.partition("-")[2])


def _number(name: str) -> int:
    stem = name.removesuffix(".json")
    return int(stem) if stem.isdecimal() else 0


def _checked_path(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise InvalidInputError(f"expected a relative path of a file, got {path!r:.100}")
    return path


def _part(values: Any) -> Part:
    sha256, size = values
    if not (isinstance(sha256, str) and _SHA256.fullmatch(sha256) and isinstance(size, int)):
        raise InvalidInputError(f"expected sha256 and size of a part, got {values!r:.100}")
    if not 0 <= size <= PART_BYTES:
        raise InvalidInputError(f"expected a part of at most {PART_BYTES} bytes, got {size}")
    return Part(sha256, size)
