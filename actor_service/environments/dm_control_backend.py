"""Tasks of the DM Control suite (arXiv 1801.00690), `dm_control/DOMAIN-TASK`, such as dm_control/cheetah-run."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments.loop import LoopedEnvironments
from actor_service.environments.mujoco_setup import SHADOW_SIZE, draw_fast, prepare_mujoco
from actor_service.environments.spaces.actions import bounds
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError

PREFIX = "dm_control/"
_HEIGHT, _WIDTH = 480, 640
# Domains with a random model for each load of a task, such as the springs between the masses of lqr.
_DRAWN_BY_LOT = frozenset({"lqr"})
# Control steps of an episode in all domains except lqr. Episodes of lqr end only when all masses rest, which never
# happens under many policies. They get the same limit, so that evaluations end.
_STEPS = 1000


def make(environment_id: str, count: int, rendered: bool, /, **keywords: Any) -> LoopedEnvironments:
    """A batch of a task, made with `keywords` such as time_limit. Raises UserError when the task is unknown."""
    prepare_mujoco(rendered)
    singles = [suite_task(environment_id, rendered, keywords) for _ in range(count)]
    spec = EnvironmentSpec(
        environment_id=environment_id,
        observations=ArraySpec((singles[0].size,), "float32"),
        actions=singles[0].action_spec,
        max_episode_steps=singles[0].limit,
    )
    return LoopedEnvironments(spec, singles, lambda: suite_task(environment_id, rendered, keywords), limit=0)


def observation_parts(environment_id: str, keywords: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a task's observation parts, in the task's order."""
    prepare_mujoco(rendered=False)
    return suite_task(environment_id, False, keywords).parts


def suite_task(
    environment_id: str,
    rendered: bool,
    keywords: Mapping[str, Any],
    prefix: str = PREFIX,
    shadows: int = SHADOW_SIZE,
) -> "SuiteTask":
    """One task of the suite, made with `keywords`. Call `prepare_mujoco` before.

    prefix: of the ids. shadows: see `draw_fast`. Raises UserError when the task is unknown.
    """
    # Imported after prepare_mujoco, because the import searches for a display unless MUJOCO_GL is set.
    from dm_control import suite

    domain, _, task = environment_id.removeprefix(prefix).partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        known = ", ".join(f"{prefix}{a}-{b}" for a, b in suite.ALL_TASKS if a == domain)
        raise UserError(
            f"environment {environment_id!r} cannot be made: "
            + (f"the domain has {known}" if known else f"give {prefix}DOMAIN-TASK, such as {prefix}cheetah-run")
        )

    def load(seed: int | None) -> Any:
        environment = suite.load(domain, task, task_kwargs=dict(random=seed, **keywords))
        if not math.isfinite(environment._step_limit):
            # Half a step less. The suite divides times to get the limit, and rounding could otherwise give 1001 steps.
            seconds = (_STEPS - 0.5) * environment.control_timestep()
            environment.close()
            environment = suite.load(domain, task, task_kwargs=dict(random=seed, time_limit=seconds, **keywords))
        if rendered:
            draw_fast(environment.physics.model, shadows)
        else:
            # quadruped-escape uploads its new terrain to the drawing contexts at each reset, which would create them.
            kind = type(environment.physics)
            environment.physics.__class__ = type(kind.__name__, (kind,), {"contexts": None})
        return environment

    return SuiteTask(load, domain in _DRAWN_BY_LOT)


class SuiteTask:
    """One task, as `LoopedEnvironments` steps it.

    An observation is one float32 vector: the task's parts in the task's order, each in C order. The next call
    overwrites it. An episode whose last discount is 0 is terminated. Any other episode is truncated, because most tasks
    end only by time.
    """

    def __init__(self, load: Callable[[int | None], Any], drawn_by_lot: bool = False) -> None:
        """load: loads the task with a seed. drawn_by_lot: the model is random, so the task is loaded again for each new
        seed.
        """
        self._load, self._drawn_by_lot = load, drawn_by_lot
        # The camera of `filmed`, with the model and the arguments that it was made for.
        self._camera: Any = None
        self._filmed_model: Any = None
        self._filmed: tuple[int, int] | None = None
        self._environment = environment = load(None)
        self.metadata = {"render_fps": 1 / environment.control_timestep()}
        # The place of each part in the vector, and whether the part must be flattened.
        self._places: list[tuple[str, slice, bool]] = []
        self.size = 0
        for name, spec in environment.observation_spec().items():
            width = int(np.prod(spec.shape, dtype=np.int64))
            self._places.append((name, slice(self.size, self.size + width), len(spec.shape) > 1))
            self.size += width
        self.parts = tuple(name for name, *_ in self._places)
        self._row = np.zeros(self.size, np.float32)
        action = environment.action_spec()
        low, high = (np.broadcast_to(bound, action.shape) for bound in (action.minimum, action.maximum))
        self.action_spec = ArraySpec(tuple(action.shape), "float32", bounds(low), bounds(high))
        self.limit = math.ceil(environment._step_limit)
        self.cameras = int(environment.physics.model.ncam)

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode. A seed sets the task's generator, its only source of randomness."""
        if seed is not None and self._drawn_by_lot:
            self._environment.close()
            self._environment = self._load(seed)
        elif seed is not None:
            self._environment.task.random.seed(seed)
        return self._flat(self._environment.reset().observation), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Act for one control step."""
        taken = self._environment.step(action)
        ended = taken.last()
        terminated = ended and taken.discount == 0.0
        return self._flat(taken.observation), taken.reward, terminated, ended and not terminated, {}

    def render(self) -> NDArray[np.uint8]:
        """A picture from the task's first camera, uint8[height, width, 3]."""
        pixels: NDArray[np.uint8] = self._environment.physics.render(_HEIGHT, _WIDTH, camera_id=0)
        return pixels

    def filmed(self, size: int, camera: int) -> NDArray[np.uint8]:
        """A square picture, uint8[size, size, 3]. The next call with the same arguments overwrites it.

        Keeps the camera, because a new one for each picture would prepare a new scene. Raises ValueError for a camera
        that the task lacks, and for a size above the task's own frame buffer.
        """
        from dm_control.mujoco.engine import Camera

        physics = self._environment.physics
        # Some tasks load a new model.
        if self._filmed_model is not physics.model or self._filmed != (size, camera):
            self._camera = Camera(physics, height=size, width=size, camera_id=camera)
            self._filmed_model, self._filmed = physics.model, (size, camera)
        pixels: NDArray[np.uint8] = self._camera.render()
        return pixels

    def close(self) -> None:
        """Close the task."""
        self._environment.close()

    def _flat(self, parts: dict[str, Any]) -> NDArray[np.float32]:
        row = self._row
        for name, place, is_deep in self._places:
            row[place] = parts[name].ravel() if is_deep else parts[name]
        return row
