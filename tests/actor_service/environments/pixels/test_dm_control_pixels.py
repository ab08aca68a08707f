"""DM Control from pixels. Each test draws in its own process, because MuJoCo's library is chosen once per process."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
HEAD = """
import json, os
import numpy as np
from actor_service.environments import describe_environment, make_environments
from actorq.domain.environments import EnvironmentArguments
from actorq.errors import UserError
CARTPOLE = "dm_control_pixels/cartpole-swingup"
def made(environment_id=CARTPOLE, count=1, rendered=False, **keywords):
    return make_environments(
        environment_id, count, arguments=EnvironmentArguments(keywords=keywords), rendered=rendered
    )
"""
TAIL = """
import sys; sys.stdout.flush(); os._exit(0)
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    return subprocess.run(
        [sys.executable, "-c", HEAD + script + TAIL],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@cache
def can_draw() -> bool:
    return run("made().reset(0)").returncode == 0


def drawn(script: str) -> list[str]:
    """The printed lines of a script that draws."""
    if not can_draw():
        pytest.skip("this machine cannot render without a display")
    result = run(script)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_missing_renderer_is_one_line_that_names_the_packages() -> None:
    result = run("""
from actor_service.environments import mujoco_setup
mujoco_setup._works = lambda candidate: False
try:
    made()
except UserError as error:
    print(error)
""")
    (line,) = result.stdout.splitlines()
    assert "cannot render without a display" in line
    assert "libegl1" in line


def test_drawing_that_is_turned_off_is_one_line() -> None:
    result = run(
        """
try:
    made()
except UserError as error:
    print(error)
""",
        MUJOCO_GL="disabled",
    )
    (line,) = result.stdout.splitlines()
    assert line.startswith("environment dm_control_pixels/cartpole-swingup: its observations are pictures, but MUJOCO_")


def test_the_spec_has_pictures_a_stack_and_the_domains_repeats() -> None:
    lines = drawn("""
for domain, keywords in (("cartpole-swingup", {}), ("walker-walk", {}), ("cheetah-run", {"action_repeat": 1})):
    spec = describe_environment(
        f"dm_control_pixels/{domain}", arguments=EnvironmentArguments(keywords={"size": 40, **keywords})
    )
    print(spec.observations.shape, spec.observations.dtype, spec.frame_stack, spec.max_episode_steps)
    print(spec.observations_text)
""")
    text = "3 stacked frames of 40 x 40 pixels with 3 channels"
    assert lines == [
        *("(3, 40, 40) uint8 3 125", text),
        *("(3, 40, 40) uint8 3 500", text),
        *("(3, 40, 40) uint8 3 1000", text),
    ]


def test_observations_are_the_suites_own_pictures_and_rewards_sums_over_repeats() -> None:
    lines = drawn("""
from actor_service.environments.pixels.dm_control import SHADOWS
from actor_service.environments.mujoco_setup import draw_fast
batch = made(count=2, size=48, action_repeat=3)
rows, rewards = [batch.reset(7).copy()], []
rng = np.random.default_rng(0)
actions = rng.uniform(-1, 1, (6, 2, 1)).astype(np.float32)
for action in actions:
    step = batch.step(action)
    rows.append(step.observations.copy())
    rewards.append(step.rewards.copy())
from dm_control import suite
for index in range(2):
    task = suite.load("cartpole", "swingup", task_kwargs={"random": 7 + index})
    draw_fast(task.physics.model, SHADOWS)
    task.reset()
    pictures, sums = [task.physics.render(48, 48, camera_id=0)], []
    for action in actions[:, index]:
        sums.append(sum(task.step(action).reward for _ in range(3)))
        pictures.append(task.physics.render(48, 48, camera_id=0))
    same = all(np.array_equal(row[index], each.transpose(2, 0, 1)) for row, each in zip(rows, pictures))
    print(same, np.allclose([each[index] for each in rewards], sums))
print(len({row.tobytes() for row in rows}) == len(rows))
""")
    assert lines == ["True True", "True True", "True"]


def test_an_episode_ends_within_a_repeat_and_the_next_one_begins() -> None:
    lines = drawn("""
batch = made(size=36, action_repeat=300)
batch.reset(0)
ends = [bool(batch.step(np.zeros((1, 1), np.float32)).truncated[0]) for _ in range(6)]
print(ends, batch.spec.max_episode_steps)
""")
    assert lines == ["[False, False, False, True, False, False] 4"]


def test_equal_seeds_give_equal_pictures() -> None:
    lines = drawn("""
batch = made("dm_control_pixels/lqr-lqr_2_1", size=36)
def played(seed):
    found = [batch.reset(seed).copy()]
    found += [batch.step(np.full((1, 1), 0.5, np.float32)).observations.copy() for _ in range(3)]
    return b"".join(each.tobytes() for each in found)
print(played(3) == played(3) != played(4))
""")
    assert lines == ["True"]


def test_other_cameras_sizes_and_pictures_for_people_are_separate() -> None:
    lines = drawn("""
batch = made("dm_control_pixels/cheetah-run", rendered=True, size=64)
first = batch.reset(0).copy()
print(batch.render(0).shape)
other = made("dm_control_pixels/cheetah-run", size=64, camera=1).reset(0)
print(np.array_equal(first, other), np.array_equal(first, batch.reset(0)), first.shape)
""")
    assert lines == ["(480, 640, 3)", "False True (1, 3, 64, 64)"]


def test_bad_arguments_are_one_line() -> None:
    lines = drawn("""
for keywords in ({"size": 2}, {"size": "84"}, {"camera": 7}, {"camera": -1}, {"action_repeat": 0}, {"frame_stack": 0}):
    try:
        made(**keywords)
    except UserError as error:
        print(error)
for environment_id in ("dm_control_pixels/cartpole", "dm_control_pixels/unicorn-run"):
    try:
        made(environment_id)
    except UserError as error:
        print(error)
""")
    assert len(lines) == 8
    expected = (
        "size: expected",
        "size: expected",
        "has the cameras 0 to",
        "camera: exp",
        "action_repeat",
        "frame_stack",
    )
    for line, part in zip(lines, expected, strict=False):
        assert line.startswith("environment_args: "), line
        assert part in line
    assert lines[6].endswith("dm_control_pixels/cartpole-two_poles, dm_control_pixels/cartpole-three_poles") or (
        "dm_control_pixels/cartpole-swingup" in lines[6]
    )
    assert lines[7].endswith("such as dm_control_pixels/cheetah-run")
