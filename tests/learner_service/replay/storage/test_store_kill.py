"""After a kill during inserts, a store has every committed segment exactly once and undamaged."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.trajectory import Segment
from learner_service.replay import ReplayStore
from tests.learner_service.replay.replay_segments import STACKED, assert_store_holds, random_segment, source

_WRITER = """
import itertools, sys
from pathlib import Path
from tests.learner_service.replay.replay_segments import STACKED, source
from tests.learner_service.replay.storage.test_store_kill import numbered_segment
from learner_service.replay import ReplayStore

store = ReplayStore.open(Path(sys.argv[1]), STACKED, int(sys.argv[2]))
for sequence in itertools.count(int(sys.argv[3])):
    assert store.insert(numbered_segment(sequence), source(sequence)) is not None
    print(sequence, flush=True)
"""


def numbered_segment(sequence: int) -> Segment:
    """The one segment that belongs to a sequence number; sizes vary."""
    rng = np.random.default_rng(sequence)
    return random_segment(rng, int(rng.integers(1, 20)), int(rng.integers(1, 4)), sequence, frame_stack=3)


def _insert_until_killed(directory: Path, capacity: int, first: int, prints: int) -> int:
    """Run the writer, kill it after `prints` commits, and return the last sequence number that it printed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, "-c", _WRITER, str(directory), str(capacity), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        printed = [writer.stdout.readline() for _ in range(prints)]
        writer.kill()
        printed += writer.stdout.readlines()
    assert writer.returncode == -9
    return int(printed[-1] if printed[-1].endswith("\n") else printed[-2])


@pytest.mark.parametrize("capacity", [1_000_000, 300])
def test_every_committed_segment_is_stored_once_after_each_kill(tmp_path: Path, capacity: int) -> None:
    segments: dict[int, Segment] = {}
    stored = -1
    for prints in (1, 40, 75):
        printed = _insert_until_killed(tmp_path, capacity, stored + 1, prints)
        store = ReplayStore.open(tmp_path, STACKED, capacity)
        stored = next(iter(store.sequences.as_dict().values()))
        # The kill may fall between a commit and its print, so at most one more than was printed is stored.
        assert printed <= stored <= printed + 1
        segments |= {number: numbered_segment(number) for number in range(len(segments), stored + 1)}
        numbers = [record.source.sequence for record in store.segments.live]
        assert numbers == list(range(stored + 1 - len(numbers), stored + 1))
        assert capacity == 300 or numbers[0] == 0
        assert_store_holds(store, segments)
        assert store.total_transitions == sum(segment.transitions for segment in segments.values())
        assert store.insert(numbered_segment(stored), source(stored)) is None
        store.close()
