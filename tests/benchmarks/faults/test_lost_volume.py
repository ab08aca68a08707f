"""The cost of a lost volume follows from the steps before and after. The two kinds of starts take turns."""

import pytest

from actorq_apps.operator.resource.training_run import TrainingRun
from benchmarks.faults.lost_volume import Moment, lost_seconds, starts, training_run

SEEN = [Moment(at, steps, steps // 2) for at, steps in ((10.0, 100), (11.0, 200), (12.5, 300), (14.0, 400))]


@pytest.mark.parametrize(("steps", "seconds"), [(400, 0.0), (399, 1.5), (300, 1.5), (299, 3.0), (150, 4.0), (0, 4.0)])
def test_the_time_that_is_lost_begins_at_the_last_step_that_is_kept(steps: int, seconds: float) -> None:
    assert lost_seconds(SEEN, steps) == seconds


def test_pairs_begin_with_either_side_in_turn() -> None:
    begun: list[tuple[str, int]] = []

    def side(name: str, pair: int) -> float:
        begun.append((name, pair))
        return 10.0 + pair

    assert starts(3, lambda pair: side("ours", pair), lambda pair: side("plain", pair)) == ([11.0, 12.0, 13.0],) * 2
    assert begun == [("ours", 1), ("plain", 1), ("plain", 2), ("ours", 2), ("ours", 3), ("plain", 3)]


def test_the_run_that_is_lost_is_a_valid_training_run() -> None:
    manifest = training_run("lost", checkpoint={"object_storage": "s3://bucket/lost"})
    manifest["metadata"] |= {"uid": "u"}
    run = TrainingRun.of(manifest)
    assert run.spec.has_object_storage
    assert not run.spec.checkpoint.retain
