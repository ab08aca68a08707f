"""DM Control's tasks, compared with the suite's own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from actor_service.environments import describe_environment, make_environments
from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError


def test_the_spec_tells_sizes_bounds_and_limit() -> None:
    spec = describe_environment("dm_control/walker-walk")
    # 14 orientations, a height, 9 velocities.
    assert spec.observations == ArraySpec((24,), "float32")
    assert spec.actions == ArraySpec((6,), "float32", (-1.0,), (1.0,))
    assert (spec.sizes, spec.max_episode_steps, spec.reward_threshold) == ((), 1000, None)


def test_a_batch_is_the_suites_tasks_side_by_side_with_their_parts_in_order() -> None:
    from dm_control import suite

    batch = make_environments("dm_control/walker-walk", 2)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (30, 2, 6)).astype(np.float32)
    rows, rewards = [batch.reset(7).copy()], []
    for action in actions:
        step = batch.step(action)
        rows.append(step.observations.copy())
        rewards.append(step.rewards.copy())
    batch.close()
    for index in range(2):
        task = suite.load("walker", "walk", task_kwargs={"random": 7 + index})
        taken = [task.reset(), *(task.step(action[index]) for action in actions)]
        for row, expected in zip(rows, taken, strict=True):
            parts = expected.observation
            flat = np.concatenate([parts["orientations"], [parts["height"]], parts["velocity"]])
            np.testing.assert_allclose(row[index], flat.astype(np.float32), rtol=1e-6)
        np.testing.assert_allclose([row[index] for row in rewards], [step.reward for step in taken[1:]], rtol=1e-6)


def test_a_discount_of_zero_terminates_and_any_other_end_truncates() -> None:
    # The linear regulator terminates at rest. All other tasks end by time.
    batch = make_environments("dm_control/lqr-lqr_2_1", 1)
    batch.reset(1)
    task = batch._singles[0]  # type: ignore[attr-defined]
    with task._environment.physics.reset_context():
        task._environment.physics.data.qpos[:] = 0.0
        task._environment.physics.data.qvel[:] = 0.0
    step = batch.step(np.zeros((1, 1), np.float32))
    assert step.terminated[0]
    assert not step.truncated[0]


def test_a_task_without_a_limit_gets_that_of_all_others() -> None:
    batch = make_environments("dm_control/lqr-lqr_2_1", 1)
    assert batch.spec.max_episode_steps == 1000
    batch.reset(1)
    for _ in range(999):
        step = batch.step(np.ones((1, 1), np.float32))
        assert not step.truncated[0]
        assert not step.terminated[0]
    step = batch.step(np.ones((1, 1), np.float32))
    assert step.truncated[0]
    assert [episode.length for episode in step.episodes] == [1000]
    batch.close()


def test_a_seed_also_draws_a_model_that_is_random() -> None:
    def play(seed: int) -> list[list[float]]:
        batch = make_environments("dm_control/lqr-lqr_2_1", 2)
        # Not only the first seed counts.
        batch.reset(seed + 1)
        rows = [batch.reset(seed).copy()]
        rows += [batch.step(np.full((2, 1), 0.5, np.float32)).observations.copy() for _ in range(3)]
        batch.close()
        return [row.ravel().tolist() for row in rows]

    assert play(3) == play(3) != play(4)


def test_every_task_of_the_suite_can_be_stepped() -> None:
    from dm_control import suite

    # One task of each domain, to save time. Other tasks of a domain differ only in rewards, except the one that draws
    # its terrain.
    for domain, task in (*dict(suite.ALL_TASKS).items(), ("quadruped", "escape")):
        batch = make_environments(f"dm_control/{domain}-{task}", 1)
        batch.reset(0)
        step = batch.step(np.zeros((1, *batch.spec.actions.shape), np.float32))
        assert batch.spec.actions.bounded, domain
        assert np.isfinite(step.observations).all(), domain
        batch.close()


@pytest.mark.parametrize("environment_id", ["dm_control/cheetah", "dm_control/cheetah-fly", "dm_control/unicorn-run"])
def test_an_unknown_task_is_one_line_with_an_example(environment_id: str) -> None:
    with pytest.raises(UserError, match=f"'{environment_id}' .*dm_control/cheetah-run$"):
        describe_environment(environment_id)


DRAW = """
from actor_service.environments import make_environments
environments = make_environments("dm_control/cheetah-run", 1, rendered=True)
environments.reset(0)
picture = environments.render(0)
print(*picture.shape, picture.dtype, int(picture.max() > picture.min()))
import os; os._exit(0)
"""


FILM = """
from pathlib import Path
from actor_service.environments import make_environments
from actor_service.roles.actor_role import Host
from actor_service.roles.standalone import StandaloneEvaluator
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
host = Host("evaluator", lambda: QuantizerClient("127.0.0.1:1"), print)
StandaloneEvaluator(host, RunConfig(environment="dm_control/cheetah-run"), Path("film.mp4"))
environments = make_environments("dm_control/cheetah-run", 1, rendered=True)
environments.reset(0)
environments.render(0)
import os; os._exit(0)
"""


def drawn(script: str = DRAW, **variables: str) -> subprocess.CompletedProcess[str]:
    """Draw in a separate process, because MuJoCo's drawing library is chosen once per process."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )


def test_pictures_are_drawn_without_a_display_or_the_error_names_what_is_missing() -> None:
    result = drawn()
    if result.returncode == 0:
        assert result.stdout.split() == ["480", "640", "3", "uint8", "1"]
    else:
        assert re.search("EGL .*OSMesa", result.stderr)


def test_a_recording_actor_can_draw_if_the_machine_can() -> None:
    if drawn().returncode:
        pytest.skip("this machine cannot render without a display")
    result = drawn(FILM)
    assert result.returncode == 0, result.stderr
