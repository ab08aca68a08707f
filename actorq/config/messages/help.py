"""Fits a command's help to the run that its arguments describe: the settings that matter, with their defaults."""

import argparse
from collections.abc import Collection, Mapping
from operator import attrgetter

from actorq.config import settings
from actorq.config.algorithms import ALGORITHMS
from actorq.config.parser import OneLineParser
from actorq.config.presets import OTHERS, default_algorithm, family_of
from actorq.config.run_config import RunConfig
from actorq.config.unread import unread
from actorq.errors import UserError

# These settings choose the preset, which sets the other defaults.
_CHOICES = ("environment", "algorithm", "preset")


def described_run(namespace: argparse.Namespace) -> RunConfig:
    """The default configuration for the environment, algorithm and preset in the arguments."""
    given = {name: value for name in _CHOICES if (value := getattr(namespace, name, None)) is not None}
    try:
        return settings.build(RunConfig, given)
    except UserError:
        return RunConfig()


def fit_help(
    parser: OneLineParser,
    flags: Mapping[argparse.Action, settings.Leaf],
    namespace: argparse.Namespace,
    full: bool,
    *,
    reads: Collection[str] | None = None,
    ignores: Collection[str] = (),
) -> None:
    """Hide the settings of a run that the command or the algorithm ignores, and show the defaults of the preset.

    flags: the settings of the run, by their argparse actions.
    full: whether the help also lists the settings of other algorithms, unless one is given.
    reads, ignores: settings and sections of the run that the command reads (None for all) and ignores.
    """
    config = described_run(namespace)
    one_algorithm = not full or hasattr(namespace, "algorithm")
    hidden = {*ignores, *(unread(config.algorithm) if one_algorithm else ())}
    for action, leaf in flags.items():
        if _covers(hidden, leaf) or (reads is not None and not _covers(reads, leaf)):
            action.help = argparse.SUPPRESS
        else:
            action.help = leaf.help_with(_default(leaf, config))
    if reads is None or "environment" in reads:
        note = f"The defaults below are for {config.algorithm} on {config.environment}."
        others = "They change with environment, algorithm and preset."
        parser.description = f"{parser.description} {note} {others}".strip()


def _covers(names: Collection[str], leaf: settings.Leaf) -> bool:
    """Whether the names contain the setting or a section around it."""
    return any(".".join(leaf.path[: length + 1]) in names for length in range(len(leaf.path)))


def _default(leaf: settings.Leaf, config: RunConfig) -> str:
    name = ".".join(leaf.path)
    if name == "algorithm" and family_of(config.environment) is not OTHERS:
        return default_algorithm(config.environment, config.preset)
    if name in _CHOICES or leaf.in_words:
        return leaf.default
    other = leaf.path[0] in ALGORITHMS and leaf.path[0] != config.algorithm
    run = RunConfig(environment=config.environment, algorithm=leaf.path[0], preset=config.preset) if other else config
    return settings.default_text(attrgetter(name)(run))
