"""Cuts the power under a live run, and checks durable segments, checkpoint, replay and the resumed run.

    python -m benchmarks.faults.powercut --check --json benchmarks/results/powercut.json

The run's folder is on an ext4 file system in an image file. For a cut, the learner is frozen and the image is copied.
The copy has the data that the kernel had written to the disk, and nothing from the page cache. Then the learner is
killed. The next one resumes from the copy with another boot id, as after a reboot. Quantizer and actors keep running.
Actors record the checksum of each segment and the learner's answers about it. After each cut the copy is compared with
these records. Needs root, mkfs.ext4 and loop devices.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actor_service.environments import describe_environment
from actorq.client import LearnerClient
from actorq.domain.status import RunStatus
from actorq.errors import UnavailableError
from benchmarks.harness import Target, run_benchmark
from benchmarks.processes import serving
from learner_service.replay import ReplayStore, SegmentSource
from learner_service.replay.storage.mapped_files import Machine
from learner_service.training.checkpoint import Checkpoints

_ENVIRONMENT = "CartPole-v1"
_CAPACITY = 2_000_000
_IMAGE_BYTES = 2**30
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PATIENCE_S = 90.0
_SETTINGS = (
    *("--environment", _ENVIRONMENT, "--environments-per-actor", "4", "--max-environment-steps", "1000000000"),
    *("--replay.capacity", str(_CAPACITY), "--rate-limiter.samples-per-insert", "2", "--checkpoint.period-s", "2"),
)


@dataclass(frozen=True)
class Cut:
    """The state after one power cut, in segments where not stated otherwise.

    made: by all actors so far. acknowledged, promised: according to the learner's answers; promised segments are
    durable. stored: on the disk. lost: promised, but missing on the disk or with other content. twice: on the disk more
    than once. missing: acknowledged before the previous cut and still not promised, so that resending failed.
    checkpoint, replay: transitions that the newest checkpoint expects, and that the replay has. resumed_s: seconds
    until there were new transitions and updates.
    """

    made: int
    acknowledged: int
    promised: int
    stored: int
    lost: int
    twice: int
    missing: int
    checkpoint: int
    replay: int
    resumed_s: float


@dataclass
class Notes:
    """The notes of one actor: checksums by sequence, and the highest sequences in the learner's answers."""

    source: SegmentSource
    made: dict[int, int]
    acknowledged: int
    durable: int


def main() -> int:
    """Command line."""
    return run_benchmark(__doc__ or "", _add_flags, _measure)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cuts", type=int, default=5, help="power cuts")
    parser.add_argument("--actors", type=int, default=2, help="actors")
    parser.add_argument("--seconds", type=float, default=6.0, help="mean time from a resumed run to its cut")
    parser.add_argument("--seed", type=int, default=1, help="seed of the times of the cuts")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    with tempfile.TemporaryDirectory(prefix="powercut-") as folder, Stage(Path(folder), arguments.actors) as stage:
        rng = random.Random(arguments.seed)
        print(f"seed {arguments.seed}", file=sys.stderr)
        cuts = []
        stage.start_run()
        for _ in range(arguments.cuts):
            cuts.append(stage.cut_power(rng.uniform(0.5, 1.5) * arguments.seconds))
            print(cuts[-1], file=sys.stderr)
    resumed = sum(cut.resumed_s < _PATIENCE_S for cut in cuts)
    figures = {"seed": arguments.seed, "actors": arguments.actors, "cuts": [asdict(cut) for cut in cuts]}
    return figures, [
        Target("promised segments lost", sum(cut.lost for cut in cuts), 0),
        Target("segments stored twice", sum(cut.twice for cut in cuts), 0),
        Target("acknowledged segments that were not resent after a request", sum(cut.missing for cut in cuts), 0),
        Target("checkpoints ahead of their replay", sum(cut.checkpoint > cut.replay for cut in cuts), 0),
        Target("runs resumed", resumed, arguments.cuts, at_most=False),
    ]


