"""Episodes in files of flat arrays: .npz of NumPy, and HDF5 as D4RL and d3rlpy write it."""

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import Array
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.extras import require
from learner_service.datasets.episodes import Episode

HDF5_SUFFIXES = (".hdf5", ".h5")
SUFFIXES = (".npz", *HDF5_SUFFIXES)
# The names of each array in the files of different libraries; the first one is written.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "observations": ("observations",),
    "next_observations": ("next_observations",),
    "actions": ("actions",),
    "rewards": ("rewards",),
    "terminations": ("terminations", "terminals", "terminated"),
    # d3rlpy 1 marks the end of every episode in episode_terminals. A termination in the same step comes first.
    "truncations": ("truncations", "timeouts", "truncated", "episode_terminals"),
    "policy_versions": ("policy_versions",),
    "log_probabilities": ("log_probabilities",),
}
_NEEDED = ("observations", "actions", "rewards", "terminations")
# Version of the form in which d3rlpy 2 writes its files.
_D3RLPY_FORM = "2.1"


class ArrayFile:
    """Episodes of flat arrays, [N, ...] each, one row for each step.

    An episode ends where `terminations` or `truncations` is true. Without `next_observations`, the observation after
    the last step of a truncated episode is unknown. That step is then left out, and the episode ends before it.
    """

    def __init__(self, path: Path) -> None:
        """Read all arrays. Raises UserError for a missing or unequal array, numbers that are not finite, and holes."""
        self.text, self.environment = path.name, ""
        self._arrays = _read(path)
        steps = len(self._arrays["rewards"])
        for name, array in self._arrays.items():
            if len(array) != steps:
                raise UserError(f"dataset import: {path}: expected {steps} rows of {name}, got {len(array)}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                raise UserError(
                    f"dataset import: {path}: expected finite {name}, got {array[row].ravel()[:4]} in row {row}"
                )
        self._spans = list(self._find_spans())
        self._check_holes(path)

    @property
    def lengths(self) -> Sequence[int]:
        """The steps of each episode."""
        return [stop - start for start, stop, _ in self._spans]

    def check_limit(self, spec: EnvironmentSpec) -> None:
        """Raise UserError when episodes are probably joined.

        The file then has neither truncations nor next observations, and an episode is too long for the environment.
        """
        most, longest = spec.max_episode_steps, max(self.lengths, default=0)
        if most and longest > most and not {"truncations", "next_observations"} & self._arrays.keys():
            raise UserError(
                f"dataset import: {self.text}: an episode has {longest:,} steps, but {spec.environment_id} ends each "
                f"after {most:,}: add the array truncations, with the ends by a time limit"
            )

    def __iter__(self) -> Iterator[Episode]:
        arrays = self._arrays
        following = arrays.get("next_observations")
        for start, stop, terminated in self._spans:
            observations = arrays["observations"]
            # After a terminal state nothing bootstraps, so its observation does not matter.
            last = observations[stop - 1 if terminated else stop] if following is None else following[stop - 1]
            yield Episode(
                np.concatenate((observations[start:stop], last[None])),
                arrays["actions"][start:stop],
                arrays["rewards"][start:stop],
                terminated,
                truncated=not terminated,
                policy_versions=_part(arrays, "policy_versions", start, stop),
                log_probabilities=_part(arrays, "log_probabilities", start, stop),
            )

    def _find_spans(self) -> Iterator[tuple[int, int, bool]]:
        """The first step, the step after the last, and whether the episode ends in a terminal state."""
        arrays, start = self._arrays, 0
        terminated = arrays["terminations"].astype(np.bool_)
        ends = terminated | arrays["truncations"].astype(np.bool_) if "truncations" in arrays else terminated
        last = len(ends) - 1
        for end in np.flatnonzero(ends).tolist() + ([last] if last >= 0 and not ends[last] else []):
            is_known = bool(terminated[end]) or "next_observations" in arrays
            stop = end + 1 if is_known else end
            if stop > start:
                yield start, stop, bool(terminated[end])
            start = end + 1

    def _check_holes(self, path: Path) -> None:
        """Raise UserError unless each step of an episode begins where the step before ended."""
        if "next_observations" not in self._arrays:
            return
        observations, following = self._arrays["observations"], self._arrays["next_observations"]
        for number, (start, stop, _) in enumerate(self._spans):
            same = (following[start : stop - 1] == observations[start + 1 : stop]).reshape(stop - start - 1, -1)
            broken = np.flatnonzero(~same.all(axis=1))
            if len(broken):
                row = start + int(broken[0])
                raise UserError(
                    f"dataset import: {path}: episode {number} has a hole: next_observations in row {row} differ from "
                    f"observations in row {row + 1}; set truncations in row {row}, or add the missing steps"
                )


