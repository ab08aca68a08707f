"""A run with a full volume ends in time after a signal, and continues when there is space."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.training_run import ENDLESS, TrainingRun, actorq, trained


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """48 MB of tmpfs; only root can mount it."""
    folder = tmp_path / "volume"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(volume: Path) -> Path:
    """A file that fills the volume."""
    filler = volume / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return filler


@pytest.mark.timeout(240)
def test_a_run_on_a_full_volume_ends_in_time_and_continues_when_there_is_space(volume: Path) -> None:
    settings = (*ENDLESS, "--replay.capacity", "5000", "--checkpoint.period-s", "1")
    run = TrainingRun.start(volume / "run", *settings)
    run.until(lambda status: trained(50)(status) and any((volume / "run" / "checkpoints").glob("*")))
    filler = fill(volume)
    run.until(lambda status: status.storage is not None and status.storage.disk_low)
    run.signal(signal.SIGTERM)
    code, printed = run.finish()
    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in printed
    assert all("Traceback" not in log.read_text() for log in (volume / "run" / "logs").glob("*.log"))
    filler.unlink()
    assert actorq("verify", str(volume / "run")).returncode == 0
    again = TrainingRun.start(volume / "run", "--resume", *settings)
    began = again.until(lambda status: status.environment_steps > 0)
    again.until(lambda status: status.updates > began.updates + 50)
    again.signal(signal.SIGTERM)
    assert again.finish()[0] == 128 + signal.SIGTERM
