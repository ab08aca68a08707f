"""Admits only calls whose certificate has an allowed role. Part of every server with TLS."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from actorq.errors import DeniedError
from actorq.transport.security.denied import DenyList
from actorq.transport.security.identity import DEFAULT_RUN, Identity, identity_of
from actorq.transport.security.roles import allowed_roles

# Seconds between checks of open streams against the deny list.
_PERIOD_S = 1.0
# Checks after which a stream ends although its peer reads nothing.
_MOST_CHECKS = 5
# Maximum number of certificates with a cached identity.
_MOST_REMEMBERED = 4096


@dataclass(frozen=True)
class Access:
    """The rules for calls to a server with TLS.

    run: the run that certificates must name.
    deny: file with the serial numbers of denied certificates.
    connection_age_s: maximum age of a connection. The next connection checks the certificates again.
    """

    run: str = DEFAULT_RUN
    deny: Path | None = None
    connection_age_s: float = 3600.0

    def server_options(self) -> list[tuple[str, int]]:
        """gRPC options for the age of connections. An open stream gets 1/12 of that age as a grace period."""
        age_ms = round(self.connection_age_s * 1e3)
        return [("grpc.max_connection_age_ms", age_ms), ("grpc.max_connection_age_grace_ms", max(1, age_ms // 12))]


@dataclass
class OpenStream:
    """An open stream with the identity of its certificate.

    writes: whether its handler has yielded a message that is not sent yet. gRPC cannot send a status after a write that
        was cancelled, so the client would wait for its own deadline.
    checks: number of checks since its certificate was denied.
    """

    identity: Identity
    writes: bool = False
    checks: int = 0

    def check(self) -> None:
        """Raises DeniedError if the certificate was denied during a write."""
        self.writes = False
        if self.checks:
            raise _denied(self.identity)


class Gate:
    """Refuses calls that their certificate does not allow. Runs on the event loop.

    When a certificate is denied later, its open streams end within `_PERIOD_S`: see `watch`.
    """

    def __init__(self, access: Access) -> None:
        """Raises UserError when the deny list is unusable."""
        self._run = access.run
        self._denied = DenyList(access.deny)
        self._identities: dict[tuple[bytes, ...], Identity] = {}
        self._streams: dict[asyncio.Task[Any], OpenStream] = {}

    def admit(self, path: str, streaming: bool, context: grpc.aio.ServicerContext) -> OpenStream:
        """Admit a call of the current task. Raises DeniedError when its certificate does not allow the call.

        A handler that yields messages sets `writes` of the result before each, and calls its `check` after each.
        """
        identity = self._identity(context.auth_context())
        if identity.run != self._run:
            raise DeniedError(
                f"the certificate is for run {identity.run}, expected run {self._run}, the service's transport.run"
            )
        if identity.serial in self._denied:
            raise _denied(identity)
        allowed = allowed_roles(path)
        if identity.role not in allowed:
            others = f"only {', '.join(sorted(allowed))}" if allowed else "nobody"
            service, _, rpc = path.rpartition("/")
            raise DeniedError(f"{identity.role} may not call {service.rpartition('.')[2]}.{rpc}: {others} may")
        task, stream = asyncio.current_task(), OpenStream(identity)
        if streaming and task is not None:
            self._streams[task] = stream
            # A `finally` would be too late, because a canceled call leaves its generator to the garbage collector.
            context.add_done_callback(lambda _: self._streams.pop(task, None))
        return stream

    def reason(self, error: BaseException) -> BaseException:
        """The reason why the current task's call ended with `error`. `watch` may have caused a cancellation."""
        task = asyncio.current_task()
        stream = self._streams.get(task) if task is not None and isinstance(error, asyncio.CancelledError) else None
        if task is None or stream is None or stream.identity.serial not in self._denied:
            return error
        task.uncancel()
        return _denied(stream.identity)

    async def watch(self) -> None:
        """End the streams of denied certificates. Runs as long as the server."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            for task, stream in list(self._streams.items()):
                if stream.identity.serial in self._denied:
                    stream.checks += 1
                    if not stream.writes or stream.checks > _MOST_CHECKS:
                        task.cancel()

    def _identity(self, authentication: dict[str, Any]) -> Identity:
        key = (*authentication.get("x509_pem_cert", ()), *authentication.get("peer_uri", ()))
        found = self._identities.get(key)
        if found is None:
            if len(self._identities) >= _MOST_REMEMBERED:
                self._identities.clear()
            found = identity_of(authentication)
            if found is None:
                raise DeniedError("the call came without a certificate")
            self._identities[key] = found
        return found


def _denied(identity: Identity) -> DeniedError:
    return DeniedError(f"the certificate with serial number {identity.serial:X} is on the deny list")
