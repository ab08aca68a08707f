"""DM Control from pixels, `dm_control_pixels/DOMAIN-TASK`: observations are pictures of a task's camera.

The protocol is the usual one (PlaNet, arXiv 1811.04551; DrQ, arXiv 2004.13649): colored pictures of
84 x 84 pixels, stacks of three, and repeated actions. The reward of a step is the sum over its repeats.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments.dm_control_backend import SuiteTask, suite_task
from actor_service.environments.loop import LoopedEnvironments
from actor_service.environments.mujoco_setup import require_pictures
from actorq.domain.limits import MAX_FRAME_STACK
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError

PREFIX = "dm_control_pixels/"
SIZE, FRAME_STACK = 84, 3
# Repeats of an action by domain. Slow motions need more of them.
ACTION_REPEATS = {"cartpole": 8, "finger": 2, "walker": 2}
ACTION_REPEAT = 4
"""Repeats of an action in all other domains."""
# Finer shadows would take more than half of the time of a small picture.
SHADOWS = 256
# Below the smallest frame buffer of the suite's tasks.
_LARGEST, _MOST_REPEATS = 480, 1_000


def make(
    environment_id: str,
    count: int,
    rendered: bool,
    /,
    *,
    size: int = SIZE,
    camera: int = 0,
    frame_stack: int = FRAME_STACK,
    action_repeat: int | None = None,
    **keywords: Any,
) -> LoopedEnvironments:
    """A batch of a task that is seen in pictures.

    size: pixels of each side. camera: number of a camera of the task. frame_stack: pictures that a policy gets.
    action_repeat: physical steps of each action; None for the domain's number. keywords: of the task, such as
        time_limit.

    Raises UserError for an unknown task, for a value out of range, and on a machine that cannot render.
    """
    domain = environment_id.removeprefix(PREFIX).partition("-")[0]
    repeat = ACTION_REPEATS.get(domain, ACTION_REPEAT) if action_repeat is None else action_repeat
    for name, value, least, most in (
        ("size", size, 3, _LARGEST),
        ("camera", camera, 0, 10**6),
        ("frame_stack", frame_stack, 1, MAX_FRAME_STACK),
        ("action_repeat", repeat, 1, _MOST_REPEATS),
    ):
        if type(value) is not int or not least <= value <= most:
            raise UserError(f"environment_args: {name}: expected a whole number from {least} to {most}, got {value!r}")
    require_pictures(environment_id)

    def single() -> PixelTask:
        return PixelTask(suite_task(environment_id, True, keywords, PREFIX, SHADOWS), size, camera, repeat)

    singles = [single() for _ in range(count)]
    first = singles[0].task
    if camera >= first.cameras:
        for each in singles:
            each.close()
        raise UserError(
            f"environment_args: camera: {environment_id} has the cameras 0 to {first.cameras - 1}, got {camera}"
        )
    spec = EnvironmentSpec(
        environment_id=environment_id,
        observations=ArraySpec((3, size, size), "uint8"),
        actions=first.action_spec,
        max_episode_steps=math.ceil(first.limit / repeat),
        frame_stack=frame_stack,
    )
    return LoopedEnvironments(spec, singles, single, limit=0)


class PixelTask:
    """One task, as `LoopedEnvironments` steps it. Observations are uint8[3, size, size].

    task: the task with its own observations. repeat: physical steps of each action.
    """

    def __init__(self, task: SuiteTask, size: int, camera: int, repeat: int) -> None:
        self.task = task
        self._size, self._camera, self._repeat = size, camera, repeat
        self.metadata = {"render_fps": task.metadata["render_fps"] / repeat}

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode; see `SuiteTask.reset`."""
        self.task.reset(seed=seed)
        return self._seen(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Repeat an action, at most until the episode ends."""
        total = 0.0
        for _ in range(self._repeat):
            _, reward, terminated, truncated, _ = self.task.step(action)
            total += reward
            if terminated or truncated:
                break
        return self._seen(), total, terminated, truncated, {}

    def render(self) -> NDArray[np.uint8]:
        """A picture for people, uint8[height, width, 3]."""
        return self.task.render()

    def close(self) -> None:
        """Close the task."""
        self.task.close()

    def _seen(self) -> NDArray[np.uint8]:
        """The picture with channels first. The next step overwrites it."""
        return self.task.filmed(self._size, self._camera).transpose(2, 0, 1)
