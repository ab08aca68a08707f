"""Runs with a few checkpoints, and their copies in object storage."""

from pathlib import Path

import torch

from actorq.config.sections import CheckpointConfig
from actorq.statefiles.documents import write_document, write_twice
from learner_service.objectstorage import volume
from learner_service.objectstorage.uploader import Uploader
from learner_service.objectstorage.volume import Volume
from learner_service.run.identity import RunIdentity
from learner_service.training.checkpoint import Checkpoints, LearnerState
from tests.builders.identities import claimed

PATIENCE_S = 60.0


class Storage:
    """Settings, and the folder in which the service keeps the objects."""

    def __init__(self, settings: CheckpointConfig, folder: Path) -> None:
        self.settings = settings
        self.folder = folder

    def learner(self, directory: Path, updates: int, resume: bool = True, large: int = 0) -> RunIdentity:
        """A learner's life: prepares its volume, writes one checkpoint, and ends when it is uploaded."""
        opened, identity = self.begin(directory, resume)
        write_twice(directory / "environment.json", {"environment_id": "CartPole-v1"})
        write_document(directory / "published.json", {"mark": 100 + updates})
        save(directory, updates, large)
        self.upload(opened, identity)
        return identity

    def upload(self, opened: Volume, identity: RunIdentity) -> None:
        """Upload the newest checkpoint."""
        uploader = Uploader(opened, identity.run_id, self.settings, lambda: None)
        uploader.request()
        uploader.close(PATIENCE_S)
        assert (uploader.failures, uploader.conflict) == (0, None)

    def begin(self, directory: Path, resume: bool = True) -> tuple[Volume, RunIdentity]:
        opened = volume.open_volume(self.settings, directory)
        assert opened is not None
        opened.prepare(resume)
        identity = claimed(directory, resume)
        opened.begin(identity.run_id)
        return opened, identity

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.folder / folder).iterdir())


def save(directory: Path, updates: int, large: int = 0, resets: int = 0) -> None:
    tensors = {"weights": torch.full((4 + large,), float(updates))}
    state = LearnerState(updates, tensors, {"version": updates, "resets": resets})
    Checkpoints(directory / "checkpoints", keep=3).save(state)


def newest(directory: Path) -> LearnerState:
    state = Checkpoints(directory / "checkpoints", keep=3).load_newest()
    assert state is not None
    return state
