"""An import that is killed leaves nothing that counts as a data set, and the next import works."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from actorq.errors import UserError
from learner_service.datasets.episodes import Episode
from learner_service.datasets.recorded_runs import RecordedRun
from learner_service.datasets.stored import StoredDataset, write
from tests.learner_service.datasets.dataset_parts import SPEC, Recorded, episode

ROOT = Path(__file__).parents[3]
# Ten episodes, of which the source gives five. Then it says so, and waits.
HALF = """
import sys
from pathlib import Path
from learner_service.datasets.stored import write
from tests.learner_service.datasets.dataset_parts import SPEC, Recorded
from tests.learner_service.datasets.test_killed_import import episodes

class Half(Recorded):
    def __iter__(self):
        for number, each in enumerate(super().__iter__()):
            if number == 5:
                print("half", flush=True)
                sys.stdin.read()
            yield each

write(Path(sys.argv[1]), SPEC, Half(*episodes()))
"""


def episodes() -> list[Episode]:
    """Ten episodes, some with two segments."""
    rng = np.random.default_rng(0)
    return [episode(rng, 100 + 50 * number, terminated=number % 2 == 0) for number in range(10)]


def test_nothing_half_written_counts_and_the_next_import_works(tmp_path: Path) -> None:
    folder, partial = tmp_path / "set", tmp_path / "set.partial"
    command = [sys.executable, "-c", HALF, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as importing:
        assert importing.stdout is not None
        assert importing.stdout.readline() == "half\n"
        with pytest.raises(UserError, match="another process imports to"):
            write(folder, SPEC, Recorded(*episodes()))
        os.kill(importing.pid, signal.SIGKILL)
        assert importing.wait() == -signal.SIGKILL
    assert (partial / "rewards.bin").exists()
    assert not folder.exists()
    for each in (folder, partial):
        with pytest.raises(UserError, match="expected the folder of a data set"):
            StoredDataset.read(each)
        with pytest.raises(UserError, match="expected the folder of a"):
            RecordedRun(each)
    made = write(folder, SPEC, Recorded(*episodes()))
    assert (made.episodes, made.digest) == (10, write(tmp_path / "undisturbed", SPEC, Recorded(*episodes())).digest)
    made.open().close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "undisturbed"]
