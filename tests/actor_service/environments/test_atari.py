"""Atari's preprocessing, against a slow reference on the emulator itself."""

from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.environments import describe_environment, make_environments
from actor_service.environments.atari_backend import AreaShrinking
from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError


def area_mean(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float64]:
    """The mean of the area under each new pixel, by making all pixels so small that they fit."""
    fine = np.kron(image.astype(np.float64), np.ones((height, width)))
    tall, wide = image.shape
    means: NDArray[np.float64] = fine.reshape(height, tall, width, wide).mean(axis=(1, 3))
    return means


@pytest.mark.parametrize("size", [(21, 16), (10, 10), (7, 5)])
def test_shrinking_takes_the_mean_of_each_area(size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    shrunk = AreaShrinking(*size, 4, 3)(image)
    assert shrunk.dtype == np.uint8
    assert np.abs(shrunk - area_mean(image, 4, 3)).max() <= 0.5 + 1e-3


def test_the_spec_tells_single_frames_and_how_many_are_stacked() -> None:
    spec = describe_environment("ALE/Pong-v5")
    assert spec.observations == ArraySpec((84, 84), "uint8")
    assert spec.policy_observations.shape == (4, 84, 84)
    # Pong's own six actions out of eighteen; half an hour of play in steps of four frames.
    assert (spec.acting_size, spec.max_episode_steps, spec.frame_stack) == (6, 27_000, 4)


def test_a_step_is_four_frames_of_which_the_last_two_are_kept() -> None:
    gymnasium.register_envs(ale_py)
    batch = make_environments("ALE/Breakout-v5", 1)
    batch.reset(3)
    game: Any = gymnasium.make("ALE/Breakout-v5", frameskip=1, obs_type="grayscale")
    game.reset(seed=3)
    for _ in range(int(np.random.default_rng(3).integers(1, 31))):
        game.step(0)
    shrink = AreaShrinking(210, 160, 84, 84)
    rewards = 0.0
    for action in np.random.default_rng(1).integers(4, size=150):
        step = batch.step(np.array([action]))
        frames, expected = [], 0.0
        for _ in range(4):
            frame, reward, terminated, truncated, _ = game.step(int(action))
            frames.append(frame)
            expected += float(reward)
            if terminated or truncated:
                break
        np.testing.assert_array_equal(step.observations[0], shrink(np.maximum(*frames[-2:])))
        assert step.rewards[0] == expected
        assert bool(step.terminated[0]) == terminated
        rewards += expected
        if terminated:
            break
    # Rewards came, and with lives lost the game went on.
    assert rewards > 0
    assert game.unwrapped.ale.lives() < 5


def test_actions_stick() -> None:
    # The same seed with other actions sticks at the same frames; with sticky actions the emulator's own seed matters.
    batch = make_environments("ALE/Breakout-v5", 1)
    assert batch._singles[0]._ale.getFloat("repeat_action_probability") == 0.25  # type: ignore[attr-defined]
    batch.close()


def test_an_unknown_game_is_one_line_for_the_user() -> None:
    with pytest.raises(UserError, match="'ALE/NoSuchGame-v5'"):
        describe_environment("ALE/NoSuchGame-v5")
