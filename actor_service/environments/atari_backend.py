"""Atari games of the Arcade Learning Environment, `ALE/GAME-v5`, with the usual preprocessing.

Machado et al., arXiv 1709.06009, with the frames of Mnih et al., Nature 518 (2015): each action is repeated for four
frames, of the last two the brighter pixels are taken, in grey, shrunk to 84x84. An episode begins with up to 30 no-ops,
as many as its seed says, and ends with the game and not with a life. As in version 5 of the games an action is
replaced by the one before with probability 0.25 (sticky actions), and only the actions that the game knows are offered.
Rewards are the game's: who wants them clipped clips them in the learner.
"""

from typing import Any

import ale_py
import gymnasium
import numpy as np
from numpy.typing import NDArray

from actor_service.environments.loop import LoopedEnvironments
from actorq.domain.trajectory import ArraySpec, EnvironmentSpec

FRAME_SKIP, FRAME_STACK, SIZE, MOST_NO_OPS = 4, 4, 84, 30
FRAMES_PER_SECOND = 60
# Half an hour of play.
MOST_FRAMES = 108_000


def make(
    environment_id: str,
    count: int,
    rendered: bool,
    /,
    *,
    mode: int | None = None,
    difficulty: int | None = None,
    repeat_action_probability: float = 0.25,
    full_action_space: bool = False,
) -> LoopedEnvironments:
    """A batch of a game. Other arguments of the games are part of the preprocessing."""
    gymnasium.register_envs(ale_py)

    def single() -> AtariGame:
        game = gymnasium.make(
            environment_id,
            frameskip=1,
            obs_type="ram",
            max_num_frames_per_episode=MOST_FRAMES,
            disable_env_checker=True,
            mode=mode,
            difficulty=difficulty,
            repeat_action_probability=repeat_action_probability,
        )
        return AtariGame(game, full_action_space)

    singles = [single() for _ in range(count)]
    spec = EnvironmentSpec(
        environment_id=environment_id,
        observations=ArraySpec((SIZE, SIZE), "uint8"),
        actions=ArraySpec((), "int64"),
        discrete_actions=singles[0].actions,
        max_episode_steps=MOST_FRAMES // FRAME_SKIP,
        frame_stack=FRAME_STACK,
    )
    return LoopedEnvironments(spec, singles, single, limit=0)


class AtariGame:
    """One game as the loop calls it; observations are single frames uint8[84, 84]."""

    def __init__(self, game: gymnasium.Env[Any, Any], full_action_space: bool = False) -> None:
        self._game = game
        self.metadata = {"render_fps": FRAMES_PER_SECOND / FRAME_SKIP}
        # Asked directly: the environment around it would fetch and copy what is not needed of each frame.
        self._ale: Any = game.unwrapped.ale  # type: ignore[attr-defined]
        self._moves = list(self._ale.getLegalActionSet() if full_action_space else self._ale.getMinimalActionSet())
        self.actions = len(self._moves)
        height, width = self._ale.getScreenDims()
        self._frames = np.zeros((2, height, width), np.uint8)
        self._shrink = AreaShrinking(height, width, SIZE, SIZE)
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode; a seed sets the emulator's randomness and the number of no-ops."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._game.reset(seed=seed)
        for _ in range(int(self._rng.integers(1, MOST_NO_OPS + 1))):
            self._ale.act(self._moves[0])
            if self._ale.game_over():
                self._ale.reset_game()
        self._ale.getScreenGrayscale(self._frames[0])
        return self._shrink(self._frames[0]), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Repeat an action for four frames, fewer at the game's end."""
        reward, seen, act, move = 0.0, 0, self._ale.act, self._moves[action]
        for frame in range(FRAME_SKIP):
            reward += act(move)
            over = self._ale.game_over()
            if frame >= FRAME_SKIP - 2 or over:
                self._ale.getScreenGrayscale(self._frames[seen])
                seen += 1
            if over:
                break
        brightest = self._frames.max(axis=0) if seen == 2 else self._frames[0]
        terminated = self._ale.game_over(with_truncation=False)
        truncated = self._ale.game_truncated()
        return self._shrink(brightest), reward, terminated, truncated, {}

    def render(self) -> NDArray[np.uint8]:
        """The screen as a player sees it."""
        pixels: NDArray[np.uint8] = self._ale.getScreenRGB()
        return pixels

    def close(self) -> None:
        """Release it."""
        self._game.close()


class AreaShrinking:
    """Shrinks images so that each new pixel is the mean of the area that it covers."""

    def __init__(self, height: int, width: int, new_height: int, new_width: int) -> None:
        self._rows = _shares(height, new_height)
        self._columns = _shares(width, new_width)

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """uint8[height, width] to uint8[new height, new width], rounded to the nearest."""
        rows = _weighted(image, *self._rows, axis=0)
        return (_weighted(rows, *self._columns, axis=1) + np.float32(0.5)).astype(np.uint8)


def _shares(size: int, new_size: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """For each new pixel along an axis the old ones below it, and what share of it each of them is: [K, new_size]."""
    edges = np.arange(new_size + 1) * (size / new_size)
    reach = int(np.ceil(size / new_size)) + 1
    old = np.floor(edges[:-1])[None] + np.arange(reach)[:, None]
    covered = np.clip(np.minimum(old + 1, edges[1:]) - np.maximum(old, edges[:-1]), 0.0, None) * (new_size / size)
    return np.minimum(old, size - 1).astype(np.intp), covered.astype(np.float32)


def _weighted(
    image: NDArray[Any], indices: NDArray[np.intp], shares: NDArray[np.float32], axis: int
) -> NDArray[np.float32]:
    total = np.zeros((), np.float32)
    for index, share in zip(indices, shares, strict=True):
        total = total + image.take(index, axis=axis) * np.expand_dims(share, 1 - axis)
    return total
