"""Downloads files of the newest generation of another run. Nothing in the storage changes."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from actorq.errors import InvalidInputError, NotFoundError, UnavailableError, UserError
from learner_service.objectstorage.generations import Generations
from learner_service.objectstorage.store import ObjectStore
from learner_service.objectstorage.volume import download

_log = logging.getLogger(__name__)

_SETTING = "init_from"
_FOLDER = "file://"


def download_newest(url: str, endpoint: str, folder: Path, beginnings: Sequence[str]) -> None:
    """Download those files of the newest whole generation with a checkpoint that begin with one of these texts.

    endpoint: of an S3-compatible service; empty for AWS. Raises UserError when there is no whole generation, and when
    the storage cannot be read.
    """
    if url.startswith(_FOLDER) and not Path(url.removeprefix(_FOLDER)).is_dir():
        # The store would make the folder.
        raise UserError(f"{_SETTING}: {url} does not exist; give the checkpoint.object_storage of a run")
    try:
        generations = Generations(ObjectStore(url, endpoint, _SETTING))
        damaged = 0
        # A learner that still uploads removes old generations meanwhile. The newest ones stay.
        for name in generations.manifests():
            try:
                files = generations.read(name).files
                if any(path.startswith("checkpoints/") for path in files):
                    chosen = {path: parts for path, parts in files.items() if path.startswith(tuple(beginnings))}
                    download(generations, chosen, folder)
                    _log.info("%s: generation %s of %s is downloaded", _SETTING, name, url)
                    return
            except (NotFoundError, InvalidInputError) as error:
                _log.error("%s: generation %s is damaged, trying the previous one: %s", _SETTING, name, error)
                damaged += 1
                shutil.rmtree(folder)
                folder.mkdir()
    except UnavailableError as error:
        raise UserError(f"{_SETTING}: {error}") from None
    if damaged:
        raise UserError(f"{_SETTING}: none of the {damaged} generations in {url} is whole; give another run")
    raise UserError(f"{_SETTING}: expected copies of a run with a checkpoint, got {url}, which has none yet")
