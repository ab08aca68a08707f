"""A run whose folder is lost continues from object storage, on a real S3 server."""

import shutil
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from actorq.client import QuantizerClient
from actorq.domain.status import RunStatus
from actorq.statefiles.documents import read_document
from actorq.statefiles.policies import descriptor_from_json
from tests.builders.s3_server import CREDENTIALS, s3_server
from tests.integration.training_run import ENDLESS, TrainingRun, actorq, trained


@pytest.mark.timeout(240)
@pytest.mark.parametrize("replay", [False, True])
def test_a_lost_folder_costs_one_checkpoint_period_at_most(
    replay: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path / "served") as server:
        settings = (
            *("--checkpoint.object-storage", "s3://bucket/run", "--checkpoint.period-s", "1", *ENDLESS),
            *("--checkpoint.object-storage-endpoint", server.endpoint),
            *(("--checkpoint.object-storage-replay",) if replay else ()),
        )
        before, versions = first_life(tmp_path / "run", server.bucket / "run/manifests", *settings)
        shutil.rmtree(tmp_path / "run")
        run = TrainingRun.start(tmp_path / "run", "--resume", *settings)
        # The first status after the restore, then a status after more updates.
        again = run.until(lambda status: status.environment_steps > 0)
        assert again.run_id == before.run_id
        assert before.environment_steps <= again.environment_steps
        assert before.updates <= again.updates
        run.until(
            lambda status: (
                trained(again.updates + 50)(status) and status.environment_steps > 10 + again.environment_steps
            )
        )
        assert ("transitions are lost" in (run.directory / "logs" / "learner.log").read_text()) is not replay
        with QuantizerClient(run.addresses()["quantizer"]) as quantizer:
            assert min(policy.version for policy in quantizer.list()) > max(versions)
        run.signal(signal.SIGTERM)
        run.finish()
        assert actorq("verify", str(run.directory)).returncode == 0
        (described,) = (run.directory / "best").glob("*.json")
        values = read_document(described)
        assert values.pop("mean_return") > 0
        assert descriptor_from_json(values).version == int(described.name.partition("-")[0])


def first_life(directory: Path, stored: Path, *settings: str) -> tuple[RunStatus, list[int]]:
    """Train until checkpoints and a best policy are uploaded, then kill everything.

    stored: the folder of the run's generations. Returns a status from before the newest upload, and the versions of all
    policies that are still in the run's folder.
    """

    def uploads() -> int:
        return max((int(path.stem.partition("-")[2]) for path in stored.glob("*.json")), default=0)

    run = TrainingRun.start(directory, *settings)
    status = run.until(lambda status: status.updates > 200 and any((directory / "best").glob("*.json")))
    # The next upload may have begun earlier. The following upload has at least the progress of the status.
    enough = uploads() + 2
    run.until(lambda _: uploads() >= enough)
    services = run.services()
    run.process.kill()
    for service in services:
        # Some processes end as soon as the launcher has ended.
        with suppress(psutil.NoSuchProcess):
            service.kill()
    run.process.wait()
    versions = [int(path.name) for path in (directory / "policies").glob("[0-9]*") if path.name.isdecimal()]
    return status, versions
