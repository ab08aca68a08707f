"""The runs of a comparison, and their order."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from actorq.config.messages.suggestions import suggestion
from actorq.config.numbers import LARGEST_SEED
from actorq.config.run_config import RunConfig
from actorq.config.schemes import scheme_names
from actorq.config.settings import leaves
from actorq.domain.policy import AUTO, FP32
from actorq.errors import UserError

TORCH = "torch"
"""Actors that run the fp32 policy in PyTorch. This is not a scheme of the quantizer."""
TORCH_ACTOR = "benchmarks.speedup.torch_actor"
BASELINES = (FP32, TORCH)
_MOST_SEEDS = 10_000
_ONE_TASK = "make a comparison for each in a folder of its own"
# Settings that cannot vary, and what to use instead.
_SHARED = {"seed": "give --seeds", "scheme": "give --schemes", "environment": _ONE_TASK, "target-return": _ONE_TASK}


def scheme_choices() -> tuple[str, ...]:
    """Valid schemes for the actors of a compared run: a scheme, "auto" or "torch"."""
    return (*scheme_names(), AUTO, TORCH)


@dataclass(frozen=True)
class Variant:
    """One side of the comparison.

    scheme: one of `scheme_choices`.
    changes: settings that differ between variants, as flag without dashes and value.
    """

    scheme: str
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def cell(self) -> str:
        """The changes as text. Ratios compare only variants of one cell."""
        return ", ".join(f"{name} {value}" for name, value in self.changes)

    @property
    def name(self) -> str:
        """The variant's name for people."""
        return f"{self.scheme}, {self.cell}" if self.changes else self.scheme

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `actorq train` in addition to the task's flags."""
        scheme = FP32 if self.scheme == TORCH else self.scheme
        return ("--scheme", scheme, *(part for change in self.changes for part in _flag(*change)))

    @property
    def actor_module(self) -> str:
        """Module that replaces the actor service; empty for the actor service."""
        return TORCH_ACTOR if self.scheme == TORCH else ""


@dataclass(frozen=True)
class ScheduledRun:
    """One run of the comparison."""

    variant: Variant
    seed: int

    @property
    def name(self) -> str:
        """The run's name for folders and files."""
        # A value and its negative need different names.
        name = self.variant.name.replace(" -", " minus")
        return f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-')}-seed{self.seed}"


def grid(schemes: Sequence[str], varied: Sequence[Sequence[str]] = ()) -> tuple[Variant, ...]:
    """All variants. Each element of `varied` has a setting and its values. Raises UserError."""
    for scheme in schemes:
        if scheme not in scheme_choices():
            raise UserError(f"--schemes: expected some of {', '.join(scheme_choices())}, got {scheme!r}")
    known = {leaf.flag.removeprefix("--") for leaf in leaves(RunConfig)}
    for name, *values in varied:
        if not values:
            raise UserError(
                f"--vary: expected a setting and its values, such as dqn.hidden-sizes 64,64 256,256, got {name}"
            )
        if (setting := name.lstrip("-").replace("_", "-")) in _SHARED:
            raise UserError(f"--vary: all variants share {setting}; {_SHARED[setting]}")
        if setting not in known:
            raise UserError(f"--vary: unknown setting {name!r}{suggestion(setting, known)}")
    axes = [[(name.lstrip("-").replace("_", "-"), value) for value in values] for name, *values in varied]
    variants = tuple(Variant(scheme, changes) for changes in product(*axes) for scheme in schemes)
    if len({ScheduledRun(variant, 0).name for variant in variants}) != len(variants):
        raise UserError("--schemes and --vary: expected each scheme and each value once")
    return variants


def seeds_of(given: Sequence[int]) -> tuple[int, ...]:
    """The seeds of --seeds. A single number is a count. Raises UserError."""
    if len(given) == 1 and given[0] > _MOST_SEEDS:
        raise UserError(f"--seeds: expected a count of at most {_MOST_SEEDS}, or several seeds, got {given[0]}")
    seeds = tuple(range(1, given[0] + 1)) if len(given) == 1 else tuple(given)
    if not seeds or min(seeds) < 0 or max(seeds) > LARGEST_SEED or len(set(seeds)) != len(seeds):
        raise UserError(
            f"--seeds: expected a count or different seeds from 0 to {LARGEST_SEED}, got {' '.join(map(str, given))}"
        )
    return seeds


def interleaved(variants: Sequence[Variant], seeds: Sequence[int]) -> tuple[ScheduledRun, ...]:
    """All variants with the first seed, then all with the second seed in rotated order, and so on.

    A change in the machine's speed during the comparison then affects all variants alike.
    """
    return tuple(
        ScheduledRun(variants[(place + turn) % len(variants)], seed)
        for turn, seed in enumerate(seeds)
        for place in range(len(variants))
    )


def _flag(name: str, value: str) -> tuple[str, ...]:
    if value in ("true", "false"):
        return (f"--{name}" if value == "true" else f"--no-{name}",)
    return (f"--{name}", value)
