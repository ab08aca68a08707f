"""One run of Stable-Baselines3 on a task of peers.py, in a separate process: JSON in on stdin.

Dict observations with MultiInputPolicy, masks with sb3-contrib's MaskablePPO, goals with HerReplayBuffer. PPO has the
settings of its zoo for CartPole-v1, whose episodes are as short. Hindsight has the settings of the library's own tests
of bit flipping, with wider layers, and for the point those of the zoo for FetchReach. All other settings are defaults.
Evaluations are greedy, in a separate environment.
"""

import importlib
import json
import statistics
import sys
import time
from typing import Any

from benchmarks.libraries.peer_runs.stable_baselines3_settings import SETTINGS
from benchmarks.libraries.peer_runs.telling import tell

_STEPS = 100_000_000
_PPO = SETTINGS["stable-baselines3"]["ppo/CartPole-v1"]
_COPIES = {"n_sampled_goal": 4, "goal_selection_strategy": "future"}
_REACH = {
    "learning_rate": 1e-3,
    "batch_size": 256,
    "gamma": 0.95,
    "learning_starts": 1_000,
    "replay_buffer_kwargs": _COPIES,
    "policy_kwargs": {"net_arch": [64, 64]},
}
_BITS = {
    "learning_rate": 1e-3,
    "batch_size": 128,
    "learning_starts": 500,
    "tau": 0.05,
    "target_update_interval": 1,
    "train_freq": 1,
    "exploration_fraction": 10_000 / _STEPS,
    "replay_buffer_kwargs": _COPIES,
    "policy_kwargs": {"net_arch": [256, 256]},
    "buffer_size": 100_000,
}


def learn(
    environment: str, arguments: dict[str, Any], kind: str, seed: int, target: float, episodes: int, period: int
) -> None:
    """Learn until the score of `episodes` greedy episodes, every `period` steps, is at least `target`.

    kind: "arrays", "mask", "goals, point" or "goals, bits". The score of goals is the success rate, else it is the mean
    return.
    """
    gymnasium = importlib.import_module("gymnasium")

    def made() -> Any:
        found = gymnasium.make(environment, **arguments)
        if kind == "mask":
            masker = importlib.import_module("sb3_contrib.common.wrappers").ActionMasker
            found = masker(found, lambda masked: masked.unwrapped.allowed)
        return importlib.import_module("stable_baselines3.common.monitor").Monitor(found)

    evaluated = made()
    evaluated.reset(seed=10_000 + seed)
    model = _model(kind, made, seed)

    def after_step(*_: object) -> bool:
        if model.num_timesteps % period:
            return True
        began = time.monotonic()
        score = statistics.fmean(_episode(model, evaluated, kind) for _ in range(episodes))
        tell(
            "evaluated",
            environment_steps=model.num_timesteps,
            mean_return=score,
            seconds=time.monotonic() - began,
        )
        return score < target

    tell("started")
    model.learn(_STEPS, callback=after_step)


def _model(kind: str, made: Any, seed: int) -> Any:
    library = importlib.import_module("stable_baselines3")
    if kind.startswith("goals"):
        make, settings = (library.SAC, _REACH) if kind == "goals, point" else (library.DQN, _BITS)
        replay = library.HerReplayBuffer
        return make("MultiInputPolicy", made(), replay_buffer_class=replay, seed=seed, device="cpu", **settings)
    vector = importlib.import_module("stable_baselines3.common.vec_env").DummyVecEnv([made] * _PPO.environments)
    if kind == "mask":
        masked = importlib.import_module("sb3_contrib").MaskablePPO
        return masked("MlpPolicy", vector, seed=seed, device="cpu", **_PPO.all_arguments())
    return library.PPO("MultiInputPolicy", vector, seed=seed, device="cpu", **_PPO.all_arguments())


def _episode(model: Any, environment: Any, kind: str) -> float:
    """The return of a greedy episode, or its success."""
    observation, _ = environment.reset()
    total, over, info = 0.0, False, dict[str, Any]()
    while not over:
        masks = {"action_masks": environment.unwrapped.allowed} if kind == "mask" else {}
        action, _ = model.predict(observation, deterministic=True, **masks)
        observation, reward, terminated, truncated, info = environment.step(action)
        total, over = total + float(reward), bool(terminated or truncated)
    return float(info["is_success"]) if kind.startswith("goals") else total


if __name__ == "__main__":
    learn(**json.load(sys.stdin))
