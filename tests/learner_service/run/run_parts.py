"""Runs without a network, and their open streams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Role
from learner_service.actors.credits import ActorStream
from learner_service.run.run import Run
from tests.learner_service.learner_parts import SPEC, config


@asynccontextmanager
async def a_run(directory: Path, settings: RunConfig | None = None, resume: bool = False) -> AsyncIterator[Run]:
    """A run whose quantizer is unreachable."""
    with QuantizerClient("127.0.0.1:1") as client:
        run = Run(settings or config(), directory, client, resume)
        try:
            yield run
        finally:
            await run.close()


async def opened(run: Run, name: str = "a", role: Role = "actor", spec: EnvironmentSpec = SPEC) -> ActorStream:
    """The stream of an actor or evaluator that has joined."""
    run.connections.join(name, 1, role)
    return await run.connections.open_stream(name, 1, spec)
