"""Limits and keepalive settings that both ends of every connection share.

Both sides must set keepalive together. A server closes a connection with "too_many_pings" when its clients ping more
often than it allows.
"""

import ssl
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from actorq.domain.limits import MAX_MESSAGE_BYTES
from actorq.errors import DeniedError, UserError
from actorq.transport.security.handshake import shake_hands
from actorq.transport.security.identity import identity_uri, parse_identity

# gRPC sends messages of 256 KiB to 1 MiB fastest (docs/decisions/0003-threads-and-asyncio.md).
CHUNK_BYTES = 512 * 1024
UNARY_DEADLINE_S = 10.0

_KEEPALIVE_MS = 20_000

_SHARED = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS // 2),
    # The kernel of a stopped peer still acknowledges pings in TCP, so only this timeout detects the missing answer.
    # gRPC's default is a minute. With this value the connection to a silent peer ends after 30 s.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
CLIENT_OPTIONS = [
    *_SHARED,
    ("grpc.initial_reconnect_backoff_ms", 50),
    # This value also bounds the time to connect. With a shorter time, most of a thousand clients at once would fail.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Calls fail without an attempt during this wait, so the wait must not exceed the first waits of
    # `transport.reconnect`.
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True)
class ServerLimits:
    """Limits on the peers of a server (docs/decisions/0022-bounds-of-peers.md).

    connections: TCP connections, including those before the handshake; the file descriptor limit may lower it.
    streams_per_connection: open calls of one connection; its other calls wait at the client.
    open_calls: maximum number of open calls. calls_of_address: maximum from one address; None for half of open_calls.
    handshake_s: time limit of the TLS and HTTP/2 handshakes.
    idle_s: a connection is closed after this time without a call.
    """

    connections: int = 4096
    streams_per_connection: int = 1024
    open_calls: int = 4096
    calls_of_address: int | None = None
    handshake_s: float = 20.0
    idle_s: float = 300.0


# File descriptors reserved for files, pipes and outgoing connections.
_OWN_DESCRIPTORS = 256


def server_options(limits: ServerLimits) -> list[tuple[str, int]]:
    """The options of a gRPC server with these limits."""
    return [
        *_SHARED,
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
        # With so_reuseport, two servers could listen on one port, and connections would reach either of them.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", min(limits.connections, _spare_descriptors())),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.server_handshake_timeout_ms", round(limits.handshake_s * 1000)),
        ("grpc.max_connection_idle_ms", round(limits.idle_s * 1000)),
    ]


def _spare_descriptors() -> int:
    """File descriptors that connections may use. Enough others remain for files."""
    import resource  # This module is not available on Windows, and only servers need it.

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(most - _OWN_DESCRIPTORS, most // 2) if most >= 0 else 2**31 - 1


@dataclass(frozen=True)
class Certificates:
    """PEM texts for mutual TLS: the authority of all members, and this process's certificate and key.

    directory: the folder of the PEM files, or None.
    readable_key: whether other users may read the key.
    uris: the URIs among the certificate's alternative names; None if unknown.
    """

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    directory: Path | None = field(default=None, compare=False)
    readable_key: bool = field(default=False, compare=False)
    uris: tuple[str, ...] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, directory: Path | None, member: str, readable_key: bool = False) -> "Certificates | None":
        """The certificates of one member of a run; None without a folder.

        directory: the member's folder, as mounted in a pod, or a folder of `actorq certificates init` with a folder for
            each role.
        """
        if directory is None:
            return None
        own = directory / member
        return cls.load(own if own.is_dir() else directory, readable_key)

    @classmethod
    def load(cls, directory: Path, readable_key: bool = False) -> "Certificates":
        """Read and check ca.crt, tls.crt and tls.key, the names of Kubernetes secrets.

        Raises UserError when a file is missing or not PEM, when certificate and key do not match, when other users may
        read the key, or when the certificate is expired, not yet valid, or not signed by the authority.
        """
        try:
            read = cls._read(directory, readable_key)
            if not readable_key:
                _check_private(directory / "tls.key")
            # For a broken certificate, gRPC reports only that it cannot bind the port. Its own log has the reason.
            uris = shake_hands(*_files(directory))
            # A renewal may have replaced the files in the meantime. The checked files must be the files that were read.
            is_whole = cls._read(directory) == read
            return replace(read, uris=uris) if is_whole else cls.load(directory, readable_key)
        except ssl.SSLCertVerificationError as error:
            raise UserError(
                f"certificates: no peer would accept {directory / 'tls.crt'} with the authority in its ca.crt "
                f"({error.verify_message}); make new certificates, or set this machine's clock"
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
        """Raise UserError unless this certificate is for this role of this run. Peers make the same check."""
        if self.uris is None:
            return
        try:
            identity = parse_identity(self.uris)
        except DeniedError as error:
            raise UserError(f"certificates: {self.directory} cannot be used by the {role}: {error}") from None
        if (identity.role, identity.run) != (role, run):
            raise UserError(
                f"certificates: the {role} of run {run} needs a certificate with {identity_uri(role, run)}, but "
                f"{self.directory} has one of the {identity.role} of run {identity.run}; transport.run names the run"
            )

    def changed(self) -> bool:
        """Whether the folder now holds other files. False without a folder, or if reading fails."""
        try:
            return self.directory is not None and self._read(self.directory) != self
        except OSError:
            return False

    @classmethod
    def _read(cls, directory: Path, readable_key: bool = False) -> "Certificates":
        authority, certificate, key = (file.read_bytes() for file in _files(directory))
        return cls(authority, certificate, key, directory, readable_key)


def _check_private(key: Path) -> None:
    """Raise UserError when other users may read or replace the key. The group may read it, as in a pod."""
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UserError(
            f"certificates: other users may read or replace the key {key} (mode {mode:04o}): chmod 600 it, or give a "
            "service --transport.allow-readable-keys"
        )


def _files(directory: Path) -> tuple[Path, Path, Path]:
    return directory / "ca.crt", directory / "tls.crt", directory / "tls.key"
