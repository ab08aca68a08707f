"""Checks settings that only the learner can judge, before a run begins: own networks and algorithms, and its device."""

import argparse
import json
from pathlib import Path

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms import make_algorithm
from learner_service.training.device import choose_device


def command() -> int:
    """Make the algorithm of the settings in a file, for an environment. Raises UserError when that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="file with the settings")
    parser.add_argument("spec", help="the environment's spec as JSON")
    arguments = parser.parse_args()
    config = settings.build(RunConfig, settings.from_file(arguments.config))
    spec = EnvironmentSpec.from_json(json.loads(arguments.spec))
    make_algorithm(config, spec, choose_device(config.learner.device))
    return 0
