"""A stored data set has the rows of its source, with checksums, and refuses what does not fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.datasets.arrays import ArrayFile
from learner_service.datasets.episodes import Episode
from learner_service.datasets.recorded_runs import RecordedRun
from learner_service.datasets.stored import StoredDataset, write
from learner_service.replay import Returns, assemble
from tests.learner_service.datasets.dataset_parts import SPEC, Recorded, assert_same, episode, saved, stored

IMAGES = EnvironmentSpec("Images-v0", ArraySpec((4, 4), "uint8"), ArraySpec((), "int64"), sizes=(3,), frame_stack=4)


def test_the_description_counts_episodes_and_returns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = [episode(rng, 5), episode(rng, 600, terminated=True)]
    made = write(tmp_path / "set", SPEC, Recorded(*episodes))
    assert (made.transitions, made.episodes, made.terminated) == (605, 2, 1)
    returns = [each.episode_return for each in episodes]
    assert made.returns == (float(np.mean(returns)), float(np.std(returns)), min(returns), max(returns))
    assert StoredDataset.read(tmp_path / "set") == made


@pytest.mark.parametrize("spec", [SPEC, IMAGES], ids=lambda spec: spec.environment_id)
def test_long_and_short_episodes_come_back_whole(spec: EnvironmentSpec, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    # The longest one has three segments.
    episodes = []
    for number, steps in enumerate((1, 600, 3, 256)):
        each = episode(
            rng, steps, terminated=bool(number % 2), version=number, spec=replace(spec, observations=SPEC.observations)
        )
        observations = rng.integers(256, size=(steps + 1, *spec.observations.shape)).astype(spec.observations.dtype)
        episodes.append(replace(each, observations=observations))
    write(tmp_path / "set", spec, Recorded(*episodes))
    run = RecordedRun(tmp_path / "set")
    found = list(run)
    run.close()
    for actual, expected in zip(found, episodes, strict=True):
        assert_same(actual, expected)


def test_returns_continue_from_one_segment_to_the_next(tmp_path: Path) -> None:
    given = episode(np.random.default_rng(0), 600)
    store = write(tmp_path / "set", SPEC, Recorded(given)).open()
    # The last step of the first segment.
    row = int(store.segments.live[0].stop) - 2
    batch = assemble(store, np.array([row]), Returns(n_step=3, discount=0.9))
    np.testing.assert_array_equal(batch.observations[0], given.observations[255])
    np.testing.assert_array_equal(batch.bootstrap_observations[0], given.observations[258])
    np.testing.assert_allclose(batch.returns[0], given.rewards[255:258] @ [1, 0.9, 0.81], rtol=1e-5)
    store.close()


def test_stacks_at_the_start_of_a_segment_contain_the_frames_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spec = replace(IMAGES, observations=SPEC.observations)
    frames = rng.integers(256, size=(301, 4, 4), dtype=np.uint8)
    given = replace(episode(rng, 300, spec=spec), observations=frames)
    store = write(tmp_path / "set", IMAGES, Recorded(given)).open()
    second = store.segments.live[1]
    batch = assemble(store, np.array([second.start + 3]), Returns(1, 0.9))
    np.testing.assert_array_equal(batch.observations[0], frames[253:257])
    store.close()


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given = episode(rng, 30)
    first, again = (write(tmp_path / name, SPEC, Recorded(given)) for name in ("first", "again"))
    rewards = given.rewards.copy()
    rewards[7] += 1
    other = write(tmp_path / "other", SPEC, Recorded(replace(given, rewards=rewards)))
    assert first.digest == again.digest != other.digest


def test_readers_change_no_file_and_share_the_data(tmp_path: Path) -> None:
    made = stored(tmp_path / "set")
    before = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    first, second = made.open(), made.open()
    first.priorities[:] = 3.0
    assert not second.priorities.any()
    first.flush()
    first.close()
    second.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()} == before


def test_a_damaged_segment_is_skipped_and_counted(tmp_path: Path) -> None:
    made = stored(tmp_path / "set", steps=30)
    path = tmp_path / "set" / "rewards.bin"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    store = made.open()
    assert (store.segments.damaged, store.transitions) == (1, 20)
    store.close()


def test_files_of_another_data_set_are_refused(tmp_path: Path) -> None:
    made, other = stored(tmp_path / "set"), stored(tmp_path / "other", steps=40)
    (tmp_path / "set" / "directory.bin").write_bytes((tmp_path / "other" / "directory.bin").read_bytes())
    with pytest.raises(UserError, match=f"expected segments with digest {made.digest}, got {other.digest}"):
        made.open()


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        (
            {"observations": np.zeros((6, 4))},
            "episode 0: expected observations [6, 3] as in the environment, got [6, 4]",
        ),
        ({"actions": np.full((5, 1), 3.0)}, "episode 0: actions must be within the environment's bounds, got 3"),
        ({"rewards": np.full(5, 1e31)}, "episode 0: rewards must be from -1e+09 to 1e+09"),
        ({"actions": np.zeros((5, 1), np.complex64)}, "expected actions of numbers, got complex64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_episode_of_other_spaces_is_refused_and_leaves_nothing(
    changes: dict[str, Any], fact: str, tmp_path: Path
) -> None:
    given: Episode = replace(episode(np.random.default_rng(0), 5), **changes)
    with pytest.raises(UserError) as caught:
        write(tmp_path / "set", SPEC, Recorded(given))
    assert fact in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_an_integer_cannot_hold_is_refused(tmp_path: Path) -> None:
    spec = replace(SPEC, actions=ArraySpec((), "int64"), sizes=(3,))
    given = replace(episode(np.random.default_rng(0), 5), actions=np.full(5, 0.5))
    with pytest.raises(UserError, match=r"expected actions of int64, got 0.5 \(float64\)"):
        write(tmp_path / "set", spec, Recorded(given))


def test_a_source_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected at least one episode, got none in memory"):
        write(tmp_path / "set", SPEC, Recorded())
    empty = {
        name: np.zeros((0, *shape)) for name, shape in (("observations", (3,)), ("actions", (1,)), ("rewards", ()))
    }
    np.savez(tmp_path / "empty.npz", allow_pickle=False, terminations=np.zeros(0, np.bool_), **empty)
    with pytest.raises(UserError, match=r"expected at least one episode, got none in empty\.npz"):
        write(tmp_path / "set", SPEC, ArrayFile(tmp_path / "empty.npz"))


def test_a_source_larger_than_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=2**20 + 100))
    with pytest.raises(UserError, match=r"33 rows need 1\.0 MiB in .*, where 1\.0 MiB are free"):
        write(tmp_path / "set", SPEC, ArrayFile(saved(tmp_path / "a.npz")))


def test_an_existing_data_set_is_kept(tmp_path: Path) -> None:
    made = stored(tmp_path / "set")
    with pytest.raises(UserError, match="exists; give another --name"):
        write(tmp_path / "set", SPEC, Recorded(episode(np.random.default_rng(0), 5)))
    assert StoredDataset.read(tmp_path / "set") == made


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"environment_id": "CartPole-v1"}, "expected data of CartPole-v1, got data of Pendulum-v1"),
        ({"observations": ArraySpec((4,), "float32")}, "expected observations"),
        ({"actions": ArraySpec((1,), "float32", (-1.0,), (1.0,))}, "expected actions"),
        ({"frame_stack": 2}, "expected frame_stack 2, got 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_in_another_environment_is_refused(changes: dict[str, Any], fact: str, tmp_path: Path) -> None:
    made = stored(tmp_path / "set")
    made.check_fits(SPEC)
    with pytest.raises(UserError) as caught:
        made.check_fits(replace(SPEC, **changes))
    assert fact in str(caught.value)


def test_bounds_of_observations_do_not_matter(tmp_path: Path) -> None:
    stored(tmp_path / "set").check_fits(replace(SPEC, observations=ArraySpec((3,), "float32", (-1.0,), (1.0,))))


def test_a_folder_without_a_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"which has no dataset\.json"):
        StoredDataset.read(tmp_path)
