"""Limits and keepalive that both ends of every connection share.

Keepalive has to be set on both sides together: a server that allows fewer pings than its clients send closes the
connection with "too_many_pings".
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from actorq.errors import UserError
from actorq.transport.handshake import shake_hands

# gRPC moves 256 KiB to 1 MiB messages fastest (docs/decisions/0003-threads-and-asyncio.md).
CHUNK_BYTES = 512 * 1024
MAX_SEGMENT_BYTES = 1024 * 1024
# A segment's or chunk's message with its field headers; anything larger is refused by the receiving end.
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
# What a receiver assembles from chunks at most: ten times the FP32 tensors of a 4096 x 3 policy.
MAX_BLOB_BYTES = 2 * 1024**3
UNARY_DEADLINE_S = 10.0

_KEEPALIVE_MS = 20_000

_SHARED = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CLIENT_OPTIONS = [
    *_SHARED,
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Which is also how long connecting may take: of a thousand clients that come at once most are not served in less.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
SERVER_OPTIONS = [
    *_SHARED,
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    # With it two servers could listen on one port and share its connections by chance.
    ("grpc.so_reuseport", 0),
]


# Who has certificates of its own; evaluators are actors, and commands and Python clients are clients.
MEMBERS = ("learner", "quantizer", "actor", "meter", "client")


@dataclass(frozen=True)
class Certificates:
    """PEM texts for mutual TLS: the authority that signs everyone, and one's own certificate and key.

    directory: where they were read, None for those that were not.
    """

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    directory: Path | None = field(default=None, compare=False)

    @classmethod
    def of(cls, directory: Path | None, member: str) -> "Certificates | None":
        """Those of one member of a run, None without a folder.

        The folder is the member's own, as a pod gets it, or that of all members, as `actorq certificates init` makes
        it, with a folder in it for each of `MEMBERS`.
        """
        if directory is None:
            return None
        own = directory / member
        return cls.load(own if own.is_dir() else directory)

    @classmethod
    def load(cls, directory: Path) -> "Certificates":
        """Read ca.crt, tls.crt and tls.key, the names that Kubernetes secrets have, and check that they can be used.

        Raises UserError when they cannot: files are missing or no PEM, belong to different certificates, or the
        certificate has expired, is not valid yet or is not of that authority.
        """
        try:
            read = cls._read(directory)
            # gRPC tells only its own log of a broken certificate, and everyone else of a port that it cannot bind.
            shake_hands(*_files(directory))
            # Whoever renews them may have done so meanwhile: what was checked must be what was read.
            return read if cls._read(directory) == read else cls.load(directory)
        except ssl.SSLCertVerificationError as error:
            raise UserError(
                f"certificates: nobody would accept {directory / 'tls.crt'} with the authority in ca.crt beside it "
                f"({error.verify_message}); make new ones, or set this machine's clock"
            ) from None
        except ssl.SSLError as error:
            raise UserError(
                f"certificates: {directory} must hold ca.crt, tls.crt and the key of tls.crt without a password in "
                f"tls.key, all as PEM, but they cannot be used ({error.reason or error})"
            ) from None
        except OSError as error:
            raise UserError(
                f"certificates: {directory} must hold ca.crt, tls.crt and tls.key, but {error.filename} cannot be "
                f"read ({error.strerror})"
            ) from None

    def changed(self) -> bool:
        """Whether the folder holds others by now; False for those that were not read, or when they cannot be."""
        try:
            return self.directory is not None and self._read(self.directory) != self
        except OSError:
            return False

    @classmethod
    def _read(cls, directory: Path) -> "Certificates":
        authority, certificate, key = (file.read_bytes() for file in _files(directory))
        return cls(authority, certificate, key, directory)


def _files(directory: Path) -> tuple[Path, Path, Path]:
    return directory / "ca.crt", directory / "tls.crt", directory / "tls.key"