def write_arrays(path: Path, episodes: Iterable[Episode]) -> tuple[int, int]:
    """Write episodes as flat arrays. Returns the numbers of episodes and steps. Raises OSError."""
    parts: dict[str, list[Array]] = {}
    count = steps = 0
    for episode in episodes:
        ends = np.zeros(len(episode), np.bool_)
        ends[-1] = True
        columns: dict[str, Any] = {
            "observations": episode.observations[:-1],
            "next_observations": episode.observations[1:],
            "actions": episode.actions,
            "rewards": episode.rewards,
            "terminations": ends & episode.terminated,
            "truncations": ends & episode.truncated,
            "policy_versions": episode.policy_versions,
            "log_probabilities": episode.log_probabilities,
        }
        for name, column in columns.items():
            if column is not None:
                parts.setdefault(name, []).append(column)
        count, steps = count + 1, steps + len(episode)
    arrays = {name: np.concatenate(columns) for name, columns in parts.items()}
    partial = path.with_name(f".{path.name}.partial")
    if path.suffix == ".npz":
        with partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    else:
        import h5py

        with h5py.File(partial, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, compression="gzip", compression_opts=1)
    partial.replace(path)
    return count, steps


def _part(arrays: Mapping[str, Array], name: str, start: int, stop: int) -> Any:
    return arrays[name][start:stop] if name in arrays else None


def _read(path: Path) -> dict[str, Array]:
    """The arrays with their names here. Raises UserError when the file cannot be read or lacks an array."""
    try:
        found = dict(_hdf5(path) if path.suffix in HDF5_SUFFIXES else _npz(path))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"dataset import: {path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    if missing := [name for name in _NEEDED if name not in found]:
        raise UserError(
            f"dataset import: {path}: expected arrays {', '.join(_NEEDED)}, got none for {', '.join(missing)}"
        )
    for name in ("rewards", "terminations", "truncations"):
        if name in found:
            # d3rlpy writes a column.
            if (each := math.prod(found[name].shape[1:])) != 1:
                raise UserError(f"dataset import: {path}: expected one number of {name} for each step, got {each}")
            found[name] = found[name].reshape(len(found[name]))
    return found


def _npz(path: Path) -> Iterator[tuple[str, Array]]:
    with np.load(path, allow_pickle=False) as file:
        yield from _known(file)


def _hdf5(path: Path) -> Iterator[tuple[str, Array]]:
    require("dataset import", ["datasets"])
    import h5py

    with h5py.File(path, "r") as file:
        found = {name: value for name, value in file.items() if isinstance(value, h5py.Dataset)}
        if "discrete_action" in found and "version" not in found:
            raise ValueError(
                "it has the form of d3rlpy before version 1.1, where each reward belongs to the step before; write it "
                "again with d3rlpy 1.1 or newer"
            )
        yield from _by_episode(found) if {"columns", "version"} <= found.keys() else _known(found)


def _by_episode(file: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """The arrays of a file of d3rlpy 2, which has arrays for each episode, such as actions_7 and terminated_7."""
    if (version := file["version"].asstr()[()]) != _D3RLPY_FORM:
        raise ValueError(f"expected version {_D3RLPY_FORM} of the form of d3rlpy, got {version}")
    episodes = range(int(file["num_episodes"][()]))
    lengths = [len(file[f"rewards_{number}"]) for number in episodes]
    ends = np.cumsum(lengths) - 1
    for name in ("observations", "actions", "rewards"):
        if f"{name}_0_0" in file:
            raise ValueError(f"expected one array of {name} for each episode, got several")
        parts = [np.asarray(file[f"{name}_{number}"][()]) for number in episodes]
        if wrong := [number for number in episodes if not len(parts[number]) == lengths[number] > 0]:
            raise ValueError(f"expected as many {name} as rewards, at least one, in episode {wrong[0]}")
        yield name, np.concatenate(parts)
    terminated = np.array([file[f"terminated_{number}"][()] for number in episodes], np.bool_)
    for name, flags in (("terminations", terminated), ("truncations", ~terminated)):
        yield name, np.isin(np.arange(sum(lengths)), ends[flags])


def _known(file: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    for name, names in _NAMES.items():
        if given := next((each for each in names if each in file), None):
            array: NDArray[Any] = np.asarray(file[given][()])
            if array.ndim == 0:
                raise ValueError(f"{given} is a single value, expected one row for each step")
            yield name, array
