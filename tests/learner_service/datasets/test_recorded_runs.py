"""The replay of a run is read as episodes, across segments, actors and restarts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.columns import LOG_PROBABILITIES
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Segment
from actorq.errors import UserError
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import write_twice
from learner_service.datasets.recorded_runs import RecordedRun
from learner_service.replay import ReplayStore, SegmentSource
from tests.builders.segments import changed
from tests.learner_service.replay.replay_segments import SPEC, plain_segment


def run_of(
    folder: Path,
    *segments: tuple[str, Segment],
    spec: EnvironmentSpec = SPEC,
    further: tuple[str, ...] = (),
    **tree: Any,
) -> Path:
    """The folder of a run with these segments of actors."""
    folder.mkdir()
    store = ReplayStore.open(folder / "replay", spec, 1000, further)
    for actor, segment in segments:
        store.insert(segment, SegmentSource.from_name(actor, 1, segment.sequence))
    store.close()
    write_twice(folder / "environment.json", spec.to_json())
    RunDirectory(folder).record_config(settings.build(RunConfig, tree))
    return folder


def follow(first: Segment, second: Segment) -> Segment:
    """The second segment as the direct successor of the first."""
    observations = second.observations.copy()
    observations[0] = first.observations[-1]
    return replace(changed(second, observations=observations), follows=True)


def ended(segment: Segment, step: int, environment: int = 0) -> Segment:
    """The segment with the end of an episode in one environment, and a reset in the next step."""
    terminated, valid = segment.terminated.copy(), segment.valid.copy()
    terminated[step, environment] = True
    if step + 1 < segment.steps:
        valid[step + 1, environment] = False
    return changed(segment, terminated=terminated, valid=valid)


def test_an_episode_continues_over_segments_between_those_of_other_actors(tmp_path: Path) -> None:
    first = plain_segment(1)
    second = ended(follow(first, plain_segment(2)), 3)
    other = plain_segment(1, steps=3)
    run = RecordedRun(run_of(tmp_path / "run", ("a", first), ("b", other), ("a", second)))
    assert sorted(run.lengths) == [3, 8]
    whole = max(run, key=len)
    assert whole.terminated
    np.testing.assert_array_equal(whole.rewards, np.concatenate((first.rewards, second.rewards))[:, 0])
    expected = np.concatenate((first.observations, second.observations[1:]))[:, 0]
    np.testing.assert_array_equal(whole.observations, expected)
    np.testing.assert_array_equal(
        whole.policy_versions, np.concatenate((first.policy_versions(), second.policy_versions()))
    )
    assert run.cut == 1


def test_steps_that_only_reset_belong_to_no_episode(tmp_path: Path) -> None:
    segment = ended(plain_segment(1, steps=6), 2)
    run = RecordedRun(run_of(tmp_path / "run", ("a", segment)))
    first, second = run
    np.testing.assert_array_equal(first.rewards, segment.rewards[:3, 0])
    np.testing.assert_array_equal(first.observations, segment.observations[:4, 0])
    np.testing.assert_array_equal(second.observations, segment.observations[4:, 0])
    assert (first.terminated, second.terminated, second.truncated) == (True, False, True)


def test_a_lost_segment_cuts_the_episode(tmp_path: Path) -> None:
    first = plain_segment(1)
    third = follow(first, plain_segment(3))
    run = RecordedRun(run_of(tmp_path / "run", ("a", first), ("a", third)))
    assert run.lengths == [4, 4]


def test_a_segment_that_begins_elsewhere_cuts_the_episode(tmp_path: Path) -> None:
    run = RecordedRun(run_of(tmp_path / "run", ("a", plain_segment(1)), ("a", plain_segment(2))))
    assert run.lengths == [4, 4]


def test_a_damaged_segment_is_left_out(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", ("a", plain_segment(1)), ("a", plain_segment(2)))
    path = folder / "replay" / "rewards.bin"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    run = RecordedRun(folder)
    assert (run.lengths, run.damaged) == ([4], 1)


CONTINUOUS = EnvironmentSpec("Test-v0", ArraySpec((2,), "float32"), ArraySpec((1,), "float32", (0.0,), (4.0,)))


@pytest.mark.parametrize(
    ("squash", "expected"), [(False, [2.0, 4.0, 0.0]), (True, [2.0, 2 + 2 * np.tanh(3), 2 - 2 * np.tanh(1)])]
)
def test_drawn_actions_become_those_that_the_environment_got(
    squash: bool, expected: list[float], tmp_path: Path
) -> None:
    drawn = np.array([0.0, 3.0, -1.0], np.float32).reshape(3, 1, 1)
    probabilities = np.array([-1.0, -2.0, -3.0], np.float32).reshape(3, 1)
    segment = changed(plain_segment(1, steps=3), actions=drawn, **{LOG_PROBABILITIES: probabilities})
    tree = {"algorithm": "ppo", "ppo": {"squash": squash}}
    folder = run_of(tmp_path / "run", ("a", segment), spec=CONTINUOUS, further=(LOG_PROBABILITIES,), **tree)
    (episode,) = RecordedRun(folder)
    np.testing.assert_allclose(np.asarray(episode.actions[:, 0], np.float64), np.array(expected), rtol=1e-6)
    np.testing.assert_array_equal(episode.log_probabilities, probabilities[:, 0])


def test_a_folder_without_a_replay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected the folder of a run or of a data set"):
        RecordedRun(tmp_path)


def test_a_run_without_a_transition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no stored transition"):
        RecordedRun(run_of(tmp_path / "run"))
