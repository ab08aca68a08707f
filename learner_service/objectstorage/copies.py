"""Opens the source of a new run: another run's folder, or its copies in object storage. Does not change them."""

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from actorq.config.run_config import RunConfig
from actorq.errors import InvalidInputError, NotFoundError, UnavailableError, UserError
from learner_service.objectstorage.generations import Generations
from learner_service.objectstorage.store import ObjectStore
from learner_service.objectstorage.volume import download
from learner_service.training.source import CHECKPOINTS, Source, read_source

_log = logging.getLogger(__name__)

_SETTING = "init_from"
_FOLDER = "file://"
_DOWNLOADED = ".source-"


@contextmanager
def opened_source(config: RunConfig, work: Path, with_rows: bool) -> Iterator[Source]:
    """The checkpoint that `init_from` names: the newest whole checkpoint of a run, or exactly the named one.

    work: folder for downloads, which stay as long as the context. with_rows: also download the rows of the replay.
    Raises UserError when there is no whole checkpoint, or when a later version of ActorQ wrote it.
    """
    given = config.init_from
    assert given is not None
    if "://" not in given:
        yield read_source(Path(given))
        return
    for leftover in work.glob(f"{_DOWNLOADED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with TemporaryDirectory(prefix=_DOWNLOADED, dir=work) as name:
        folder = Path(name)
        replay = ("replay/",) if with_rows else ("replay/meta",)
        names = (f"{CHECKPOINTS}/", "environment.", *(replay if config.init_replay else ()))
        try:
            _download_newest(given, config.checkpoint.object_storage_endpoint, folder, names)
        except OSError as error:
            raise UserError(f"{_SETTING}: {given} cannot be downloaded: {error.strerror or error}") from None
        yield read_source(folder)


def _download_newest(url: str, endpoint: str, folder: Path, beginnings: Sequence[str]) -> None:
    """Download the newest whole generation with a checkpoint: those files whose names begin with one of `beginnings`.

    endpoint: of an S3-compatible service; empty for AWS.
    Raises UserError when there is no whole generation, and when the storage cannot be read.
    """
    if url.startswith(_FOLDER) and not Path(url.removeprefix(_FOLDER)).is_dir():
        # The store would create the folder.
        raise UserError(f"{_SETTING}: {url} does not exist; give the checkpoint.object_storage of a run")
    try:
        generations = Generations(ObjectStore(url, endpoint, _SETTING))
        damaged = 0
        # A learner that still uploads removes old generations meanwhile, but keeps the newest ones.
        for name in generations.manifests():
            try:
                files = generations.read(name).files
                if any(path.startswith(f"{CHECKPOINTS}/") for path in files):
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
