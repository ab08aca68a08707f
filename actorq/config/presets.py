"""Presets: settings for an algorithm on a family of environments. A file, the environment and flags override them.

Sources of the numbers: docs/how-to/presets.md. Preset, algorithm, environment and the presence of a data set alone
determine the settings, so all services of a run compute the same settings. Without an algorithm, the presence of some
other settings matters too (_WITHOUT_AUTO).

STANDARD needs few environment steps. DATA_RICH needs little time if steps are cheap. It learns from each transition
only once or a few times, in large batches. The learner's machine then limits the speed, not the actors. AUTO needs
little time on a given machine: `actorq train` measures it, and replaces the samples per insert and the number of actors
(actorq_apps.profile.regime). The numbers here are those of a run that is started in another way.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from actorq.config.memory import WITH_MEMORY, WITH_MEMORY_OF_FAMILY, preset_with_memory
from actorq.config.presets_on_policy import IMPALA_OF_FAMILY, ON_POLICY, PPO_OF_FAMILY
from actorq.config.settings import flat, merged

STANDARD, DATA_RICH, AUTO = "standard", "data-rich", "auto"


@dataclass(frozen=True)
class Family:
    """Environments with the same settings.

    patterns: shell-style patterns of their ids. algorithm: the default. auto: the default with AUTO, where it differs.
    """

    name: str
    patterns: tuple[str, ...]
    algorithm: str
    auto: str = ""


# All other environments. With continuous actions they use another algorithm than d4pg, which needs bounds of returns.
OTHERS = Family("others", ("*",), "dqn")
CONTINUOUS_ALGORITHM = "sac"

# The first match applies. The last family matches every environment.
FAMILIES = (
    Family("CartPole", ("CartPole-v*",), "dqn"),
    Family("Acrobot", ("Acrobot-v*",), "dqn"),
    Family("MountainCar", ("MountainCar-v*",), "dqn"),
    Family("LunarLander", ("LunarLander-v*",), "dqn"),
    Family("Atari", ("ALE/*",), "dqn"),
    Family("DM Control", ("dm_control/*",), "d4pg"),
    Family("DM Control pixels", ("dm_control_pixels/*",), "sac"),
    Family("Pendulum", ("Pendulum-v*",), "sac"),
    Family(
        "MuJoCo",
        (
            *("HalfCheetah-v*", "Hopper-v*", "Walker2d-v*", "Ant-v*", "Humanoid-v*", "HumanoidStandup-v*"),
            *("Swimmer-v*", "Reacher-v*", "Pusher-v*", "InvertedPendulum-v*", "InvertedDoublePendulum-v*"),
        ),
        "sac",
        auto="xqc",
    ),
    Family("MountainCarContinuous", ("MountainCarContinuous-v*",), "sac"),
    Family("Box2D", ("BipedalWalker*-v*", "LunarLanderContinuous-v*"), "sac"),
    Family("MPE", ("pettingzoo/mpe2/*",), "ppo"),
    OTHERS,
)

# One environment step for each update of 256 samples. There are few environments, because the learner could not keep
# up with more. Few environments also keep the acting policies new.
_ONE_UPDATE_PER_STEP: dict[str, Any] = {
    "actors": 1,
    "environments_per_actor": 4,
    "max_environment_steps": 1_000_000,
    "replay": {"capacity": 1_000_000, "min_size": 10_000, "prioritized": False},
    "rate_limiter": {"samples_per_insert": 256.0, "error_buffer": 32_768.0},
    "exploration": {"random_steps": 10_000},
    "publication": {"period_updates": 32},
    "evaluation": {"episodes": 5, "period_updates": 5_000},
    "actor": {"segment_length": 8},
}
_PENDULUM: dict[str, Any] = {
    "max_environment_steps": 20_000,
    "replay": {"capacity": 50_000, "min_size": 256},
    "exploration": {"random_steps": 256},
    "evaluation": {"episodes": 10, "period_updates": 1_000},
}
# Exploratory pushes that last 50 to 100 steps sometimes swing the car up. Independent noise never does.
_MOUNTAIN_CAR_CONTINUOUS: dict[str, Any] = {
    "max_environment_steps": 100_000,
    "replay": {"capacity": 100_000, "min_size": 1_000},
    "rate_limiter": {"samples_per_insert": 64.0},
    "exploration": {"correlation": 0.98, "random_steps": 0},
    "evaluation": {"episodes": 10, "period_updates": 1_250},
}
# A row of the replay has 21 kB. Convolutions gain from int8-static only.
_PIXELS: dict[str, Any] = {
    "max_environment_steps": 100_000,
    "scheme": "int8-static",
    "replay": {"capacity": 100_000, "min_size": 1_000},
    "exploration": {"random_steps": 1_000},
}
# For stored data. Without actors, the evaluator may use more of the machine.
_STORED: dict[str, Any] = {
    "replay": {"prioritized": False},
    "publication": {"period_updates": 1_000},
    "evaluation": {"episodes": 10, "period_updates": 5_000, "share": 0.5},
}
# The data show more than random actions, so a run acts by its policy and learns from its first steps on.
_WITH_DATASET: dict[str, Any] = {"exploration": {"random_steps": 0}, "replay": {"min_size": 256}}
# Critics that overestimate actions which the data lack would misguide the policy (arXiv 2302.02948).
_CRITICS_WITH_DATASET: dict[str, dict[str, Any]] = {"sac": {"sac": {"layer_norm": True}}}
_OF_ALGORITHM: dict[str, dict[str, Any]] = {
    "dqn": {
        "max_environment_steps": 1_000_000,
        "dqn": {"hidden_sizes": (256, 256), "learning_rate": 5e-4, "target_update_period": 250},
        "replay": {"capacity": 100_000},
        "rate_limiter": {"samples_per_insert": 32.0},
    },
    "d4pg": {
        "max_environment_steps": 1_000_000,
        "environments_per_actor": 4,
        "replay": {"capacity": 1_000_000, "min_size": 1_000, "prioritized": False},
        "rate_limiter": {"samples_per_insert": 32.0, "error_buffer": 16_384.0},
        "exploration": {"noise": 0.3, "random_steps": 1_000},
        "publication": {"period_updates": 32},
        "evaluation": {"episodes": 5, "period_updates": 1_000},
        "actor": {"segment_length": 32},
    },
    "td3": merged(_ONE_UPDATE_PER_STEP, {"td3": {"learning_rate": 1e-3}, "exploration": {"noise": 0.1}}),
    "sac": _ONE_UPDATE_PER_STEP,
    "xqc": _ONE_UPDATE_PER_STEP,
    "td3bc": merged(_STORED, {"normalize_observations": True}),
    "iql": _STORED,
    "ppo": ON_POLICY,
    # A rollout of this preset takes less time than sending a policy to the actors.
    "impala": {**ON_POLICY, "queue": {"max_policy_lag": 32}},
}

_OF_FAMILY: dict[tuple[str, str], dict[str, Any]] = {
    ("dqn", "Acrobot"): {
        "max_environment_steps": 200_000,
        "dqn": {"hidden_sizes": (128, 128), "learning_rate": 1e-3, "target_update_period": 100},
        "replay": {"capacity": 50_000},
    },
    ("dqn", "MountainCar"): {
        "max_environment_steps": 500_000,
        "dqn": {"hidden_sizes": (128, 128), "learning_rate": 1e-3, "target_update_period": 200, "n_step": 10},
        "replay": {"capacity": 100_000},
        "actor": {"segment_length": 32},
        "normalize_observations": True,
    },
    ("dqn", "LunarLander"): {
        "max_environment_steps": 500_000,
        "dqn": {
            **{"hidden_sizes": (256, 256), "target_update_period": 250, "n_step": 3},
            **{"learning_rate": 6.3e-4, "learning_rate_end": 1e-4, "learning_rate_updates": 40_000},
        },
        "replay": {"capacity": 100_000},
        "exploration": {"epsilon": 0.4},
        "quantizer": {"gate": {"min_agreement": 0.9}},
        "evaluation": {"period_updates": 1_000},
    },
    ("dqn", "Atari"): {
        "environments_per_actor": 4,
        "max_environment_steps": 10_000_000,
        "scheme": "int8-static",
        "dqn": {"learning_rate": 1e-4, "batch_size": 32, "n_step": 3, "target_update_period": 2_000},
        "replay": {"capacity": 400_000, "min_size": 20_000, "clip_rewards": 1.0},
        "rate_limiter": {"samples_per_insert": 8.0},
        "exploration": {"epsilon": 0.4},
        "publication": {"period_updates": 200},
        "evaluation": {"episodes": 5, "period_updates": 20_000},
    },
    ("d4pg", "Pendulum"): {
        "max_environment_steps": 100_000,
        "d4pg": {"value_min": -1_500.0, "value_max": 0.0},
        "replay": {"capacity": 100_000},
        "evaluation": {"episodes": 10, "period_updates": 500},
    },
    ("d4pg", "MuJoCo"): {"d4pg": {"value_min": -200.0, "value_max": 1_500.0}},
    ("td3", "DM Control pixels"): _PIXELS,
    ("d4pg", "DM Control pixels"): _PIXELS,
    # An update of images costs as much as some hundred updates of vectors. Each actor step therefore gets half an
    # update of a small batch.
    ("sac", "DM Control pixels"): {
        **_PIXELS,
        "learner": {"precision": "auto"},
        "sac": {
            **{"batch_size": 128, "learning_rate": 3e-4, "target_rate": 0.01, "initial_temperature": 0.1},
            **{"random_shift": 4, "shared_encoder": True},
        },
        "rate_limiter": {"samples_per_insert": 64.0, "error_buffer": 8_192.0},
        # A calibration batch of pictures has megabytes.
        "publication": {"period_updates": 64, "calibration_size": 128},
        "evaluation": {"episodes": 5, "period_updates": 500},
    },
    ("td3", "Pendulum"): _PENDULUM,
    ("sac", "Pendulum"): {**_PENDULUM, "sac": {"learning_rate": 1e-3}},
    ("xqc", "Pendulum"): {**_PENDULUM, "xqc": {"learning_rate": 1e-3}},
    ("td3", "MountainCarContinuous"): {
        **_MOUNTAIN_CAR_CONTINUOUS,
        "td3": {"discount": 0.999},
        "rate_limiter": {"samples_per_insert": 128.0},
        "exploration": {"noise": 0.6, "correlation": 0.99, "random_steps": 0},
    },
    ("sac", "MountainCarContinuous"): _MOUNTAIN_CAR_CONTINUOUS,
    ("xqc", "MountainCarContinuous"): _MOUNTAIN_CAR_CONTINUOUS,
    ("td3", "Box2D"): {"max_environment_steps": 500_000, "replay": {"capacity": 500_000}},
    ("sac", "Box2D"): {"max_environment_steps": 500_000, "replay": {"capacity": 500_000}},
    ("xqc", "Box2D"): {"max_environment_steps": 500_000, "replay": {"capacity": 500_000}},
    **{("ppo", family): settings for family, settings in PPO_OF_FAMILY.items()},
    **{("impala", family): settings for family, settings in IMPALA_OF_FAMILY.items()},
}
# CartPole uses the defaults of the settings: docs/decisions/0008-cartpole-settings.md.
_WITHOUT = {("dqn", "CartPole")}

# Overrides the settings above: one actor with many environments, whose policy computes one large batch. Each transition
# is sampled a few times. There are fewer updates, so step sizes are larger and target networks move faster.
_MANY_ENVIRONMENTS: dict[str, Any] = {
    "actors": 1,
    "environments_per_actor": 32,
    "max_environment_steps": 10_000_000,
    "rate_limiter": {"samples_per_insert": 4.0},
    "publication": {"period_updates": 8},
}
_DATA_RICH_OF_ALGORITHM: dict[str, dict[str, Any]] = {
    "dqn": {
        **_MANY_ENVIRONMENTS,
        "dqn": {"batch_size": 512, "target_update_period": 50},
        "replay": {"capacity": 200_000},
        "evaluation": {"period_updates": 100},
    },
    "d4pg": {
        **_MANY_ENVIRONMENTS,
        "d4pg": {"policy_learning_rate": 2e-4, "critic_learning_rate": 1e-3, "target_update_period": 10},
        "rate_limiter": {"samples_per_insert": 1.0},
        "exploration": {"noise": 1.0},
        "evaluation": {"period_updates": 100},
    },
    "td3": {
        **_MANY_ENVIRONMENTS,
        "td3": {"batch_size": 512, "target_rate": 0.02},
        "evaluation": {"period_updates": 200},
    },
    "sac": {
        **_MANY_ENVIRONMENTS,
        "sac": {"batch_size": 512, "learning_rate": 1e-3, "target_rate": 0.02},
        "evaluation": {"period_updates": 200},
    },
}
_DATA_RICH_OF_FAMILY: dict[tuple[str, str], dict[str, Any]] = {
    ("dqn", "LunarLander"): {
        "dqn": {"learning_rate": 1e-3, "learning_rate_end": 1e-4, "learning_rate_updates": 8_000},
        "evaluation": {"period_updates": 250},
    },
    # Rewards are between 0 and 1.
    ("d4pg", "DM Control"): {"d4pg": {"value_min": 0.0, "value_max": 100.0}},
    ("td3", "Pendulum"): {"replay": {"capacity": 200_000}},
    ("sac", "Pendulum"): {"replay": {"capacity": 200_000}},
}
# Overrides the standard settings. There are fewer updates than steps, so step sizes are larger and target networks move
# faster, as in DATA_RICH. Batches stay small: a return needs many updates more than exact gradients.
_MEASURED: dict[str, Any] = {
    "actors": 1,
    # As many as the episodes of an evaluation, which then run all at once.
    "environments_per_actor": 20,
    "max_environment_steps": 10_000_000,
    "rate_limiter": {"samples_per_insert": 16.0, "error_buffer": 8_192.0},
    "evaluation": {"episodes": 20, "period_updates": 500, "share": 0.1},
    "learner": {"precision": "auto"},
}
_AUTO_OF_ALGORITHM: dict[str, dict[str, Any]] = {
    "td3": merged(_MEASURED, {"td3": {"target_rate": 0.02}}),
    "sac": merged(_MEASURED, {"sac": {"learning_rate": 1e-3, "target_rate": 0.02}}),
    "xqc": merged(_MEASURED, {"xqc": {"learning_rate": 1e-3, "target_rate": 0.02}}),
}
# Settings that the default algorithm of AUTO lacks, or that belong to another algorithm. With one of them, AUTO has the
# same default algorithm as the other presets.
_WITHOUT_AUTO = ("memory", "sparsity", "network", "encoders", "policies", "dataset", "init_from", "sac")
# Robots that can fall need fewer updates with n-step returns. HalfCheetah, which cannot fall, needs more.
_FALLING, _FALLING_N_STEP = ("Hopper-v*", "Walker2d-v*", "Ant-v*", "Humanoid-v*"), 3


def family_of(environment: str) -> Family:
    """The family of an environment's id."""
    return next(family for family in FAMILIES if any(fnmatchcase(environment, pattern) for pattern in family.patterns))


