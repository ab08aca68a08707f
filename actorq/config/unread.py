"""Finds settings that have no effect on a run, because of its algorithm or of another setting."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from actorq.config.algorithms import ALGORITHMS, ON_POLICY
from actorq.config.presets import STANDARD, preset
from actorq.config.run_config import RunConfig
from actorq.config.settings import has

_GATE = "quantizer.gate."
# Settings for discrete actions, for continuous ones, and for on-policy algorithms.
_DISCRETE = ("exploration.epsilon", "exploration.alpha", f"{_GATE}min_agreement", f"{_GATE}max_value_loss")
_CONTINUOUS = ("exploration.noise", "exploration.correlation", f"{_GATE}max_mean_error", f"{_GATE}max_error")
_QUEUE_ONLY = ("queue", "evaluation.sampled", f"{_GATE}max_mean_kl", f"{_GATE}max_kl")
_PRIORITIES = ("replay.priority_exponent", "replay.importance_exponent", "replay.importance_exponent_end")
REPLAY_ONLY = (
    *("rate_limiter", "exploration", "multi_step_returns", "publication.period_updates"),
    *("replay.prioritized", "replay.min_size", *_PRIORITIES),
    *(name for name in (*_DISCRETE, *_CONTINUOUS) if name.startswith(_GATE)),
)
_OF_ALGORITHM = {
    "dqn": (*_QUEUE_ONLY, *_CONTINUOUS, "sparsity.critic"),
    **dict.fromkeys(("d4pg", "td3"), (*_QUEUE_ONLY, *_DISCRETE)),
    "sac": (*_QUEUE_ONLY, *_DISCRETE, "exploration.noise"),
    **dict.fromkeys(ON_POLICY, REPLAY_ONLY),
}
_HIDDEN = tuple(f"{name}.{each}" for name in ON_POLICY for each in ("hidden_sizes", "value_sizes", "activation"))
_CHANGES = ("sparsity.period_updates", "sparsity.replaced", "sparsity.until")
# Why settings have no effect, when that is so, and the settings.
_OFF: dict[str, tuple[Callable[[RunConfig], bool], tuple[str, ...]]] = {
    "replay.prioritized is off": (lambda run: not run.replay.prioritized, _PRIORITIES),
    "dqn.learning_rate is constant": (lambda run: run.dqn.learning_rate_end is None, ("dqn.learning_rate_updates",)),
    "sac.temperature is constant": (lambda run: run.sac.temperature is not None, ("sac.target_entropy",)),
    "ppo.correct is off": (lambda run: not run.ppo.correct and run.ppo.max_weight >= 1, ("ppo.max_weight",)),
    "the network has its own layers": (lambda run: run.network is not None, ("dqn.hidden_sizes", *_HIDDEN)),
    "multi_step is off": (lambda run: run.multi_step_of(1) is None, ("multi_step_returns",)),
    "dynamic_capacity.enabled is off": (
        lambda run: not run.asks_for_greedy_actions,
        tuple(f"dynamic_capacity.{name}" for name in ("threshold", "min_size", "period_steps", "oldest", "dropped")),
    ),
    "the networks are dense": (lambda run: run.sparsity.method == "dense", ("sparsity.actor", "sparsity.critic")),
    "masks never change": (lambda run: run.sparsity.method in ("dense", "tiny", "static"), _CHANGES),
    "no network has masks": (lambda run: run.sparsity.method in ("dense", "tiny"), ("sparsity.compressed_products",)),
}


def unread(algorithm: str) -> tuple[str, ...]:
    """Settings, and sections of settings, that a built-in algorithm does not read. Of others it is not known."""
    others = (section for section in ALGORITHMS if section != algorithm)
    return (*others, *_OF_ALGORITHM[algorithm]) if algorithm in ALGORITHMS else ()


def given_in_vain(given: Mapping[str, Any], config: RunConfig) -> dict[str, str]:
    """Given settings and sections without effect, each with the reason. Defaults are left out: a run's file has all."""
    by_algorithm, default = f"the algorithm is {config.algorithm}", RunConfig()
    found: dict[str, str] = {}
    off = ((reason, names) for reason, (is_so, names) in _OFF.items() if is_so(config))
    for reason, names in ((by_algorithm, unread(config.algorithm)), *off):
        for name in names:
            differs = has(given, name.split(".")) and attrgetter(name)(config) != attrgetter(name)(default)
            if differs and not is_within(name, found):
                found[name] = reason
    standard, chosen = (preset(config.algorithm, config.environment, name) for name in (STANDARD, config.preset))
    if config.preset != STANDARD and chosen == standard:
        found[f"preset {config.preset}"] = by_algorithm
    return {f"{name}.*" if name in ALGORITHMS else name: reason for name, reason in found.items()}


def is_within(name: str, sections: Iterable[str]) -> bool:
    """Whether a setting is one of these, or in one of these sections."""
    return any(name == each or name.startswith(f"{each}.") for each in sections)
