"""Suggests the setting that a user probably means, by its other names and by its spelling."""

import difflib
from collections.abc import Iterable

from actorq import ENVIRONMENT_PREFIX

SYNONYMS: dict[str, tuple[str, ...]] = {
    "agent": ("algorithm",),
    "algo": ("algorithm",),
    "batch": ("batch_size",),
    "beta": ("replay.importance_exponent",),
    "buffer_size": ("replay.capacity",),
    "clip_coef": ("clip",),
    "clip_epsilon": ("clip",),
    "clip_range": ("clip",),
    "continue": ("resume",),
    "cuda": ("learner.device",),
    "ent_coef": ("entropy_cost",),
    "entropy_coefficient": ("entropy_cost",),
    "env": ("environment",),
    "env_args": ("environment_args",),
    "env_id": ("environment",),
    "env_kwargs": ("environment_args",),
    "env_name": ("environment",),
    "envs": ("environments_per_actor",),
    "eps": ("exploration.epsilon",),
    "eval_episodes": ("evaluation.episodes",),
    "eval_freq": ("evaluation.period_updates",),
    "gae": ("gae_lambda",),
    "gamma": ("discount",),
    "gpu": ("learner.device",),
    "gradient_clip": ("max_gradient_norm",),
    "gru": ("memory.kind",),
    "her": ("hindsight.copies",),
    "hidden": ("hidden_sizes", "policy_sizes"),
    "hidden_layers": ("hidden_sizes", "policy_sizes"),
    "hidden_size": ("hidden_sizes", "policy_sizes"),
    "layers": ("hidden_sizes", "policy_sizes"),
    "learning_starts": ("replay.min_size",),
    "log_dir": ("run_directory",),
    "lr": ("learning_rate", "policy_learning_rate"),
    "lstm": ("memory.kind",),
    "max_grad_norm": ("max_gradient_norm",),
    "max_steps": ("max_environment_steps",),
    "memory_size": ("replay.capacity",),
    "minibatch_size": ("batch_size",),
    "n_actors": ("actors",),
    "n_envs": ("environments_per_actor",),
    "n_epochs": ("epochs",),
    "n_eval_episodes": ("evaluation.episodes",),
    "n_steps": ("rollout_size", "n_step"),
    "n_workers": ("actors",),
    "net_arch": ("hidden_sizes", "policy_sizes"),
    "norm_obs": ("normalize_observations",),
    "num_actors": ("actors",),
    "num_envs": ("environments_per_actor",),
    "num_epochs": ("epochs",),
    "num_steps": ("rollout_size", "n_step"),
    "num_workers": ("actors",),
    "out": ("run_directory",),
    "output_dir": ("run_directory",),
    "per": ("replay.prioritized",),
    "polyak": ("target_rate",),
    "quantization": ("scheme",),
    "random_seed": ("seed",),
    "replay_ratio": ("rate_limiter.samples_per_insert",),
    "replay_size": ("replay.capacity",),
    "reward_threshold": ("target_return",),
    "rollout_length": ("rollout_size",),
    "run_dir": ("run_directory",),
    "steps": ("max_environment_steps",),
    "target_network_frequency": ("target_update_period",),
    "target_reward": ("target_return",),
    "target_update_interval": ("target_update_period",),
    "tau": ("target_rate",),
    "threads": ("learner.torch_threads",),
    "time_limit": ("max_seconds",),
    "timesteps": ("max_environment_steps",),
    "total_steps": ("max_environment_steps",),
    "total_timesteps": ("max_environment_steps",),
    "vf_coef": ("value_cost",),
    "warmup_steps": ("replay.min_size",),
    "workers": ("actors",),
}
"""Names in other libraries, and the settings here with the same meaning: whole names, or the last part of a name."""


# Sections of algorithms that only runs with stored data use.
_RARE = ("td3bc.", "iql.")


def suggestion(name: str, known: Iterable[str], preferred: str = "") -> str:
    """The known name that the user probably means, as a clause of an error; empty if there is none.

    Names are flags, dotted settings or environment variables. Names that begin with `preferred` come first.
    """

    def order(each: str) -> tuple[object, ...]:
        is_other = not (preferred and each.startswith(preferred))
        return is_other, _plain(each).startswith(_RARE), len(each), each

    ordered = sorted(known, key=order)
    if not _plain(name).startswith("no_"):
        ordered = [each for each in ordered if not each.startswith("--no-")]
    found = next((each for group in (_meant, _completed, _near) for each in group(name, ordered)), "")
    return f"; did you mean {found!r}?" if found else ""


def _meant(name: str, ordered: list[str]) -> list[str]:
    """Known names that match the name in another notation, or match one of its synonyms."""
    section, _, last = _plain(name).rpartition(".")
    meanings = (last, *SYNONYMS.get(last, ()))
    plain = {each: _plain(each) for each in ordered}
    same_section = [
        each for meaning in meanings for each in ordered if plain[each] == f"{section}.{meaning}".strip(".")
    ]
    anywhere = [each for meaning in meanings[1:] for each in ordered if f".{plain[each]}".endswith(f".{meaning}")]
    return [*same_section, *anywhere]


def _completed(name: str, ordered: list[str]) -> list[str]:
    """Known names that begin or end with the name."""
    bare = name.removeprefix("--")
    ending = [each for each in ordered if bare and each.endswith(f".{bare}")]
    return [*ending, *(each for each in ordered if len(bare) > 2 and each.startswith(name))]


def _near(name: str, ordered: list[str]) -> list[str]:
    """The known name with the most similar spelling."""
    return difflib.get_close_matches(name, ordered, n=1, cutoff=0.6)


def _plain(name: str) -> str:
    """A flag, setting or variable, as a dotted setting."""
    return name.lower().removeprefix("--").removeprefix(ENVIRONMENT_PREFIX.lower()).replace("__", ".").replace("-", "_")
