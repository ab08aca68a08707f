"""Checks that a run's algorithm fits its environment, before any process starts."""

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from actorq.config import settings
from actorq.config.algorithms import ALGORITHM_ENTRY_POINTS, ALGORITHMS, no_critic, taking
from actorq.config.presets import CONTINUOUS_ALGORITHM, OTHERS, family_of
from actorq.config.run_config import RunConfig
from actorq.config.segments import most_environments
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.policy import FLOAT_SCHEMES, FP32
from actorq.domain.spaces import EnvironmentSpec, check_goals, check_images
from actorq.errors import UserError
from actorq.process import Sources
from actorq.start import command_of
from actorq.text import size_text
from actorq_apps.local.child import run_to_end
from actorq_apps.local.forkserver import ForkServers

Warn = Callable[[str], None]
Describe = Callable[[RunConfig], EnvironmentSpec]


def fit_algorithm(
    config: RunConfig, sources: Sources, may_choose: bool, describe: Describe
) -> tuple[RunConfig, EnvironmentSpec]:
    """The settings and the environment.

    If no algorithm is given, and the default does not support the actions or critic leaves, another one is used.

    sources: source of the settings, to resolve those of another algorithm. may_choose: whether to choose another one.
    describe: `actorq_apps.local.environment.environment_of`, or a function that caches its results.

    Raises UserError for an unknown algorithm or environment, and for an algorithm that does not support the actions.
    """
    names = (*ALGORITHMS, *sorted(entry_points(group=ALGORITHM_ENTRY_POINTS).names))
    # The learner checks classes, because this process has no torch.
    if config.algorithm not in names and ":" not in config.algorithm:
        known = f"expected one of {', '.join(names)}, or MODULE:CLASS"
        raise UserError(f"setting 'algorithm': {known}, got {config.algorithm!r}")
    spec = describe(config)
    if config.network is None:
        check_images(spec.for_critics)
    kinds = spec.action_kinds
    if "discrete" not in kinds and family_of(config.preset_environment) is OTHERS and may_choose:
        config = sources.resolve(RunConfig, {"algorithm": CONTINUOUS_ALGORITHM})
    elif len(kinds) > 1 and may_choose:
        config = sources.resolve(RunConfig, {"algorithm": taking(*kinds)[0]})
    elif config.sight_of_critics and may_choose and _lacks_critic(config):
        others = (each for each in taking(*kinds) if ALGORITHMS[each].has_critic)
        config = sources.resolve(RunConfig, {"algorithm": next(others)})
    needed = ALGORITHMS[config.algorithm].actions if config.algorithm in ALGORITHMS else kinds
    if not {*kinds} <= {*needed}:
        raise UserError(
            f"algorithm {config.algorithm} needs {' or '.join(needed)} actions, but {config.environment} has "
            f"{' and '.join(kinds)} ones; for these there are: {', '.join(taking(*kinds))}"
        )
    if config.sight_of_critics and _lacks_critic(config):
        raise no_critic(config.algorithm, kinds, config.sight_of_critics)
    return fit_goals(config, sources.given[RunConfig], spec), spec


def _lacks_critic(config: RunConfig) -> bool:
    """Whether a built-in algorithm has no critic apart from the policy."""
    return config.algorithm in ALGORITHMS and not ALGORITHMS[config.algorithm].has_critic


def fit_goals(config: RunConfig, given: Mapping[str, Any], spec: EnvironmentSpec) -> RunConfig:
    """The settings, with one-step returns if the environment has goals and the run has hindsight.

    given: the settings that the user has given. Raises UserError when they require longer returns, or when episodes
    have no time limit.
    """
    if not config.copies_of(spec):
        return config
    check_goals(spec)
    name, own = f"{config.algorithm}.n_step", getattr(config.own, "n_step", 1)
    changed: dict[str, Any] = {}
    for setting, found, is_long, one in (
        (name, own, own > 1, {config.algorithm: {"n_step": 1}}),
        ("multi_step", "true", config.multi_step_of(1) is not None, {"multi_step": False}),
    ):
        if is_long and settings.has(given, setting.split(".")):
            raise UserError(
                f"setting {setting!r}: hindsight needs returns of one step, got {found}: leave "
                f"--{setting.replace('_', '-')} out, or give --hindsight.copies 0"
            )
        changed |= one if is_long else {}
    return settings.build(RunConfig, config.model_dump(mode="json"), changed) if changed else config


def check_learner(
    config: RunConfig, spec: EnvironmentSpec, servers: ForkServers | None = None, resumed: Path | None = None
) -> None:
    """Raise UserError for a user's algorithm or network, a device, a source or a data set that the learner cannot use.

    resumed: folder of the run that continues.

    Starts a process, because only the learner has torch. Starts none for settings that cannot fail there.
    """
    own = (
        config.network is not None
        or config.encoders
        or config.algorithm not in ALGORITHMS
        or config.algorithm_args
        or config.dataset
    )
    if not own and config.init_from is None and config.learner.device in ("auto", "cpu"):
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(settings.to_yaml(config), encoding="utf-8")
        command = (*command_of("learner_service.check:command"), str(file), json.dumps(spec.to_json()))
        command += ("--resumed", str(resumed)) if resumed else ()
        run_to_end(command, servers, "the learner cannot use these settings")


def fit_environments(config: RunConfig, spec: EnvironmentSpec, warn: Warn) -> RunConfig:
    """The settings, with at most as many environments per actor as fit into a message. UserError if none fits."""
    most = most_environments(spec, config.large_columns(spec))
    if config.environments_per_actor <= most:
        return config
    reason = f"a message holds no more observations of {size_text(spec.observations.nbytes)}"
    warn(f"environments per actor: {most} instead of {config.environments_per_actor}: {reason}")
    return settings.build(RunConfig, {**config.model_dump(mode="json"), "environments_per_actor": most})


def about_bits(config: RunConfig) -> Iterator[str]:
    """A warning about quantization-aware training with bits that no kernel of the actors' scheme has."""
    bits, scheme = config.learner.quantization_aware_bits, config.scheme
    if bits not in (None, 8) and config.learner.quantization_aware_after is not None:
        speed = FP32 if scheme in FLOAT_SCHEMES else scheme
        yield (
            f"learner.quantization_aware_bits: scheme {scheme} has no kernel for {bits} bits: actors use 8 bits, as "
            f"fast as {speed}; only training rounds to {bits} bits"
        )


def about_wrappers(arguments: EnvironmentArguments) -> Iterator[str]:
    """Warnings about wrappers that make actors and evaluations differ."""
    if arguments.reward_wrappers:
        names = ", ".join(arguments.reward_wrappers)
        yield f"evaluations leave out {names}: their returns and the target are in the environment's own rewards"
    if arguments.statistics_wrappers:
        yield (
            f"{', '.join(arguments.statistics_wrappers)} keeps statistics of each environment, so actors and "
            "evaluations see different observations: give --normalize-observations instead, which is part of the policy"
        )
