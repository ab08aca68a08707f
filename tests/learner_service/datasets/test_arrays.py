"""Flat arrays of other libraries become episodes, and a fault in them is one line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from actorq.errors import UserError
from learner_service.datasets.arrays import ArrayFile, write_arrays
from tests.learner_service.datasets.dataset_parts import SPEC, Recorded, arrays, assert_same, episode, saved


def test_an_episode_ends_where_a_flag_says_so(tmp_path: Path) -> None:
    terminations = np.zeros(30, np.bool_)
    terminations[3] = True
    found = list(ArrayFile(saved(tmp_path / "a.npz", terminations=terminations)))
    assert [len(each) for each in found] == [4, 6, 10, 10]
    assert [each.terminated for each in found] == [True, False, False, False]
    given = arrays()
    np.testing.assert_array_equal(found[1].observations, given["observations"][4:11])
    np.testing.assert_array_equal(found[1].rewards, given["rewards"][4:10])


def test_steps_after_the_last_end_are_an_episode_that_was_cut(tmp_path: Path) -> None:
    (*_, last) = ArrayFile(saved(tmp_path / "a.npz", steps=33))
    assert (len(last), last.terminated, last.truncated) == (3, False, True)


def test_without_next_observations_the_last_step_of_a_truncated_episode_is_left_out(tmp_path: Path) -> None:
    terminations = np.zeros(30, np.bool_)
    terminations[29] = True
    file = ArrayFile(saved(tmp_path / "a.npz", next_observations=None, terminations=terminations))
    assert file.lengths == [9, 9, 10]
    first = next(iter(file))
    np.testing.assert_array_equal(first.observations, arrays()["observations"][:10])
    assert first.truncated


@pytest.mark.parametrize("names", [("terminals", "timeouts"), ("terminated", "truncated")], ids=" ".join)
def test_the_names_of_other_libraries_are_known(names: tuple[str, str], tmp_path: Path) -> None:
    changes = {names[0]: arrays()["terminations"], names[1]: arrays()["truncations"]}
    path = saved(tmp_path / "a.npz", terminations=None, truncations=None, **changes)
    assert ArrayFile(path).lengths == [10, 10, 10]


def test_episodes_of_a_time_limit_that_no_array_separates_are_refused(tmp_path: Path) -> None:
    joined = ArrayFile(saved(tmp_path / "a.npz", steps=400, truncations=None, next_observations=None))
    with pytest.raises(
        UserError, match=r"an episode has 399 steps, but Pendulum-v1 ends each after 200: add the array"
    ):
        joined.check_limit(SPEC)
    ArrayFile(saved(tmp_path / "b.npz", steps=400, next_observations=None)).check_limit(SPEC)
    joined.check_limit(replace(SPEC, max_episode_steps=0))


def _of_d3rlpy_1(path: Path, **changes: Any) -> Path:
    """A file as `MDPDataset.dump` of d3rlpy 1.1 writes it: three episodes of ten steps, and the second one terminates.

    changes: replace arrays, or remove them.
    """
    given = arrays()
    columns: dict[str, Any] = {name: given[name].astype(np.float32) for name in ("observations", "actions", "rewards")}
    columns["episode_terminals"] = given["truncations"].astype(np.float32)
    columns["terminals"] = columns["episode_terminals"] * (np.arange(30) == 19)
    return _written(path, {**columns, "discrete_action": False, "version": "1.0", **changes})


def _of_d3rlpy_2(path: Path, **changes: Any) -> Path:
    """The same episodes as `dump` in dataset/io.py of d3rlpy 2.8.1 writes them."""
    given = arrays()
    columns: dict[str, Any] = {"columns": ["observations", "actions", "rewards", "terminated"], "num_episodes": 3}
    for number, part in enumerate((slice(0, 10), slice(10, 20), slice(20, 30))):
        columns[f"observations_{number}"] = given["observations"][part].astype(np.float32)
        columns[f"actions_{number}"] = given["actions"][part].astype(np.float32)
        columns[f"rewards_{number}"] = given["rewards"][part, None].astype(np.float32)
        columns[f"terminated_{number}"] = number == 1
    return _written(path, {**columns, "version": "2.1", **changes})


def _written(path: Path, columns: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            if column is not None:
                file.create_dataset(name, data=column)
    return path


@pytest.mark.parametrize("write", [_of_d3rlpy_1, _of_d3rlpy_2])
def test_files_of_d3rlpy_are_cut_where_a_time_limit_ended_an_episode(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    found = list(ArrayFile(write(tmp_path / "a.h5")))
    # The observation after the last step of a truncated episode is not in the file.
    assert [(len(each), each.terminated) for each in found] == [(9, False), (10, True), (9, False)]
    given = arrays()
    for each, start in zip(found, (0, 10, 20), strict=True):
        rows = slice(start, start + len(each))
        np.testing.assert_array_equal(each.observations[:-1], given["observations"][rows].astype(np.float32))
        np.testing.assert_array_equal(each.actions, given["actions"][rows].astype(np.float32))
        np.testing.assert_array_equal(each.rewards, given["rewards"][rows].astype(np.float32))


@pytest.mark.parametrize(
    ("write", "changes", "fact"),
    [
        (_of_d3rlpy_1, {"version": None}, "the form of d3rlpy before version 1.1"),
        (_of_d3rlpy_2, {"version": "2.0"}, "expected version 2.1 of the form of d3rlpy, got 2.0"),
        (_of_d3rlpy_2, {"observations_0_0": np.zeros(9)}, "expected one array of observations for each episode"),
        (_of_d3rlpy_2, {"actions_2": np.zeros((9, 1))}, "expected as many actions as rewards, at least one, in episo"),
        (_of_d3rlpy_2, {"terminated_2": None}, "terminated_2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_of_d3rlpy_in_another_form_is_refused(
    write: Callable[..., Path], changes: dict[str, Any], fact: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        ArrayFile(write(tmp_path / "a.h5", **changes))
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_written_episodes_are_read_again(suffix: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = [episode(rng, 7, version=3), episode(rng, 5, terminated=True, version=4)]
    assert write_arrays(tmp_path / f"a{suffix}", Recorded(*written)) == (2, 12)
    for actual, expected in zip(ArrayFile(tmp_path / f"a{suffix}"), written, strict=True):
        assert_same(actual, expected)
    assert [path.name for path in tmp_path.iterdir()] == [f"a{suffix}"]


def _hole() -> dict[str, Any]:
    observations = arrays()["observations"].copy()
    observations[12] += 1.0
    return {"observations": observations}


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"rewards": None}, "got none for rewards"),
        ({"rewards": np.zeros(29)}, "expected 29 rows of observations, got 30"),
        ({"rewards": np.full(30, np.nan)}, "expected finite rewards, got [nan] in row 0"),
        ({"rewards": np.zeros((30, 2))}, "expected one number of rewards for each step, got 2"),
        (_hole(), "episode 1 has a hole: next_observations in row 11 differ from observations in row 12"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_in_the_arrays_is_named(changes: dict[str, Any], fact: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        ArrayFile(saved(tmp_path / "a.npz", **changes))
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_a_file_of_another_kind_is_refused(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"a{suffix}").write_text("no arrays")
    with pytest.raises(UserError, match="cannot be read"):
        ArrayFile(tmp_path / f"a{suffix}")


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", observations=np.array([{"a": 1}], object))
    with pytest.raises(UserError, match="cannot be read"):
        ArrayFile(tmp_path / "a.npz")
