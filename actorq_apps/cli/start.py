"""Starts `actorq train`. Services import their modules while this process imports its own."""

from collections.abc import Sequence

from actorq.start import fast_imports
from actorq_apps.local.forkserver import fork_servers


def run(arguments: Sequence[str]) -> int:
    """Train, or print the help. Returns the exit code."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        # Imported here, because the fork servers must start before this slow import.
        from actorq_apps.cli import train

        return train.run(arguments)
    with fork_servers() as servers:
        with fast_imports():
            from actorq_apps.meter.node_meter import RunStart

            begun = RunStart.now()
            from actorq_apps.cli import train
        return train.run(arguments, servers, begun)
