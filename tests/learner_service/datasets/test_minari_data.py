"""Data sets of Minari are read and written by its own library."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.datasets.minari_data import MinariEpisodes, write_minari
from tests.learner_service.datasets.dataset_parts import SPEC, Recorded, assert_same, episode

CARTPOLE = replace(
    SPEC, environment_id="CartPole-v1", actions=replace(SPEC.actions, shape=(), dtype="int64"), sizes=(2,)
)


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


@pytest.mark.parametrize("spec", [SPEC, CARTPOLE], ids=lambda spec: spec.environment_id)
def test_episodes_survive_a_write_and_a_read(spec: EnvironmentSpec, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = [
        replace(episode(rng, steps, terminated, version=5, spec=spec), log_probabilities=np.full(steps, -1, np.float32))
        for steps, terminated in ((7, True), (5, False))
    ]
    assert write_minari("some/mine-v0", spec, Recorded(*written), "memory") == (2, 12)
    for given in ("some/mine-v0", tmp_path / "some" / "mine-v0"):
        found = MinariEpisodes(given)
        assert (found.environment, found.lengths) == (spec.environment_id, [7, 5])
        for actual, expected in zip(found, written, strict=True):
            assert_same(actual, expected)


def test_an_id_that_exists_is_kept(tmp_path: Path) -> None:
    write_minari("mine-v0", SPEC, Recorded(episode(np.random.default_rng(0), 7)), "memory")
    with pytest.raises(UserError, match="cannot be written"):
        write_minari("mine-v0", SPEC, Recorded(episode(np.random.default_rng(0), 5)), "memory")
    assert MinariEpisodes("mine-v0").lengths == [7]


@pytest.mark.parametrize("name", ["nothing/here-v0", "not an id"])
def test_a_missing_data_set_is_one_line(name: str) -> None:
    with pytest.raises(UserError, match=f"minari:{name} cannot be read") as caught:
        MinariEpisodes(name)
    assert "\n" not in str(caught.value)
