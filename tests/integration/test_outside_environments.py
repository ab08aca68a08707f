"""Whole runs with a family of environments of an installed package, and with arguments and wrappers."""

import re
from pathlib import Path

import pytest

from actorq.domain.spaces import EnvironmentSpec
from actorq.statefiles.documents import read_document
from tests.builders.packages import install_package
from tests.integration.training_run import TrainingRun, actorq

ROOT = Path(__file__).parents[2]
_FAMILY = '''
"""Corridors: the agent walks to the right end. A family of environments of somebody's own."""

import numpy as np

from actor_service.environments.loop import LoopedEnvironments
from actorq.domain.spaces import ArraySpec, EnvironmentSpec


class Corridor:
    metadata = {"render_fps": 10}

    def __init__(self, length):
        self._length, self._place = length, 0

    def reset(self, *, seed=None):
        self._place = 0
        return self._seen(), {}

    def step(self, action):
        self._place = max(0, self._place + (1 if action else -1))
        over = self._place >= self._length
        return self._seen(), 1.0 if over else -0.01, over, False, {}

    def _seen(self):
        return np.array([self._place / self._length, 1.0], np.float32)

    def close(self):
        pass


def make(environment_id, count, rendered, *, length=5):
    spec = EnvironmentSpec(environment_id, ArraySpec((2,), "float32"), ArraySpec((), "int64"), (2,), 10 * length)
    return LoopedEnvironments(spec, [Corridor(length) for _ in range(count)], lambda: Corridor(length), 10 * length)
'''
_WRAPPER = '''
import gymnasium
import numpy as np


class Padded(gymnasium.ObservationWrapper):
    """Adds constant components to a vector of observations."""

    def __init__(self, env, components, value=0.0):
        super().__init__(env)
        self._more = np.full(components, value, np.float32)
        size = env.observation_space.shape[0] + components
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def observation(self, observation):
        return np.concatenate([observation, self._more])
'''


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that all started processes can import."""
    packages = tmp_path / "packages"
    install_package(packages, "corridors", _FAMILY, "actorq.environments", {"corridor": "corridors:make"})
    (packages / "own_wrappers.py").write_text(_WRAPPER, "utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{packages}:{ROOT}")
    return packages


def test_a_family_of_an_installed_package_is_learned_and_evaluated(packages: Path, tmp_path: Path) -> None:
    run = TrainingRun.start(
        tmp_path / "run",
        *("--environment", "corridor/plain", "--environment-args", "length=3", "--actors", "1", "--seed", "1"),
        *("--replay.min-size", "200", "--max-environment-steps", "2000", "--no-energy.enabled"),
    )
    code, printed = run.finish()
    assert code == 3, printed
    spec = EnvironmentSpec.from_json(read_document(run.directory / "environment.json"))
    assert (spec.max_episode_steps, spec.environment_arguments.keywords) == (30, {"length": 3})
    told = actorq("evaluate", str(run.directory), "--episodes", "2")
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("steps") == 2


def test_wrappers_and_arguments_reach_all_processes_of_a_run(packages: Path, tmp_path: Path) -> None:
    arguments = (
        *("--environment", "CartPole-v1", "--environment-args", "max_episode_steps=20"),
        *(
            "--environment-wrappers",
            '["gymnasium.wrappers:TimeAwareObservation", {"own_wrappers:Padded": {"components": 2}}]',
        ),
        *("--actors", "1", "--replay.min-size", "200", "--no-energy.enabled"),
    )
    run = TrainingRun.start(tmp_path / "run", *arguments, "--max-environment-steps", "2000")
    code, printed = run.finish()
    assert code == 3, printed
    assert run.summary()["evaluation"]["mean_return"] <= 20.0
    told = actorq("evaluate", str(run.directory), "--episodes", "2")
    assert told.returncode == 0, told.stderr
    other = actorq("train", "--resume", "--run-directory", str(run.directory), "--environment-wrappers", "a:B")
    assert other.returncode == 2
    assert re.match(r"error: --resume: .*environment_wrappers .*gymnasium\.wrappers:TimeAware", other.stderr)


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("--environment-args", "gravty=5"), "'CartPole-v1' .*'gravty'"),
        (("--environment-wrappers", "own_wrappers:Missing"), "environment_wrappers: .*own_wrappers .*Missing"),
        (("--environment", "corridor/plain", "--environment-args", "width=2"), "'corridor/plain' .*'width'"),
        (
            ("--environment", "corridor/plain", "--environment-wrappers", "own_wrappers:Padded"),
            "environment_wrappers: .*Gymnasium",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_any_service_starts(
    packages: Path, tmp_path: Path, flags: tuple[str, ...], fact: str
) -> None:
    result = actorq("train", *flags, "--run-directory", str(tmp_path / "run"))
    assert result.returncode == 2
    assert re.match(f"error: .*{fact}", result.stderr), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
