"""Finds settings without effect on a run, because of its algorithm, its environment or another setting."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from actorq.config.algorithms import ALGORITHMS, ON_POLICY
from actorq.config.memory import MemoryConfig
from actorq.config.presets import AUTO, STANDARD, preset
from actorq.config.run_config import RunConfig
from actorq.config.settings import has
from actorq.config.sparsity import DynamicCapacityConfig
from actorq.domain.policy import FP32
from actorq.domain.spaces import EnvironmentSpec

_GATE = "quantizer.gate."
# Settings for discrete actions, for continuous ones, and for on-policy algorithms.
_DISCRETE = ("exploration.epsilon", "exploration.alpha", f"{_GATE}min_agreement", f"{_GATE}max_value_loss")
_CONTINUOUS = ("exploration.noise", "exploration.correlation", f"{_GATE}max_mean_error", f"{_GATE}max_error")
_QUEUE_ONLY = ("queue", "evaluation.sampled", f"{_GATE}max_mean_kl", f"{_GATE}max_kl")
_PRIORITIES = ("replay.priority_exponent", "replay.importance_exponent", "replay.importance_exponent_end")
REPLAY_ONLY = (
    *("rate_limiter", "exploration", "multi_step_returns", "publication.period_updates", "hindsight"),
    *("replay.prioritized", "replay.min_size", "replay.age_decay", *_PRIORITIES, "memory.burn_in"),
    *(name for name in (*_DISCRETE, *_CONTINUOUS) if name.startswith(_GATE)),
)
_GAUSSIAN = tuple(f"{name}.{each}" for name in ON_POLICY for each in ("log_std", "squash"))
_HIDDEN = tuple(f"{name}.{each}" for name in ON_POLICY for each in ("hidden_sizes", "value_sizes", "activation"))
_SPARSE = ("sparsity.actor", "sparsity.critic", "sparsity.actor_method", "sparsity.critic_method")
_CHANGES = ("sparsity.period_updates", "sparsity.replaced", "sparsity.until")
# Settings of actors and of their transitions.
_ACTING = (
    *("actors", "max_environment_steps", "dataset.share", "exploration", "rate_limiter", "hindsight"),
    *("actor.segment_length", "actor.max_segment_bytes", "actor.queue_segments", "actor.max_steps_per_policy"),
    *("replay.capacity", "replay.min_size", "replay.prioritized", "replay.age_decay", "replay.flush_s"),
)
_LOOKS = tuple(f"dynamic_capacity.{name}" for name in DynamicCapacityConfig.model_fields if name != "enabled")


def unread(algorithm: str) -> tuple[str, ...]:
    """Settings and whole sections that a built-in algorithm does not read. Empty for other algorithms."""
    if algorithm not in ALGORITHMS:
        return ()
    settings = ALGORITHMS[algorithm]
    others = tuple(each for each in ALGORITHMS if each != algorithm)
    if algorithm in ON_POLICY:
        return (*others, *REPLAY_ONLY, *settings.ignored)
    of_actions = _CONTINUOUS if settings.actions == ("discrete",) else _DISCRETE
    return (*others, *_QUEUE_ONLY, *of_actions, *settings.ignored)


def given_in_vain(given: Mapping[str, Any], config: RunConfig, spec: EnvironmentSpec) -> dict[str, str]:
    """Given settings and sections without effect, and the reasons. Skips defaults, because a run's file has them."""
    by_algorithm, default = f"the algorithm is {config.algorithm}", RunConfig()
    found: dict[str, str] = {}
    for reason, names in ((by_algorithm, unread(config.algorithm)), *_switched_off(config, spec)):
        for name in names:
            differs = has(given, name.split(".")) and attrgetter(name)(config) != attrgetter(name)(default)
            if differs and not found.keys() & {name, name.partition(".")[0]}:
                found[name] = reason
    standard, chosen = (preset(config.algorithm, config.preset_environment, name) for name in (STANDARD, config.preset))
    # The measurement of `auto` also helps algorithms that have no preset.
    is_measured = config.preset == AUTO and config.algorithm not in ON_POLICY
    if config.preset != STANDARD and chosen == standard and not is_measured:
        found[f"preset {config.preset}"] = by_algorithm
    return {f"{name}.*" if name in ALGORITHMS else name: reason for name, reason in found.items()}


def _switched_off(run: RunConfig, spec: EnvironmentSpec) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Settings without effect because of other settings or of the environment, by reason."""
    methods = run.sparsity.methods
    rollout_steps = -(-run.ppo.rollout_size // (run.actors * run.environments_per_actor))
    reasons: dict[str, tuple[object, tuple[str, ...]]] = {
        "actions are discrete": (spec.sizes, _GAUSSIAN),
        "network has the hidden layers": (run.network, ("dqn.hidden_sizes", *_HIDDEN)),
        "observations are no images of three axes": (
            spec.image is None or (spec.frame_stack > 1 and not spec.has_stacked_images),
            ("image_layout",),
        ),
        "the environment has one agent": (not spec.agents, ("agents",)),
        "the environment has no goals": (spec.goal is None, ("hindsight",)),
        "observations are images": (
            spec.for_critics.image,
            ("normalize_observations", "dqn.hidden_sizes", *_HIDDEN),
        ),
        "replay.prioritized is on": (run.replay.prioritized, ("replay.age_decay",)),
        "replay.prioritized is off": (not run.replay.prioritized, _PRIORITIES),
        "dqn.learning_rate_end is none": (run.dqn.learning_rate_end is None, ("dqn.learning_rate_updates",)),
        "xqc.learning_rate_end is none": (run.xqc.learning_rate_end is None, ("xqc.learning_rate_updates",)),
        "sac.temperature is constant": (run.sac.temperature, ("sac.target_entropy", "sac.initial_temperature")),
        "xqc.temperature is constant": (run.xqc.temperature, ("xqc.target_entropy", "xqc.initial_temperature")),
        "ppo.correct is off": (not run.ppo.correct and run.ppo.max_weight >= 1, ("ppo.max_weight",)),
        "multi_step is off": (run.multi_step_of(1) is None, ("multi_step_returns",)),
        "dynamic_capacity.enabled is off": (not run.asks_for_greedy_actions, _LOOKS),
        "memory.kind is none": (not run.memory, tuple(f"memory.{name}" for name in MemoryConfig.model_fields)),
        f"a rollout of ppo.rollout_size steps has only {rollout_steps} steps of each environment": (
            run.memory and run.algorithm == "ppo" and rollout_steps < run.memory.sequence_length,
            ("memory.sequence_length",),
        ),
        "networks are dense": (run.sparsity.method == "dense", _SPARSE),
        "init_from is given": (run.init_from, ("exploration.random_steps",)),
        "masks never change": (methods <= {"dense", "tiny", "static"}, _CHANGES),
        "no network has masks": (methods <= {"dense", "tiny"}, ("sparsity.compressed_products",)),
        "offline is off": (not run.offline, ("max_updates",)),
        "the run has no data set": (not run.dataset, ("dataset.share",)),
        "the run is offline": (run.offline, _ACTING),
        "scheme is fp32": (run.scheme == FP32, ("learner.quantization_aware_after",)),
        "learner.quantization_aware_after is none": (
            run.learner.quantization_aware_after is None,
            ("learner.quantization_aware_bits",),
        ),
    }
    return ((reason, names) for reason, (is_so, names) in reasons.items() if is_so)
