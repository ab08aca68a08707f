"""Small recordings, as files and as stored data."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.datasets.arrays import ArrayFile
from learner_service.datasets.episodes import Episode
from learner_service.datasets.stored import StoredDataset, write

SPEC = EnvironmentSpec(
    "Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), max_episode_steps=200
)


def episode(
    rng: np.random.Generator, steps: int, terminated: bool = False, version: int = 0, spec: EnvironmentSpec = SPEC
) -> Episode:
    """A random episode."""
    actions: NDArray[Any] = rng.integers(spec.sizes[0], size=steps) if spec.sizes else rng.uniform(-2, 2, (steps, 1))
    return Episode(
        rng.standard_normal((steps + 1, *spec.observations.shape)).astype(spec.observations.dtype),
        actions.astype(spec.actions.dtype),
        rng.standard_normal(steps).astype(np.float32),
        terminated,
        truncated=not terminated,
        policy_versions=np.full(steps, version, np.int64),
    )


class Recorded:
    """Episodes in memory."""

    text, environment = "memory", ""

    def __init__(self, *episodes: Episode) -> None:
        self._episodes = episodes
        self.lengths = [len(each) for each in episodes]

    def __iter__(self) -> Any:
        return iter(self._episodes)


def arrays(steps: int = 30, period: int = 10, **changes: Any) -> dict[str, Any]:
    """Flat arrays of episodes of `period` steps that a time limit ends. `changes` replace arrays, or remove them."""
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((steps + 1, 3))
    ends = np.arange(1, steps + 1) % period == 0
    columns = {
        "observations": observations[:-1],
        "next_observations": observations[1:],
        "actions": rng.uniform(-2, 2, (steps, 1)),
        "rewards": rng.standard_normal(steps),
        "terminations": np.zeros(steps, np.bool_),
        "truncations": ends,
    }
    return {name: column for name, column in {**columns, **changes}.items() if column is not None}


def saved(path: Path, **changes: Any) -> Path:
    """A .npz file of `arrays`."""
    np.savez(path, allow_pickle=False, **arrays(**changes))
    return path


def stored(folder: Path, steps: int = 30, **changes: Any) -> StoredDataset:
    """A data set of `arrays`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return write(folder, SPEC, ArrayFile(saved(folder.with_suffix(".npz"), steps=steps, **changes)))


def assert_same(actual: Episode, expected: Episode) -> None:
    """Two episodes are equal to the last bit."""
    assert (actual.terminated, actual.truncated) == (expected.terminated, expected.truncated)
    for name in ("observations", "actions", "rewards", "policy_versions", "log_probabilities"):
        here, there = getattr(actual, name), getattr(expected, name)
        assert (here is None) == (there is None), name
        if here is not None:
            np.testing.assert_array_equal(here, there, err_msg=name)
