"""The deny list: serial numbers of valid certificates that services refuse."""

import logging
import os
import re
from pathlib import Path

from actorq.errors import UserError

_log = logging.getLogger(__name__)

# Protects against a file that is too large by mistake.
_MOST_BYTES = 1024 * 1024
# In the form that `openssl x509 -noout -serial` prints, or with colons.
_SERIAL = re.compile(r"(?:serial=)?([0-9A-F]{1,2}(?::?[0-9A-F]{1,2}){0,31})", re.ASCII | re.IGNORECASE)

# Identifies the content of the file: modification time, size and inode. After a failed
# system call, the error number. None without a file.
_Stamp = tuple[int, int, int] | int | None


class DenyList:
    """Follows a file with one serial number in hexadecimal per line; # begins a comment.

    Without a file, nothing is denied; the file may appear later. Each query checks the file, which costs one system
    call. If the list becomes unreadable or disappears, one line is logged and the previous list stays in use. An empty
    file denies nothing.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises UserError when the file exists but is unusable."""
        self._path = path
        self._stamp = self._read_stamp()
        self._serials = self._read() if self._stamp is not None else frozenset[int]()

    def __contains__(self, serial: int) -> bool:
        """Whether the file denies a certificate now."""
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._serials = self._read()
                _log.info("%s: %d certificates are denied", self._path, len(self._serials))
            except UserError as error:
                _log.error("%s; the previous list stays in use", error)
        return serial in self._serials

    def _read_stamp(self) -> _Stamp:
        try:
            status = os.stat(self._path) if self._path else None
        except FileNotFoundError:
            return None
        except OSError as error:
            # The file may exist, and reading it will report the error.
            return error.errno or -1
        return (status.st_mtime_ns, status.st_size, status.st_ino) if status else None

    def _read(self) -> frozenset[int]:
        assert self._path
        try:
            with self._path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise UserError(f"deny list: {self._path} cannot be read ({error.strerror})") from None
        if len(data) > _MOST_BYTES:
            raise UserError(f"deny list: {self._path} must have at most {_MOST_BYTES} bytes")
        serials = set()
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            text = line.partition("#")[0].strip()
            found = _SERIAL.fullmatch(text)
            if found:
                serials.add(int(found[1].replace(":", ""), 16))
            elif text:
                raise UserError(
                    f"deny list: line {number} of {self._path} must be a serial number in hexadecimal, as "
                    f"`openssl x509 -noout -serial` prints it, got {text[:80]!r}"
                )
        return frozenset(serials)
