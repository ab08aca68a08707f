"""Settings that follow from an environment with goals."""

import logging
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec, check_goals
from actorq.errors import UserError
from learner_service.algorithms.base import Algorithm
from learner_service.training.drawing import sampling_of

_log = logging.getLogger(__name__)


def with_goals(config: RunConfig, spec: EnvironmentSpec) -> RunConfig:
    """The settings of the run in its environment: with hindsight, returns have one step.

    The launcher decides this before it starts the learner. On a cluster only the learner knows the environment. Raises
    UserError where hindsight is not possible.
    """
    if not config.copies_of(spec) or sampling_of(config):
        return config
    check_goals(spec)
    changed: dict[str, Any] = {}
    own = config.own
    if own is not None and getattr(own, "n_step", 1) > 1:
        _log.warning("%s.n_step: 1 instead of %d, because of hindsight", config.algorithm, getattr(own, "n_step", 1))
        changed[config.algorithm] = own.model_copy(update={"n_step": 1})
    if config.multi_step_of(1) is not None:
        _log.warning("multi_step: off, because of hindsight")
        changed["multi_step"] = False
    return config.model_copy(update=changed)


def check_one_step(config: RunConfig, spec: EnvironmentSpec, algorithm: Algorithm) -> None:
    """Raise UserError for an algorithm of the user whose returns have several steps, with hindsight."""
    if config.copies_of(spec) and algorithm.n_step > 1:
        raise UserError(
            f"algorithm {config.algorithm}: n_step must be 1 with hindsight, got {algorithm.n_step}; change it, or "
            "give --hindsight.copies 0"
        )
