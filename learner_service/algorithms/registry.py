"""Finds an algorithm by name: a built-in one, an entry point of an installed package, or MODULE:CLASS."""

import os
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

import torch

from actorq.config.algorithms import ALGORITHM_ENTRY_POINTS, ALGORITHMS, no_critic, taking
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.plugins import innermost, load
from actorq.text import reason_of
from learner_service.algorithms.base import Algorithm, is_on_policy, settings_of

# Paths, so that a run imports only its own algorithm.
_OURS = {
    name: f"learner_service.algorithms.{'offline.' * each.for_stored_data}{name}:{name.upper()}"
    for name, each in ALGORITHMS.items()
}
# Built-in algorithms that have a class of their own for policies with memory.
_RECURRENT = {
    name: f"learner_service.algorithms.recurrent.{name}:Recurrent{name.upper()}" for name in ("dqn", "sac", "td3")
}
# The classes of SAC for images.
_SHIFTED_SAC = "learner_service.algorithms.images.sac:ShiftedSAC"
_SHARED_ENCODER_SAC = "learner_service.algorithms.images.sac:SharedEncoderSAC"
_OUR_FOLDERS = (f"{Path(__file__).parents[1]}{os.sep}",)
_WHAT_ONE_HAS = "see learner_service.algorithms.base.Algorithm"
# Required attributes of the class, and of its instances.
_REQUIRED = ("action_spaces", "update", "normalize", "state", "load_state")
_REQUIRED_WHEN_MADE = ("policy", "takes_noise", "batch_size", "n_step", "discount")
# Required attributes of on-policy algorithms, whose class has `learn`.
_ON_POLICY = ("action_spaces", "learn", "sampling", "log_probabilities", "normalize", "state", "load_state")
_ON_POLICY_WHEN_MADE = ("policy", "batch_size", "rollout_size", "epochs", "discount")


def make_algorithm(config: RunConfig, spec: EnvironmentSpec, device: torch.device | None = None) -> Algorithm:
    """Build the run's algorithm for an environment, on the CPU by default.

    Raises UserError when the class cannot be imported or instantiated, is not an algorithm, or does not fit the
    environment.
    """
    algorithm = chosen_algorithm(config)
    _check_actions(config.algorithm, algorithm, spec)
    config.memory.check_frames(spec)
    if config.memory and not getattr(algorithm, "has_memory", False):
        raise UserError(
            f"memory.kind {config.memory.kind}: algorithm {config.algorithm} has no memory; its class needs "
            "has_memory = True, or give --memory none"
        )
    if spec.critic_leaves and not getattr(algorithm, "has_critic", False):
        raise no_critic(config.algorithm, spec.action_kinds, config.sight_of_critics or "critic_leaves")
    if config.sight_of_critics and not spec.critic_leaves:
        raise UserError(
            f"{config.sight_of_critics}: expected an actor whose policy does not see what its critics see, got another "
            "one; run the learner and its actors with one version of ActorQ"
        )
    _check_groups(config, algorithm, spec)
    methods = getattr(algorithm, "sparsity_methods", ("dense",))
    for method in (config.sparsity.method, *sorted(config.sparsity.methods)):
        if method not in methods:
            raise UserError(
                f"sparsity.method: algorithm {config.algorithm} supports {', '.join(methods)}, got {method}"
            )
    device = device or torch.device("cpu")
    if config.algorithm in _OURS:
        return algorithm(config, spec, device)
    try:
        made = algorithm(config, spec, device)
    except UserError:
        raise
    except Exception as error:
        place = innermost(error, _OUR_FOLDERS)
        raise UserError(
            f"algorithm {config.algorithm} has failed: {type(error).__name__}: {reason_of(error)}"
            + (f" ({place})" if place else "")
        ) from error
    _require(config.algorithm, made, _ON_POLICY_WHEN_MADE if is_on_policy(made) else _REQUIRED_WHEN_MADE)
    _check_memory(config, made)
    return made


