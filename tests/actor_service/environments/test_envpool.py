"""EnvPool's tasks are those of their libraries: same spec, and from the same state the same step."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.environments import describe_environment, make_environments
from actor_service.environments.envpool_backend import PooledEnvironments, task_name
from actorq.errors import UserError

# Some of each family; of these EnvPool gives more to observe than the task does, or in another order.
IDS = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Pendulum-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "HalfCheetah-v5",
    "Humanoid-v5",
    "ALE/Pong-v5",
    "dm_control/walker-walk",
    "dm_control/finger-spin",
    "dm_control/fish-swim",
    "dm_control/humanoid-run_pure_state",
    "dm_control/quadruped-walk",
    "dm_control/humanoid_CMU-stand",
]


@pytest.mark.parametrize("environment_id", IDS)
def test_the_spec_is_that_of_the_python_backend(environment_id: str) -> None:
    spec = describe_environment(environment_id, "envpool")
    assert spec == describe_environment(environment_id)
    batch = make_environments(environment_id, 2, "envpool")
    assert batch.reset(1).shape == (2, *spec.observations.shape)
    batch.close()


@pytest.mark.parametrize(
    ("environment_id", "name"),
    [
        ("dm_control/cheetah-run", "CheetahRun-v1"),
        ("dm_control/ball_in_cup-catch", "BallInCupCatch-v1"),
        ("dm_control/humanoid-run_pure_state", "HumanoidRunPureState-v1"),
        ("ALE/Pong-v5", "Pong-v5"),
        ("CartPole-v1", "CartPole-v1"),
    ],
)
def test_the_task_name_of_an_environment_in_envpool(environment_id: str, name: str) -> None:
    assert task_name(environment_id) == name


@pytest.mark.parametrize(
    ("environment_id", "fact"),
    [
        ("environment_doubles:Counting-v0", "no environment_doubles:Counting-v0"),
        ("dm_control/cheetah-sleep", "no CheetahSleep-v1"),
        ("dm_control/lqr-lqr_2_1", "not verified"),
    ],
)
def test_a_task_that_envpool_lacks_or_defines_differently_is_refused(environment_id: str, fact: str) -> None:
    with pytest.raises(UserError, match=f"{fact}.*--environment-backend"):
        describe_environment(environment_id, "envpool")


def compare(environment_id: str, other: Any, actions: NDArray[Any], tolerance: float = 1e-4) -> None:
    """Step EnvPool's environment, and `other(observation, action)` from the state in each observation."""
    batch = make_environments(environment_id, 1, "envpool")
    observations = batch.reset(3).copy()
    for action in actions:
        step = batch.step(action[None])
        if step.valid[0]:
            expected, reward, terminated = other(observations[0], action)
            np.testing.assert_allclose(step.observations[0], expected, atol=tolerance, rtol=tolerance)
            assert step.rewards[0] == pytest.approx(reward, abs=tolerance)
            assert step.terminated[0] == terminated
        observations = step.observations.copy()
    batch.close()


@pytest.mark.parametrize(
    ("environment_id", "count", "threads"), [("CartPole-v1", 3, 1), ("HalfCheetah-v5", 2, 2), ("HalfCheetah-v5", 5, 4)]
)
def test_only_environments_that_cost_more_than_a_thread_get_several(
    environment_id: str, count: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    environments = make_environments(environment_id, count, "envpool")
    assert isinstance(environments, PooledEnvironments)
    assert environments._pool.spec.config.num_threads == threads
    environments.close()


def test_cartpole_steps_alike() -> None:
    environment = gymnasium.make("CartPole-v1", max_episode_steps=-1).unwrapped

    def step(observation: NDArray[Any], action: Any) -> tuple[Any, ...]:
        environment.reset()
        environment.state = observation.astype(np.float64)  # type: ignore[attr-defined]
        return environment.step(int(action))[:3]

    compare("CartPole-v1", step, np.random.default_rng(0).integers(2, size=200), 1e-5)


def test_pendulum_steps_alike() -> None:
    environment = gymnasium.make("Pendulum-v1", max_episode_steps=-1).unwrapped

    def step(observation: NDArray[Any], action: Any) -> tuple[Any, ...]:
        environment.reset()
        cosine, sine, speed = observation.astype(np.float64)
        environment.state = np.array([np.arctan2(sine, cosine), speed])  # type: ignore[attr-defined]
        return environment.step(action)[:3]

    actions = np.random.default_rng(0).uniform(-2, 2, (250, 1)).astype(np.float32)
    compare("Pendulum-v1", step, actions, 1e-3)


def test_the_cheetah_of_dm_control_steps_alike() -> None:
    from dm_control import suite

    environment = suite.load("cheetah", "run", task_kwargs={"time_limit": float("inf")})
    environment.reset()

    def step(observation: NDArray[Any], action: Any) -> tuple[Any, ...]:
        # All but how far it has run, which changes nothing.
        with environment.physics.reset_context():
            environment.physics.data.qpos[:] = [0.0, *observation[:8]]
            environment.physics.data.qvel[:] = observation[8:]
        taken = environment.step(action)
        return np.concatenate(list(taken.observation.values())), taken.reward, False

    actions = np.random.default_rng(0).uniform(-1, 1, (60, 6)).astype(np.float32)
    compare("dm_control/cheetah-run", step, actions, 5e-3)
