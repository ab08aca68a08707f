"""Files of the replay: mapped files, values in two copies, JSON with checksums."""

import contextlib
import errno
import io
import json
import logging
import mmap
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorq.errors import ConflictError
from actorq.statefiles.crc import crc32
from actorq.statefiles.files import read_file, replace_file

PAGE_BYTES = 4096

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Start value of every checksum, so that zeros are not a valid value.
_SEED = 0x41515250
_CRC_BYTES = 4
# Above this size, one system call costs less than the page faults of flushed pages in the mapping.
_MANY_BYTES = 16 * PAGE_BYTES
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_log = logging.getLogger(__name__)


def this_boot() -> str:
    """The kernel's identifier of this boot; empty when unknown."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""


@dataclass(frozen=True)
class Machine:
    """The functions of the machine that the replay uses. Tests pass their own.

    boot_id: changes when the machine loses its page cache; empty when unknown.
    allocate: allocates disk space for (descriptor, offset, bytes), or raises OSError.
    free_bytes: bytes that this process may still write to the disk of a folder.
    read_only: files are opened for reading; changes stay in this process's memory.
    """

    boot_id: str
    allocate: Callable[[int, int, int], None] = os.posix_fallocate
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    read_only: bool = False


class MappedFile:
    """`nbytes` of a file, mapped for reading and writing and shared with the page cache.

    A new file has zeros and uses no disk space. A write to a page without disk space would end the process with SIGBUS,
    so call `allocate` before the first write to a page.
    """

    def __init__(self, path: Path, nbytes: int, create: bool, machine: Machine) -> None:
        """Create or open the file. Missing bytes become zeros. Raises ConflictError for a missing file."""
        flags = (os.O_RDONLY if machine.read_only else os.O_RDWR) | (os.O_CREAT | os.O_TRUNC if create else 0)
        try:
            # Unlike a descriptor, the mapping is closed with its last reference.
            self._file = io.FileIO(path, "r", opener=lambda name, _: os.open(name, flags | os.O_CLOEXEC, 0o644))
        except FileNotFoundError:
            raise ConflictError(
                f"replay: {path} is missing; restore it, or remove {path.parent} to start empty"
            ) from None
        self.name = path.stem
        self._machine = machine
        self._allocated = 0
        self._descriptor = self._file.fileno()
        self.found_bytes = os.fstat(self._descriptor).st_size
        """Size of the file in bytes before it was opened."""
        if not create and self.found_bytes != nbytes:
            _log.warning("replay: %s is damaged: expected %d bytes, got %d", path, nbytes, self.found_bytes)
        self.map = self._mapping(nbytes)

    def __len__(self) -> int:
        return len(self.map)

    def allocate(self, stop: int) -> None:
        """Allocate disk space for the bytes before `stop`. On an OSError, space that was already allocated stays."""
        if self._machine.read_only or stop <= self._allocated:
            return
        try:
            self._machine.allocate(self._descriptor, self._allocated, stop - self._allocated)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            # On file systems without fallocate, writing a byte back allocates its block.
            for offset in range(self._allocated, stop, PAGE_BYTES):
                os.pwrite(self._descriptor, os.pread(self._descriptor, 1, offset), offset)
        self._allocated = stop

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes at `offset`, where disk space was allocated. The mapping shows them at once."""
        written = 0
        if len(data) >= _MANY_BYTES:
            # The mapping receives the bytes that the kernel refuses.
            with contextlib.suppress(OSError):
                written = os.pwrite(self._descriptor, data, offset)
        if written < len(data):
            self.map[offset + written : offset + len(data)] = data[written:]

    def sync(self) -> None:
        """Block until everything written before the call is on the disk. Releases the GIL meanwhile."""
        # `mmap.flush` would hold the GIL. Linux finds the mapping's dirty pages itself.
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file. The mapping stays until its last array is gone."""
        self._file.close()

    def _mapping(self, nbytes: int) -> mmap.mmap:
        if not self._machine.read_only:
            os.ftruncate(self._descriptor, nbytes)
            return mmap.mmap(self._descriptor, nbytes)
        if self.found_bytes >= nbytes:
            return mmap.mmap(self._descriptor, nbytes, access=mmap.ACCESS_COPY)
        # A mapping cannot be read beyond the end of its file.
        memory = mmap.mmap(-1, nbytes)
        with open(self._descriptor, "rb", closefd=False) as file:
            file.readinto(memory)
        return memory


def sealed(body: bytes) -> bytes:
    """The body and its CRC-32."""
    return body + crc32(body, _SEED).to_bytes(_CRC_BYTES, "little")


def unsealed(mapped: mmap.mmap, at: int, layout: struct.Struct) -> tuple[Any, ...] | None:
    """The values of the `sealed` body at this place; None when its checksum is wrong."""
    data = mapped[at : at + layout.size + _CRC_BYTES]
    body = data[: layout.size]
    return layout.unpack(body) if data == sealed(body) else None


class PairedSlot:
    """A few numbers in two copies on two pages of a mapped file, with checksums. The newer whole copy is used.

    A kill during `write` leaves the other copy, with the previous value.
    """

    def __init__(self, mapped: mmap.mmap, offset: int, layout: str) -> None:
        """offset: place of a copy in the first and in the second page. layout: as in `struct`."""
        self._map = mapped
        self._offsets = (offset, PAGE_BYTES + offset)
        self._body = struct.Struct("<Q" + layout)
        copies = (unsealed(mapped, place, self._body) for place in self._offsets)
        whole = [(copy, number) for number, copy in enumerate(copies) if copy is not None]
        newest, self._newest = max(whole, default=(None, 1))
        self._generation: int = newest[0] if newest else 0
        self.value: tuple[Any, ...] | None = newest[1:] if newest else None
        """The last written value; None when no copy is whole."""
        self.copies = len(whole)
        """Number of whole copies that were found, 0 to 2."""

    def write(self, *value: Any) -> None:
        """Write the value over the older copy."""
        self._generation += 1
        self._newest = 1 - self._newest
        data, offset = sealed(self._body.pack(self._generation, *value)), self._offsets[self._newest]
        self._map[offset : offset + len(data)] = data
        self.value = value


def write_checked(path: Path, values: Any) -> None:
    """Replace the file at `path` with JSON `values` and their checksum, and wait until it is on the disk."""
    text = json.dumps(values)
    replace_file(path, json.dumps({"crc32": crc32(text.encode()), "values": values}), sync=True)


def read_checked(path: Path) -> Any:
    """The values that `write_checked` wrote; None without a file. Raises ValueError for damage, or UnreadableError."""
    try:
        found = json.loads(read_file(path))
        crc, values = found["crc32"], found["values"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    if crc32(json.dumps(values).encode()) != crc:
        raise ValueError(f"{path} is damaged: its checksum is wrong")
    return values