def default_algorithm(environment: str, name: str = STANDARD, given: Collection[str] = ()) -> str:
    """The algorithm of a run without --algorithm. name: of the preset. given: names of given settings and sections."""
    family = family_of(environment)
    is_auto = name == AUTO and family.auto and not any(each in given for each in _WITHOUT_AUTO)
    return family.auto if is_auto else family.algorithm


def preset(algorithm: str, environment: str, name: str = STANDARD) -> dict[str, Any]:
    """The settings for an algorithm on an environment, as a tree; empty for algorithms that are not built in."""
    family = family_of(environment).name
    pair = (algorithm, family)
    settings = {} if pair in _WITHOUT else merged(_OF_ALGORITHM.get(algorithm, {}), _OF_FAMILY.get(pair, {}))
    if name == STANDARD:
        return settings
    if name == AUTO:
        falls = algorithm in _AUTO_OF_ALGORITHM and any(fnmatchcase(environment, pattern) for pattern in _FALLING)
        own = {algorithm: {"n_step": _FALLING_N_STEP}} if falls else {}
        return merged(settings, _AUTO_OF_ALGORITHM.get(algorithm, {}), own)
    rich = merged(_DATA_RICH_OF_ALGORITHM.get(algorithm, {}), _DATA_RICH_OF_FAMILY.get(pair, {}))
    return merged(settings, rich)


