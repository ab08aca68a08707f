"""Opens the data set of a run, and checks that it is the run's."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.datasets.stored import StoredDataset
from learner_service.replay import ReadOnlyStore

_log = logging.getLogger(__name__)


def check_dataset(config: RunConfig, spec: EnvironmentSpec, values: Mapping[str, Any]) -> StoredDataset | None:
    """The description of the run's data set; None without. values: of the checkpoint, if any.

    Raises UserError unless it fits the environment, and for other data than those of the checkpoint.
    """
    found = None
    if config.dataset.source is not None:
        found = StoredDataset.read(Path(config.dataset.source))
        found.check_fits(spec)
    digest = "" if found is None else found.digest
    if values and (expected := values.get("dataset", "")) != digest:
        raise UserError(
            f"dataset: expected {_shown(expected)} as in the run's checkpoint, got {_shown(digest)}; resume with the "
            "data of the run, or start a new run in another --run-directory"
        )
    return found


def open_dataset(config: RunConfig, spec: EnvironmentSpec, values: Mapping[str, Any]) -> ReadOnlyStore | None:
    """The transitions of the run's data set; None without. Raises UserError as `check_dataset` and `open`."""
    found = check_dataset(config, spec, values)
    if found is None:
        return None
    store = found.open()
    _log.info(
        "data set %s: %d transitions in %d episodes, digest %s",
        found.directory,
        store.transitions,
        found.episodes,
        found.digest,
    )
    if store.segments.damaged:
        _log.warning("data set %s: %d damaged segments are skipped", found.directory, store.segments.damaged)
    return store


def _shown(digest: str) -> str:
    return f"a data set with digest {digest}" if digest else "no data set"
