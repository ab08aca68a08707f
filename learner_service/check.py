"""Checks settings that only the learner can judge, before a run begins: own networks and algorithms, its device, its
source.
"""

import argparse
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms import make_algorithm
from learner_service.datasets.of_run import check_dataset
from learner_service.objectstorage.copies import opened_source
from learner_service.training.device import choose_device
from learner_service.training.source import read_source
from learner_service.training.warm_start import begin_networks, check_fits


def command() -> int:
    """Make the algorithm of the settings in a file for an environment, with its initial networks.

    Raises UserError when that fails.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="file with the settings")
    parser.add_argument("spec", help="the environment's spec as JSON")
    parser.add_argument("--resumed", type=Path, help="folder of the run that continues")
    arguments = parser.parse_args()
    config = settings.build(RunConfig, settings.from_file(arguments.config))
    spec = EnvironmentSpec.from_json(json.loads(arguments.spec))
    algorithm = make_algorithm(config, spec, choose_device(config.learner.device))
    check_dataset(config, spec, _checkpoint_of(arguments.resumed))
    if config.init_from is not None:
        with TemporaryDirectory() as work, opened_source(config, Path(work), with_rows=False) as source:
            check_fits(source, config, spec, algorithm)
            begin_networks(source, config, algorithm)
    return 0


def _checkpoint_of(run: Path | None) -> Mapping[str, Any]:
    """The values of a run's newest checkpoint; empty without one."""
    if run is None:
        return {}
    with suppress(UserError):
        return read_source(run).state.values
    return {}