class Stage:
    """The disk and the services of one run."""

    def __init__(self, folder: Path, actors: int) -> None:
        self._folder = folder
        self._actors = [f"actor-{number}" for number in range(actors)]
        self._address = f"127.0.0.1:{_free_port()}"
        self._stack = ExitStack()
        self._number = 0
        self._acknowledged: dict[str, int] = {}

    def __enter__(self) -> "Stage":
        image = self._image()
        with image.open("wb") as file:
            file.truncate(_IMAGE_BYTES)
        _run("mkfs.ext4", "-q", str(image))
        self._mount()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if hasattr(self, "_learner"):
            self._learner.kill()
            self._learner.wait()
        self._unmount()

    def start_run(self) -> None:
        """Start all services, and wait for the first updates."""
        store = str(self._folder / "policies")
        self._quantizer = self._stack.enter_context(serving("quantizer_service", "--store", store)).address
        self._start_learner()
        for name in self._actors:
            self._stack.enter_context(self._acting(name))
        self._await_progress(0, 0)

    def cut_power(self, after_s: float) -> Cut:
        """Let the run continue for `after_s` seconds, cut its power, check its disk, and resume it."""
        time.sleep(after_s)
        self._await_promises()
        self._learner.send_signal(signal.SIGSTOP)
        notes = {name: self._notes(name) for name in self._actors}
        before = self._image()
        self._number += 1
        _run("cp", "--sparse=always", str(before), str(self._image()))
        self._learner.kill()
        self._learner.wait()
        self._unmount(self._number - 1)
        before.unlink()
        self._mount()
        found = self._inspect(notes)
        started = time.monotonic()
        self._start_learner()
        self._await_progress(found["replay"], found.pop("updates"))
        return Cut(**found, resumed_s=round(time.monotonic() - started, 2))

    def _inspect(self, notes: dict[str, Notes]) -> dict[str, int]:
        run = self._mounted() / "run"
        copy = self._folder / "replay"
        shutil.copytree(run / "replay", copy)
        store = ReplayStore.open(copy, describe_environment(_ENVIRONMENT), _CAPACITY, machine=Machine("inspection"))
        stored = {record.source: _content(store, record) for record in store.segments.live}
        twice = sum(times - 1 for times in Counter(record.source for record in store.segments.live).values())
        replay, lost, missing = store.total_transitions, 0, 0
        for name, noted in notes.items():
            for sequence in range(1, noted.durable + 1):
                source = SegmentSource(noted.source.actor_key, noted.source.incarnation, sequence)
                lost += stored.get(source) != noted.made[sequence]
            missing += max(0, self._acknowledged.get(name, 0) - noted.durable)
            self._acknowledged[name] = noted.acknowledged
        store.close()
        shutil.rmtree(copy)
        state = Checkpoints(run / "checkpoints", keep=100).load_newest()
        return {
            "made": sum(len(noted.made) for noted in notes.values()),
            "acknowledged": sum(noted.acknowledged for noted in notes.values()),
            "promised": sum(noted.durable for noted in notes.values()),
            "stored": len(stored),
            "lost": lost,
            "twice": twice,
            "missing": missing,
            "checkpoint": state.values["limiter"]["stored"] if state else 0,
            "replay": replay,
            "updates": state.updates if state else 0,
        }

    def _start_learner(self) -> None:
        boot_id = self._folder / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        learner = [sys.executable, "-m", "learner_service", "--listen", self._address, "--quantizer", self._quantizer]
        run = ["--run-directory", str(self._mounted() / "run"), "--resume", *_SETTINGS]
        booted = ["unshare", "-m", "sh", "-c", f'mount --bind "$0" {_BOOT_ID} && exec "$@"', str(boot_id)]
        with (self._folder / "learner.log").open("a") as log:
            self._learner = subprocess.Popen([*booted, *learner, *run], stderr=log)

    @contextmanager
    def _acting(self, name: str) -> Iterator[None]:
        command = [sys.executable, "-m", "benchmarks.faults.powercut_actor", "--name", name, "--listen", "127.0.0.1:0"]
        services = ["--learner", self._address, "--quantizer", self._quantizer]
        environment = {**os.environ, "POWERCUT_LEDGER": str(self._ledger(name))}
        with (self._folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen([*command, *services], stderr=log, env=environment)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def _notes(self, name: str) -> Notes:
        made, acknowledged, durable, incarnation = {}, 0, 0, 0
        for line in self._ledger(name).read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue
            values = json.loads(line)
            incarnation = values["incarnation"] or incarnation
            if "made" in values:
                made[values["made"]] = values["crc"]
            else:
                acknowledged = max(acknowledged, values["acknowledged"])
                durable = max(durable, values["durable"])
        return Notes(SegmentSource.from_name(name, incarnation, 0), made, acknowledged, durable)

    def _await_progress(self, transitions: int, updates: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if self._learner.poll() is not None:
                raise SystemExit(f"the learner has ended: {(self._folder / 'learner.log').read_text()[-2000:]}")
            status = self._status()
            if status and status.environment_steps > transitions and status.updates > updates:
                return
            time.sleep(0.1)
        print("no progress", file=sys.stderr)

    def _await_promises(self) -> None:
        """Wait until each actor has a durable segment that a cut could lose."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and not all(self._notes(name).durable for name in self._actors):
            time.sleep(0.1)

    def _status(self) -> RunStatus | None:
        try:
            with LearnerClient(self._address) as client:
                return client.status()
        except UnavailableError:
            return None

    def _ledger(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    def _image(self) -> Path:
        return self._folder / f"disk-{self._number}.img"

    def _mounted(self, number: int | None = None) -> Path:
        return self._folder / f"disk-{self._number if number is None else number}"

    def _mount(self) -> None:
        self._mounted().mkdir()
        _run("mount", "-o", "loop", str(self._image()), str(self._mounted()))

    def _unmount(self, number: int | None = None) -> None:
        _run("umount", str(self._mounted(number)))


def _content(store: ReplayStore, record: Any) -> int:
    return zlib.crc32(store.observations[record.start : record.stop].tobytes())


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _run(*command: str) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}: {ended.stderr.strip()}; this benchmark needs root and loop devices")


if __name__ == "__main__":
    sys.exit(main())
