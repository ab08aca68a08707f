"""One run of Stable-Baselines3's PPO with several agents, in a separate process: JSON in on stdin.

`python -m benchmarks.libraries.peer_runs.stable_baselines3_agents`. Each agent is a row of one vector environment, as
in ActorQ, so that all agents share the policy. Agents must take part until the time limit of the episode.

All settings are those of `benchmarks.training.agents.tasks`, also first weights and Adam's epsilon. It waits for a
rollout before it learns, and for the new policy before the next rollout.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.libraries.peer_runs.lives import make
from benchmarks.libraries.peer_runs.schedule import EvaluationSchedule
from benchmarks.libraries.peer_runs.telling import tell

# The parent process ends the run, so there are always enough steps.
_STEPS = 1_000_000_000
# Episodes of an evaluation that are played at once.
_AT_ONCE = 25

Observations = NDArray[np.float32]


class TeamRows:
    """N parallel environments with A agents, as N * A rows. Row n * A + a is agent a of environment n."""

    def __init__(self, environment: str, count: int, seed: int) -> None:
        self._environments = [make(environment) for _ in range(count)]
        self._seeds: list[int | None] = [seed + number for number in range(count)]
        self.agents = list(self._environments[0].possible_agents)
        self.rows = count * len(self.agents)
        self.observation_space = self._environments[0].observation_space(self.agents[0])
        self.action_space = self._environments[0].action_space(self.agents[0])

    def reset(self) -> Observations:
        """Begin an episode in each environment. Only the first episodes have seeds."""
        seen = [each.reset(seed=seed)[0] for each, seed in zip(self._environments, self._seeds, strict=True)]
        self._seeds = [None] * len(self._seeds)
        return np.stack([observations[agent] for observations in seen for agent in self.agents]).astype(np.float32)

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Observations, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Act in all rows. An environment whose episode ends begins the next one.

        Returns observations, rewards, ends and infos of all rows. The info of an end has the last observation.
        """
        observations, rewards = np.empty((self.rows, *self.observation_space.shape), np.float32), np.empty(self.rows)
        ends = np.zeros(self.rows, np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in range(self.rows)]
        for number, environment in enumerate(self._environments):
            first = number * len(self.agents)
            own = {agent: actions[first + index].item() for index, agent in enumerate(self.agents)}
            seen, given, *_ = environment.step(own)
            rows = range(first, first + len(self.agents))
            if not environment.agents:
                for row, agent in zip(rows, self.agents, strict=True):
                    infos[row] = {"terminal_observation": seen[agent], "TimeLimit.truncated": True}
                ends[first : rows.stop] = True
                seen, _ = environment.reset()
            for row, agent in zip(rows, self.agents, strict=True):
                observations[row], rewards[row] = seen[agent], given.get(agent, 0.0)
        return observations, rewards.astype(np.float32), ends, infos


def team_returns(rows: TeamRows, act: Callable[[Observations], NDArray[Any]], episodes: int) -> list[float]:
    """The returns of at least `episodes` episodes, which are all equally long: sums over the agents of a team."""
    found: list[float] = []
    observations = rows.reset()
    totals = np.zeros(rows.rows)
    while len(found) < episodes:
        observations, rewards, ends, _ = rows.step(act(observations))
        totals += rewards
        if ends.any():
            assert ends.all()
            found += totals.reshape(-1, len(rows.agents)).sum(axis=1).tolist()
            totals[:] = 0.0
    return found


def learn(
    task: str,
    environment: str,
    seed: int,
    episodes: int,
    period: int,
    share: float,
    lives: int,
    settings: dict[str, Any],
) -> None:
    """Learn, and tell the mean of `episodes` greedy episodes as often as EvaluationSchedule allows.

    lives: 1, because agents cannot leave. settings: those of PPO, by name.
    """
    assert lives == 1
    # Not a dependency of this project: the run's environment has it.
    library = importlib.import_module("stable_baselines3")
    evaluated = TeamRows(environment, min(episodes, _AT_ONCE), 10_000 + seed)
    rows = TeamRows(environment, settings["environments"], seed)
    model = library.PPO("MlpPolicy", _vector(rows), seed=seed, device="cpu", **arguments(settings))
    schedule = EvaluationSchedule(period, share)

    def act(observations: Observations) -> NDArray[Any]:
        chosen: NDArray[Any] = model.predict(observations, deterministic=True)[0]
        return chosen

    def after_step(*_: object) -> bool:
        # It counts a step of each row.
        steps = model.num_timesteps // len(rows.agents)
        if schedule.is_due(steps):
            began = time.monotonic()
            mean_return = float(np.mean(team_returns(evaluated, act, episodes)))
            seconds = time.monotonic() - began
            schedule.ended(steps, seconds)
            tell("evaluated", environment_steps=steps, mean_return=mean_return, seconds=seconds)
        return True

    tell("started")
    model.learn(_STEPS, callback=after_step)


def arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `PPO`. settings: those of `benchmarks.training.agents.tasks.Settings`, by name."""
    sizes = list(settings["hidden_sizes"])
    assert settings["activation"] == "tanh"
    return {
        "n_steps": settings["rollout_size"] // settings["environments"],
        "batch_size": settings["batch_size"],
        "n_epochs": settings["epochs"],
        "learning_rate": settings["learning_rate"],
        "gamma": settings["discount"],
        "gae_lambda": settings["gae_lambda"],
        "clip_range": settings["clip"],
        "ent_coef": settings["entropy_cost"],
        # It weights the squared error, without the half.
        "vf_coef": settings["value_cost"] / 2,
        "max_grad_norm": settings["max_gradient_norm"],
        "policy_kwargs": {"net_arch": {"pi": sizes, "vf": sizes}},
    }


def _vector(rows: TeamRows) -> Any:
    """The rows in the library's own class."""
    base = importlib.import_module("stable_baselines3.common.vec_env").VecEnv

    class Vector(base):  # type: ignore[misc, valid-type]
        """Passes all calls on."""

        def reset(self) -> Observations:
            return rows.reset()

        def step_async(self, actions: NDArray[Any]) -> None:
            self._actions = actions

        def step_wait(self) -> Any:
            return rows.step(self._actions)

        def close(self) -> None:
            return None

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * rows.rows

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            return None

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * rows.rows

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * rows.rows

    return Vector(rows.rows, rows.observation_space, rows.action_space)


if __name__ == "__main__":
    learn(**json.load(sys.stdin))
