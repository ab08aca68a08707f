"""MuJoCo's warnings become lines of the log, and no file in the working folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNSTABLE = '''
import gymnasium, mujoco, numpy as np

class Unstable(gymnasium.Env):
    """Each reset breaks the simulation at another time, about which MuJoCo warns."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    resets = 0

    def reset(self, *, seed=None, options=None):
        model = mujoco.MjModel.from_xml_string(
            "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"
        )
        data = mujoco.MjData(model)
        data.time = Unstable.resets = Unstable.resets + 1
        data.qvel[:] = np.nan
        mujoco.mj_step(model, data)
        return np.zeros(1, np.float32), {}
'''
SCRIPT = """
import logging, sys
from actor_service.environments import make_environments

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
environments = make_environments(sys.argv[1], 2)
for seed in range(int(sys.argv[2])):
    environments.reset(seed)
environments.close()
"""


def _run(folder: Path, environment: str, resets: int, before: str = "") -> list[str]:
    """The lines with MuJoCo's warnings that a process in a folder prints. It writes no file there."""
    (folder / "unstable.py").write_text(UNSTABLE, encoding="utf-8")
    path = os.pathsep.join((str(folder), *sys.path))
    process = subprocess.run(
        [sys.executable, "-c", before + SCRIPT, environment, str(resets)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert [each.name for each in folder.iterdir()] == ["unstable.py"]
    return [line for line in process.stdout.splitlines() if "MuJoCo" in line or "WARNING" in line or "own" in line]


@pytest.mark.parametrize("environment", ["HalfCheetah-v5", "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv"])
def test_a_warning_about_a_model_is_logged_once(tmp_path: Path, environment: str) -> None:
    found = _run(tmp_path, environment, 1)
    # Another version of Gymnasium may have models without deprecated attributes.
    assert len(found) <= 1
    assert all(line.startswith("INFO MuJoCo: ") for line in found)


def test_many_different_warnings_are_not_all_logged(tmp_path: Path) -> None:
    *found, last = _run(tmp_path, "unstable:Unstable", 20)
    assert len(found) == len(set(found)) == 10
    assert all(line.startswith("WARNING MuJoCo: Nan, Inf or huge value") for line in found)
    assert last == "WARNING MuJoCo: further warnings are not logged"


def test_a_handler_of_the_user_stays(tmp_path: Path) -> None:
    own = "import mujoco\nmujoco.set_mju_user_warning(lambda message: print('own', message))\n"
    found = _run(tmp_path, "unstable:Unstable", 1, own)
    assert len(found) == 2
    assert all(line.startswith("own Nan, Inf or huge value") for line in found)
