"""Identities of runs, as a learner claims them when it begins."""

from pathlib import Path

from learner_service.run.identity import RunIdentity


def claimed(directory: Path, resume: bool) -> RunIdentity:
    """The identity of the learner that has just claimed this directory."""
    identity = RunIdentity.read(directory, resume)
    identity.write()
    return identity
