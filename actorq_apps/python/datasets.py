"""Stored data from Python: imports recorded transitions, describes stored data, and exports those of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.extras import require
from actorq_apps.cli.support.stored_data import export_arguments, import_arguments, run_learner, show_arguments
from actorq_apps.local.environment import environment_of
from actorq_apps.python.arguments import with_arguments
from actorq_apps.python.environments import resolve
from actorq_apps.python.train import settings_of


@dataclass(frozen=True)
class Dataset:
    """Stored data. `actorq.train(..., dataset=data)` learns from them.

    directory: its folder. environment: id of its environment. source: where its episodes come from.
    terminated: number of episodes that end in a terminal state.
    mean_return, return_deviation, lowest_return, highest_return: of the episodes.
    digest: identifies the content. damaged_segments: number of damaged segments, which are skipped.
    """

    directory: Path
    environment: str
    source: str
    transitions: int
    episodes: int
    terminated: int
    mean_return: float
    return_deviation: float
    lowest_return: float
    highest_return: float
    digest: str
    damaged_segments: int

    def __fspath__(self) -> str:
        return str(self.directory)


@dataclass(frozen=True)
class DatasetExport:
    """The outcome of an export.

    target: as given. cut_episodes: number of episodes whose end is not stored, which count as truncated.
    damaged_segments: number of damaged segments, which are left out.
    """

    target: str
    episodes: int
    transitions: int
    cut_episodes: int
    damaged_segments: int


def import_dataset(
    source: str | Path,
    environment: Any = None,
    *,
    name: str | None = None,
    directory: str | Path | None = None,
    like_run: str | Path | None = None,
    **given: Any,
) -> Dataset:
    """Store recorded transitions, as `actorq dataset import` does. Returns when they are stored.

        data = actorq.import_dataset("demonstrations.npz", "Hopper-v5", name="hopper")
        run = actorq.train("Hopper-v5", "sac", dataset=data)

    source: minari:ID; the folder of a run or of Minari; or a file .npz or .hdf5.
    environment: as for `actorq.train`; by default the source names it. It is made once, and compared with the data.
    name: of the data set, by default from the source. directory: its folder, by default datasets/NAME.
    like_run: folder of a run whose spaces the data have; environments external/NAME need it. The environment is then
        not made.
    given: further settings of the environment, as for `actorq.train`: `environment_args={...}`.

    Raises UserError when the data set exists, and when the data do not fit the environment. Nothing is stored then.
    """
    require("actorq.import_dataset", ["learner", "actor"])
    found = None if environment is None else resolve(environment)
    made: list[str] = []

    def make(environment_id: str) -> EnvironmentSpec:
        made.append(environment_id)
        config = settings.build(RunConfig, settings_of(found or environment_id, None, given))
        if found is None or isinstance(found, str):
            return environment_of(config)
        found.claim()
        try:
            return found.describe(config)
        finally:
            found.free()

    known = found if found is None or isinstance(found, str) else found.environment_id
    with _flags_as_arguments():
        folder, run = (None if each is None else Path(each) for each in (directory, like_run))
        arguments = import_arguments(str(source), folder, name, known, run, make)
        if given and not made:
            raise UserError(
                f"import_dataset: {', '.join(given)}: expected no settings of the environment, because its spaces come "
                "from a run; leave them out"
            )
        return _dataset(run_learner(*arguments))


def show_dataset(dataset: str | PathLike[str]) -> Dataset:
    """Describe stored data, as `actorq dataset show` does. Compares the files with their checksums.

    dataset: name or folder of a data set. Raises UserError when there is none, and when nothing in it is whole.
    """
    require("actorq.show_dataset", ["learner"])
    with _flags_as_arguments():
        return _dataset(run_learner(*show_arguments(fspath(dataset))))


def export_dataset(source: str | PathLike[str], target: str | Path) -> DatasetExport:
    """Write the stored transitions of a run, or a data set, as `actorq dataset export` does. Returns when it is done.

    source: folder of a run, or name or folder of a data set. target: minari:ID, FILE.npz or FILE.hdf5.

    Raises UserError when the source cannot be read, and when the target exists or cannot be written.
    """
    require("actorq.export_dataset", ["learner"])
    with _flags_as_arguments():
        return DatasetExport(**run_learner(*export_arguments(fspath(source), str(target))))


def _dataset(values: dict[str, Any]) -> Dataset:
    returns = values.pop("returns")
    values["directory"] = Path(values["directory"])
    return Dataset(
        **values,
        mean_return=returns["mean"],
        return_deviation=returns["deviation"],
        lowest_return=returns["lowest"],
        highest_return=returns["highest"],
    )


@contextmanager
def _flags_as_arguments() -> Iterator[None]:
    """Errors of the command, for a caller in Python."""
    try:
        yield
    except UserError as error:
        raise with_arguments(error) from error.__cause__
