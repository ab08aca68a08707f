"""Atari games of the Arcade Learning Environment, `ALE/GAME-v5`, with the standard preprocessing.

The protocol follows Machado et al., arXiv 1709.06009; the frames follow Mnih et al., Nature 518 (2015). Each action is
repeated for four frames. The observation is the pixel-wise maximum of the last two frames, in gray, shrunk to 84x84.

An episode begins with 1 to 30 no-ops, drawn from its seed. It ends with the game, not with a life. With probability
0.25 the previous action replaces the chosen one (sticky actions, as in version 5). Only the game's minimal actions are
offered. Rewards are not clipped; the learner can clip them.
"""

from typing import Any

import ale_py
import gymnasium
import numpy as np
from numpy.typing import NDArray

from actor_service.environments.loop import LoopedEnvironments
from actorq.domain.spaces import ArraySpec, EnvironmentSpec

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
    """A batch of a game. The preprocessing fixes all other arguments of the games."""
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
        sizes=(singles[0].actions,),
        max_episode_steps=MOST_FRAMES // FRAME_SKIP,
        frame_stack=FRAME_STACK,
    )
    return LoopedEnvironments(spec, singles, single, limit=0)


class AtariGame:
    """One game, as `LoopedEnvironments` steps it. Observations are single frames uint8[84, 84]."""

    def __init__(self, game: gymnasium.Env[Any, Any], full_action_space: bool = False) -> None:
        self._game = game
        self.metadata = {"render_fps": FRAMES_PER_SECOND / FRAME_SKIP}
        # The emulator is called directly, because the Gymnasium environment copies unneeded data for each frame.
        self._ale: Any = game.unwrapped.ale  # type: ignore[attr-defined]
        self._moves = list(self._ale.getLegalActionSet() if full_action_space else self._ale.getMinimalActionSet())
        self.actions = len(self._moves)
        height, width = self._ale.getScreenDims()
        self._frames = np.zeros((2, height, width), np.uint8)
        self._shrink = AreaShrinking(height, width, SIZE, SIZE)
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode. A seed sets the emulator's randomness and the number of no-ops."""
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
        """Repeat an action for four frames, or fewer at the game's end."""
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
        """The screen in color, uint8[height, width, 3]."""
        pixels: NDArray[np.uint8] = self._ale.getScreenRGB()
        return pixels

    def close(self) -> None:
        """Close the game."""
        self._game.close()


class AreaShrinking:
    """Shrinks images. Each new pixel is the mean of the area that it covers."""

    def __init__(self, height: int, width: int, new_height: int, new_width: int) -> None:
        self._rows = _shares(height, new_height)
        self._columns = _shares(width, new_width)

    def __call__(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Shrink uint8[height, width] to uint8[new height, new width], rounded to the nearest."""
        rows = _weighted(image, *self._rows, axis=0)
        return (_weighted(rows, *self._columns, axis=1) + np.float32(0.5)).astype(np.uint8)


def _shares(size: int, new_size: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The indices of the old pixels that each new pixel covers along an axis, and their shares: [K, new_size] each."""
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
