"""Tasks of the DM Control suite (arXiv 1801.00690), `dm_control/DOMAIN-TASK`, such as dm_control/cheetah-run."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments.loop import LoopedEnvironments
from actor_service.environments.rendering import draw_fast, prepare_mujoco
from actor_service.environments.spaces import bounds
from actorq.domain.trajectory import ArraySpec, EnvironmentSpec
from actorq.errors import UserError

PREFIX = "dm_control/"
_HEIGHT, _WIDTH = 480, 640
# Domains whose models, here the springs of the masses, are random too, and are drawn when a task is loaded.
_DRAWN_BY_LOT = frozenset({"lqr"})
# Control steps of the suite's episodes, but for those of lqr, which end only once everything has come to rest: under
# many policies it never does, and an evaluation would not end. They get the limit of all others.
_STEPS = 1000


def make(environment_id: str, count: int, rendered: bool, /, **keywords: Any) -> LoopedEnvironments:
    """A batch of a task, made with `keywords`, such as time_limit; raises UserError when there is none of this name."""
    prepare_mujoco(rendered)
    singles = [_single(environment_id, rendered, keywords) for _ in range(count)]
    spec = EnvironmentSpec(
        environment_id=environment_id,
        observations=ArraySpec((singles[0].size,), "float32"),
        actions=singles[0].action_spec,
        discrete_actions=0,
        max_episode_steps=singles[0].limit,
    )
    return LoopedEnvironments(spec, singles, lambda: _single(environment_id, rendered, keywords), limit=0)


def observation_parts(environment_id: str, keywords: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of what a task observes, in its order."""
    prepare_mujoco(rendered=False)
    return _single(environment_id, False, keywords).parts


def _single(environment_id: str, rendered: bool, keywords: Mapping[str, Any]) -> "SuiteTask":
    # Only now: what is imported looks for a display unless it was told otherwise.
    from dm_control import suite

    domain, _, task = environment_id.removeprefix(PREFIX).partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        known = ", ".join(f"{PREFIX}{a}-{b}" for a, b in suite.ALL_TASKS if a == domain)
        raise UserError(
            f"environment {environment_id!r} cannot be made: "
            + (f"of this domain there are {known}" if known else f"give {PREFIX}DOMAIN-TASK, as {PREFIX}cheetah-run")
        )

    def load(seed: int | None) -> Any:
        environment = suite.load(domain, task, task_kwargs=dict(random=seed, **keywords))
        if not math.isfinite(environment._step_limit):
            # Half a step less: the limit is a quotient of times, and rounding must not make it 1001.
            seconds = (_STEPS - 0.5) * environment.control_timestep()
            environment.close()
            environment = suite.load(domain, task, task_kwargs=dict(random=seed, time_limit=seconds, **keywords))
        if rendered:
            draw_fast(environment.physics.model)
        else:
            # At each reset quadruped-escape asks for what draws, to upload its new terrain, and so would make it.
            kind = type(environment.physics)
            environment.physics.__class__ = type(kind.__name__, (kind,), {"contexts": None})
        return environment

    return SuiteTask(load, domain in _DRAWN_BY_LOT)


class SuiteTask:
    """One task as the loop calls it.

    Observations are the task's parts in the order in which it names them, each in C order, as one float32 vector, which
    the next call overwrites. An episode whose last discount is 0 has terminated, any other was truncated: the suite
    ends most by time alone.
    """

    def __init__(self, load: Callable[[int | None], Any], drawn_by_lot: bool = False) -> None:
        """`load` loads the task with a seed; where its model is `drawn_by_lot`, again with each new seed."""
        self._load, self._drawn_by_lot = load, drawn_by_lot
        self._environment = environment = load(None)
        self.metadata = {"render_fps": 1 / environment.control_timestep()}
        # Where each part goes, and whether it is to be flattened before.
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

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; a seed sets the task's generator, from which alone its randomness comes."""
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
        """What the task's first camera sees."""
        pixels: NDArray[np.uint8] = self._environment.physics.render(_HEIGHT, _WIDTH, camera_id=0)
        return pixels

    def close(self) -> None:
        """Release it."""
        self._environment.close()

    def _flat(self, parts: dict[str, Any]) -> NDArray[np.float32]:
        row = self._row
        for name, place, is_deep in self._places:
            row[place] = parts[name].ravel() if is_deep else parts[name]
        return row