def _check_memory(config: RunConfig, made: Algorithm) -> None:
    """Raise UserError unless a user's algorithm has `states` in a run with memory, and a state of the run's size."""
    name, memory = config.algorithm, config.memory
    if memory and not hasattr(made, "states"):
        raise UserError(
            f"memory.kind {memory.kind}: algorithm {name} lacks the method states; see "
            "learner_service.algorithms.base.RecurrentAlgorithm"
        )
    size = getattr(made.policy, "state_size", 0)
    if size != memory.state_size:
        raise UserError(
            f"memory.kind {memory.kind}: expected a policy of algorithm {name} with state_size {memory.state_size}, "
            f"got {size}; memory.kind and memory.units set the size of the state"
        )


def _check_groups(config: RunConfig, algorithm: type[Algorithm], spec: EnvironmentSpec) -> None:
    """Raise UserError when a run has groups of agents, and its environment or its algorithm has none."""
    if config.policies and not spec.groups:
        raise UserError(
            f"policies: expected an environment with several agents, got {spec.environment_id}, which has one; leave "
            "policies out"
        )
    if spec.groups and not getattr(algorithm, "has_groups", False):
        raise UserError(
            f"policies: algorithm {config.algorithm} has one policy for all agents; its class needs has_groups = True "
            "and networks for each group, or leave policies out"
        )


def chosen_algorithm(config: RunConfig) -> type[Algorithm]:
    """The class of the run's algorithm. Raises UserError when it does not exist or refuses `algorithm_args`."""
    algorithm = algorithm_class(_variant(config))
    model = getattr(algorithm, "settings", None)
    if model is None:
        if config.algorithm_args:
            raise UserError(f"algorithm_args: algorithm {config.algorithm} has no settings of its own")
    elif isinstance(model, type) and issubclass(model, Settings):
        settings_of(config, model)
    else:
        raise UserError(
            f"algorithm {config.algorithm} is not an algorithm: its settings are not a subclass of "
            f"actorq.config.settings.Settings; {_WHAT_ONE_HAS}"
        )
    return algorithm


def _variant(config: RunConfig) -> str:
    """The algorithm's name, or the path of its variant for memory or images."""
    name = config.algorithm
    if config.memory:
        return _RECURRENT.get(name, name)
    if name == "sac" and config.sac.shared_encoder:
        return _SHARED_ENCODER_SAC
    return _SHIFTED_SAC if name == "sac" and config.sac.random_shift else name


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of an algorithm. Raises UserError when the name is unknown, or the object is not an algorithm."""
    path = name if ":" in name else _OURS.get(name)
    if path is None:
        # Reading the metadata of all installed packages takes 10 ms.
        installed = {point.name: point.value for point in entry_points(group=ALGORITHM_ENTRY_POINTS)}
        if name not in installed:
            raise UserError(
                f"algorithm {name!r} does not exist; expected {', '.join((*_OURS, *sorted(installed)))}, or "
                "MODULE:CLASS for your own"
            )
        path = installed[name]
    found = load(path, f"algorithm {name}")
    if not isinstance(found, type):
        raise UserError(f"algorithm {name}: {path} is not an algorithm: it is not a class; {_WHAT_ONE_HAS}")
    _require(name, found, _ON_POLICY if is_on_policy(found) else _REQUIRED)
    return cast(type[Algorithm], found)


def _require(name: str, found: object, attributes: Sequence[str]) -> None:
    missing = [attribute for attribute in attributes if not hasattr(found, attribute)]
    if missing:
        raise UserError(f"algorithm {name} is not an algorithm: it lacks {', '.join(missing)}; {_WHAT_ONE_HAS}")


def _check_actions(name: str, algorithm: type[Algorithm], spec: EnvironmentSpec) -> None:
    if not {*spec.action_kinds} <= {*algorithm.action_spaces}:
        have = f"{spec.acting_size} discrete ones" if spec.sizes else "continuous ones"
        have += " and continuous ones" * (len(spec.action_kinds) > 1)
        raise UserError(
            f"algorithm {name} needs {' or '.join(algorithm.action_spaces)} actions, but {spec.environment_id} has "
            f"{have} of shape {list(spec.actions.shape)}; for "
            f"{' and '.join(spec.action_kinds)} actions use {', '.join(taking(*spec.action_kinds))}"
        )
    if spec.components and not spec.continuous_part.actions.bounded:
        raise UserError(
            f"{spec.environment_id} has actions without finite bounds; actions must be discrete, or continuous with "
            "finite bounds for each component"
        )
