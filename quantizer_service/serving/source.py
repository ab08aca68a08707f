"""What serves the policies of a run: a quantizer, a relay, or the one above a relay."""

import asyncio
from typing import Protocol

from actorq.domain.policy import PolicyDescriptor, RetainedPolicy
from quantizer_service.serving.newest_policies import Subscription
from quantizer_service.serving.policy_stream import EncodedPolicy
from quantizer_service.serving.quantizer import Quantizer


class PolicySource(Protocol):
    """Finds policies; errors are those of `actorq.errors`."""

    async def get(self, scheme: str, version: int = 0) -> EncodedPolicy:
        """A retained policy, version 0 for the newest."""
        ...

    async def describe(self, scheme: str, version: int = 0) -> PolicyDescriptor:
        """All of a retained policy but its bytes."""
        ...

    async def list_versions(self, page_size: int, page_token: str) -> tuple[tuple[RetainedPolicy, ...], str]:
        """A page of the retained versions, newest first, and the token of the next page."""
        ...

    async def lease(self, version: int, seconds: float) -> float:
        """Retain a version until its next evaluation, for so many seconds at most; returns the seconds granted."""
        ...


class PolicyServer(PolicySource, Protocol):
    """A PolicySource that can be watched and published to. `draining` is set when no new work is taken any more."""

    draining: asyncio.Event

    def intake(self) -> Quantizer:
        """What takes checkpoints; raises ConflictError where nothing can be published."""
        ...

    async def subscribe(self, scheme: str, after_version: int) -> Subscription:
        """Watch the newest policy of a scheme from above a version."""
        ...
