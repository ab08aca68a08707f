"""Limits and keepalive that both ends of every connection share.

Keepalive has to be set on both sides together: a server that allows fewer pings than its clients send closes the
connection with "too_many_pings".
"""

import os
import ssl
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from actorq.errors import DeniedError, UserError
from actorq.transport.security.handshake import shake_hands
from actorq.transport.security.identity import identity_uri, parse_identity

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
    # A peer that is stopped still has a kernel, which takes the ping. Its missing answer counts by this timeout, which
    # is a minute by default: with it, a silent peer is gone 30 s after its last word.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CLIENT_OPTIONS = [
    *_SHARED,
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Which is also how long connecting may take: of a thousand clients that come at once most are not served in less.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Until it is over, calls fail without an attempt: it is no longer than the first waits of `transport.reconnect`.
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True)
class ServerLimits:
    """How many peers a server takes, and how long it waits for them (docs/decisions/0022-bounds-of-peers.md).

    connections: TCP connections, also before their handshake; the file descriptors of the process may allow fewer.
    streams_per_connection: calls that one connection has open; its other calls wait at the client.
    open_calls: calls that are open at a time, half of them at most from one address.
    handshake_s: what TLS and HTTP/2 may take to begin.
    idle_s: after which a connection without a call is closed.
    """

    connections: int = 4096
    streams_per_connection: int = 1024
    open_calls: int = 4096
    handshake_s: float = 20.0
    idle_s: float = 300.0


# Left to files, pipes and the connections that this process opens itself.
_OWN_DESCRIPTORS = 256


def server_options(limits: ServerLimits) -> list[tuple[str, int]]:
    """The options of a gRPC server with these limits."""
    return [
        *_SHARED,
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
        # With it two servers could listen on one port and share its connections by chance.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", min(limits.connections, _spare_descriptors())),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.server_handshake_timeout_ms", round(limits.handshake_s * 1000)),
        ("grpc.max_connection_idle_ms", round(limits.idle_s * 1000)),
    ]


def _spare_descriptors() -> int:
    """File descriptors that connections may take without keeping the process from its files."""
    if os.name != "posix":
        return 2**31 - 1
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(most - _OWN_DESCRIPTORS, most // 2) if most >= 0 else 2**31 - 1


@dataclass(frozen=True)
class Certificates:
    """PEM texts for mutual TLS: the authority that signs everyone, and one's own certificate and key.

    directory: where they were read, None for those that were not.
    readable_key: whether others may read the key.
    uris: among the certificate's alternative names; None where they are not known.
    """

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    directory: Path | None = field(default=None, compare=False)
    readable_key: bool = field(default=False, compare=False)
    uris: tuple[str, ...] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, directory: Path | None, member: str, readable_key: bool = False) -> "Certificates | None":
        """Those of one member of a run, None without a folder.

        directory: the member's own folder, as a pod gets it, or a folder that has one for each role, as `actorq
        certificates init` makes it.
        member: the role, such as "learner".
        readable_key: accept a key that others may read.
        """
        if directory is None:
            return None
        own = directory / member
        return cls.load(own if own.is_dir() else directory, readable_key)

    @classmethod
    def load(cls, directory: Path, readable_key: bool = False) -> "Certificates":
        """Read ca.crt, tls.crt and tls.key, the names that Kubernetes secrets have, and check that they can be used.

        Raises UserError when they cannot: files are missing or no PEM, belong to different certificates, others may
        read the key, or the certificate has expired, is not valid yet or is not of that authority.
        """
        try:
            read = cls._read(directory, readable_key)
            if not readable_key:
                _check_private(directory / "tls.key")
            # gRPC tells only its own log of a broken certificate, and everyone else of a port that it cannot bind.
            uris = shake_hands(*_files(directory))
            # Whoever renews them may have done so meanwhile: what was checked must be what was read.
            is_whole = cls._read(directory) == read
            return replace(read, uris=uris) if is_whole else cls.load(directory, readable_key)
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

    def require_role(self, role: str, run: str) -> None:
        """Raise UserError unless this certificate is for a role of a run, as peers will want it."""
        if self.uris is None:
            return
        try:
            identity = parse_identity(self.uris)
        except DeniedError as error:
            raise UserError(f"certificates: {self.directory} cannot be used by the {role}: {error}") from None
        if (identity.role, identity.run) != (role, run):
            raise UserError(
                f"certificates: the {role} of run {run} needs a certificate with {identity_uri(role, run)}, but "
                f"{self.directory} has that of the {identity.role} of run {identity.run}; transport.run names the run"
            )

    def changed(self) -> bool:
        """Whether the folder holds others by now; False for those that were not read, or when they cannot be."""
        try:
            return self.directory is not None and self._read(self.directory) != self
        except OSError:
            return False

    @classmethod
    def _read(cls, directory: Path, readable_key: bool = False) -> "Certificates":
        authority, certificate, key = (file.read_bytes() for file in _files(directory))
        return cls(authority, certificate, key, directory, readable_key)


def _check_private(key: Path) -> None:
    """Raise UserError when the key is open to others. The group may read it: a pod's secrets belong to its group."""
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UserError(
            f"certificates: other users may read or replace the key {key} (mode {mode:04o}): chmod 600 it, or give a "
            "service --transport.allow-readable-keys"
        )


def _files(directory: Path) -> tuple[Path, Path, Path]:
    return directory / "ca.crt", directory / "tls.crt", directory / "tls.key"
