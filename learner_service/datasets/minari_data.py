"""Episodes of Minari's data sets. The library itself reads and writes its files."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from actorq.extras import require
from actorq.text import reason_of
from learner_service.datasets.episodes import Episode

PREFIX = "minari:"
# Names of the infos with the acting policy of each step.
_VERSIONS, _PROBABILITIES = "policy_version", "log_probability"


class MinariEpisodes:
    """The episodes of one of Minari's data sets, by its id or by its folder."""

    def __init__(self, given: str | Path) -> None:
        """given: an id, as in `minari list local`, or a folder. Raises UserError when there is no such data set."""
        require("dataset import", ["datasets"])
        import minari

        self.text = str(given) if isinstance(given, Path) else f"{PREFIX}{given}"
        try:
            found: Any = minari.MinariDataset(given / "data") if isinstance(given, Path) else minari.load_dataset(given)
        except Exception as error:
            # Any exception of the library. Its text says what is missing.
            advice = "" if isinstance(given, Path) else f"; download it with `minari download {given}`"
            raise UserError(f"dataset import: {self.text} cannot be read: {reason_of(error)}{advice}") from None
        self._found = found
        self.environment = found.env_spec.id if found.env_spec is not None else ""
        metadata = found.storage.get_episode_metadata(found.episode_indices)
        self._lengths = [int(each["total_steps"]) for each in metadata]

    @property
    def lengths(self) -> Sequence[int]:
        """The steps of each episode."""
        return self._lengths

    def __iter__(self) -> Iterator[Episode]:
        for number, each in enumerate(self._found.iterate_episodes()):
            ends = np.asarray(each.terminations, np.bool_) | np.asarray(each.truncations, np.bool_)
            if (inner := np.flatnonzero(ends[:-1])).size:
                raise UserError(
                    f"dataset import: {self.text}: episode {number} has a hole: it ends in step {inner[0]}, and has "
                    f"{len(ends)} steps"
                )
            for name in ("observations", "actions"):
                if not isinstance(getattr(each, name), np.ndarray):
                    kind = type(getattr(each, name)).__name__
                    raise UserError(
                        f"dataset import: {self.text}: expected {name} of one array, got a {kind}; record them with "
                        "actorq, and import the folder of the run"
                    )
            terminated = bool(each.terminations[-1])
            infos = each.infos or {}
            yield Episode(
                each.observations,
                each.actions,
                each.rewards,
                terminated,
                truncated=not terminated,
                policy_versions=_info(infos, _VERSIONS, np.int64, len(each)),
                log_probabilities=_info(infos, _PROBABILITIES, np.float32, len(each)),
            )


def write_minari(dataset: str, spec: EnvironmentSpec, episodes: Iterable[Episode], source: str) -> tuple[int, int]:
    """Write episodes as one of Minari's data sets. Returns the numbers of episodes and steps.

    dataset: its new id, such as cartpole/mine-v0. Raises UserError when the id is wrong or exists.
    """
    require("dataset export", ["datasets"])
    import warnings

    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    counts = [0, 0]

    def buffers() -> Iterator[Any]:
        for episode in episodes:
            steps = len(episode)
            ends = np.arange(steps) == steps - 1
            infos = {_VERSIONS: episode.policy_versions, _PROBABILITIES: episode.log_probabilities}
            counts[0], counts[1] = counts[0] + 1, counts[1] + steps
            yield EpisodeBuffer(
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=ends & episode.terminated,
                truncations=ends & episode.truncated,
                infos={name: values for name, values in infos.items() if values is not None} or None,
            )

    if spec.leaves or spec.has_parts:
        raise UserError(
            f"dataset export: {spec.environment_id} has observations or actions of several arrays, which need a file: "
            "give FILE.npz or FILE.hdf5"
        )
    try:
        # It warns about metadata that an author may add later.
        warnings.simplefilter("ignore")
        made: Any = minari.create_dataset_from_buffers(
            dataset,
            buffers(),
            observation_space=_space(spec.observations),
            action_space=gymnasium.spaces.Discrete(spec.sizes[0]) if spec.sizes else _space(spec.actions),
            algorithm_name="ActorQ",
            description=f"Recorded by ActorQ: {source}",
            # JPEG would change the pixels.
            jpeg_encoding=False,
        )
        if spec.environment_id in gymnasium.registry:
            made.storage.update_metadata({"env_spec": gymnasium.spec(spec.environment_id).to_json()})
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"dataset export: {PREFIX}{dataset} cannot be written: {reason_of(error)}") from None
    return counts[0], counts[1]


def _space(of: ArraySpec) -> Any:
    import gymnasium

    dtype: Any = np.dtype(of.dtype).type
    if np.dtype(of.dtype).kind == "f":
        low, high = of.bounds()
        return gymnasium.spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    limits = np.iinfo(dtype) if np.dtype(of.dtype).kind in "iu" else None
    low_, high_ = (limits.min, limits.max) if limits is not None else (0, 1)
    return gymnasium.spaces.Box(low_, high_, of.shape, dtype)


def _info(infos: Any, name: str, dtype: Any, steps: int) -> NDArray[Any] | None:
    """The values of an info of each step. Some recordings have a further value, of the reset."""
    if name not in infos:
        return None
    values = np.asarray(infos[name], dtype)
    return values[-steps:] if len(values) >= steps else None
