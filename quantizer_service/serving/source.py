"""Interfaces of the objects that serve a run's policies: a quantizer, a relay, or a relay's upstream."""

import asyncio
from typing import Protocol

from actorq.domain.policy import PolicyDescriptor, RetainedPolicy
from quantizer_service.serving.newest_policies import Subscription
from quantizer_service.serving.policy_stream import EncodedPolicy
from quantizer_service.serving.quantizer import Quantizer


class PolicySource(Protocol):
    """Finds policies. Raises the errors of `actorq.errors`."""

    async def get(self, scheme: str, version: int = 0) -> EncodedPolicy:
        """A retained policy; version 0 for the newest."""
        ...

    async def describe(self, scheme: str, version: int = 0) -> PolicyDescriptor:
        """The descriptor of a retained policy."""
        ...

    async def list_versions(self, page_size: int, page_token: str) -> tuple[tuple[RetainedPolicy, ...], str]:
        """A page of the retained versions, newest first, and the token of the next page."""
        ...

    async def lease(self, version: int, seconds: float) -> float:
        """Retain a version until its next evaluation, for at most `seconds`. Returns the granted seconds."""
        ...


class PolicyServer(PolicySource, Protocol):
    """A PolicySource that can be watched and published to. `draining` is set when it accepts no new work."""

    draining: asyncio.Event

    def intake(self) -> Quantizer:
        """The quantizer that accepts checkpoints. A relay raises ConflictError."""
        ...

    async def subscribe(self, scheme: str, after_version: int) -> Subscription:
        """Watch a scheme for versions above `after_version`."""
        ...