def with_preset(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings, merged over those of their preset."""
    like = tree.get("like")
    environment = tree.get("environment", "CartPole-v1") if like is None else like
    if not isinstance(environment, str):
        return dict(tree)
    given, name = tree.get("algorithm"), tree.get("preset", STANDARD)
    algorithm = default_algorithm(environment, name, tree) if given is None else given
    below = preset(algorithm, environment, name) if isinstance(algorithm, str) and isinstance(name, str) else {}
    memory = tree.get("memory") if name == STANDARD else None
    remembering = preset_with_memory(memory, algorithm, family_of(environment).name)
    dataset = tree.get("dataset")
    has_dataset = isinstance(dataset, Mapping) and dataset.get("source") and isinstance(algorithm, str)
    of_dataset = merged(_WITH_DATASET, _CRITICS_WITH_DATASET.get(algorithm, {})) if has_dataset else {}
    return merged(below, remembering, of_dataset, {**tree, "algorithm": algorithm})


def descriptions() -> Iterator[tuple[str, str]]:
    """The purpose of each preset and its settings, written as flags. Later presets override earlier ones."""
    for suffix, of_algorithm, of_family, without in (
        ("", _OF_ALGORITHM, _OF_FAMILY, _WITHOUT),
        (f", {DATA_RICH}", _DATA_RICH_OF_ALGORITHM, _DATA_RICH_OF_FAMILY, ()),
        (f", {AUTO}", _AUTO_OF_ALGORITHM, {}, ()),
        (", with memory", WITH_MEMORY, WITH_MEMORY_OF_FAMILY, ()),
    ):
        for algorithm, settings in of_algorithm.items():
            yield f"{algorithm}{suffix}", _flags(settings)
            for family in FAMILIES:
                pair = (algorithm, family.name)
                if pair in without:
                    yield f"{algorithm} on {family.name}{suffix}", "none of these, but the defaults below"
                elif pair in of_family:
                    yield f"{algorithm} on {family.name}{suffix}", _flags(of_family[pair])
    yield "with a data set", _flags(_WITH_DATASET)
    for algorithm, settings in _CRITICS_WITH_DATASET.items():
        yield f"{algorithm}, with a data set", _flags(settings)
    robots = ", ".join(pattern.removesuffix("-v*") for pattern in _FALLING)
    for algorithm in _AUTO_OF_ALGORITHM:
        yield f"{algorithm} on {robots}, {AUTO}", _flags({algorithm: {"n_step": _FALLING_N_STEP}})


def _flags(tree: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value)}".replace("_", "-") for name, value in flat(tree))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
