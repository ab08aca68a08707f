"""Copies the folder of a run while it trains, and restores an old snapshot of a whole run.

Copy: a second learner starts in a copy of the learner's folder, with the same quantizer, and is started again when it
ends. The benchmark counts how often the other learner became the publisher.

Snapshot: the folders of learner and quantizer are copied during training. The run continues, its processes are killed,
and the copies replace the folders. The learner's folder is restored with `actorq restore` unless `--without-restore` is
given. The benchmark compares the contents of all versions that were served, before and after.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from actorq.client import LearnerClient, QuantizerClient
from actorq.errors import ActorQError
from actorq.v1 import quantizer_pb2
from benchmarks.faults.chaos.fleet import Fleet, free_addresses, until
from benchmarks.harness import Meaning, Target, run_benchmark

_SETTINGS = (
    *("--environment", "CartPole-v1", "--algorithm", "dqn", "--scheme", "int8"),
    *("--target-return", "100000", "--max-environment-steps", "100000000", "--checkpoint.period-s", "1"),
)
_START_S = 90.0
_POLL_S = 0.05
# The next learner has started and published.
_GOES_ON_VERSIONS = 5


class Watcher:
    """Records the content of each version that a quantizer serves, across restarts of the quantizer."""

    def __init__(self, address: str) -> None:
        self._client = QuantizerClient(address)
        self._stop = threading.Event()
        self.contents: dict[int, set[bytes]] = defaultdict(set)
        self.newest = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream."""
        self._stop.set()
        self._client.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for message in self._client.stub.WatchPolicies(quantizer_pb2.WatchPoliciesRequest(scheme="int8")):
                    if message.WhichOneof("payload") == "policy":
                        self.contents[message.policy.version].add(message.policy.sha256)
                        self.newest = message.policy.version
            except (grpc.RpcError, ValueError):
                self._stop.wait(_POLL_S)


def switches(publications: list[str]) -> int:
    """Number of changes of the publishing learner."""
    return sum(one != other for one, other in pairwise(publications))


class Learners:
    """Asks learners for their newest published version."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self._clients = {name: LearnerClient(address) for name, address in addresses.items()}
        self._newest: dict[str, int] = {}
        self.published: list[str] = []
        """The learners' names in the order of their publications."""

    def poll(self) -> None:
        """Record which learner has published since the last call."""
        for name, client in self._clients.items():
            try:
                emitted = client.status().emitted
            except ActorQError:
                continue
            if emitted is not None and emitted.version != self._newest.get(name):
                self._newest[name] = emitted.version
                self.published.append(name)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()


class Run:
    """A run of one learner, one quantizer and one actor in folders under `root`."""

    def __init__(self, root: Path) -> None:
        self.root, self.learner, self.store = root, root / "learner", root / "store"
        self.addresses = dict(zip(("learner", "quantizer", "copy", "actor", "other"), free_addresses(5), strict=True))
        (root / "logs").mkdir(parents=True, exist_ok=True)

    def start(self, fleet: Fleet) -> None:
        """Start all services."""
        fleet.start(
            "quantizer", "quantizer_service", "--listen", self.addresses["quantizer"], "--store", str(self.store)
        )
        self.start_learner(fleet, "learner", self.learner, "actor")

    def start_learner(self, fleet: Fleet, name: str, folder: Path, actor: str) -> None:
        """Start a learner in this folder, and an actor that connects to it."""
        quantizer = ("--quantizer", self.addresses["quantizer"])
        own = ("--listen", self.addresses[name], "--run-directory", str(folder), "--resume")
        fleet.start(name, "learner_service", *_SETTINGS, *own, *quantizer)
        fleet.start(actor, "actor_service", "--learner", self.addresses[name], *quantizer, "--name", f"{actor}-0")


@contextmanager
def _fleet(run: Run) -> Iterator[Fleet]:
    fleet = Fleet(run.root / "logs", {})
    try:
        yield fleet
    finally:
        fleet.close()


def copy(root: Path, seconds: float) -> dict[str, Any]:
    """Start a learner in a copy of a run's folder, in parallel to the learner of the run."""
    run = Run(root)
    learners = Learners({name: run.addresses[name] for name in ("learner", "copy")})
    with _fleet(run) as fleet:
        run.start(fleet)

        def has_published(times: int) -> bool:
            learners.poll()
            return len(learners.published) >= times

        if until(lambda: has_published(3), _START_S, _POLL_S) is None:
            raise ActorQError(f"the run did not start; see {root / 'logs'}")
        fleet.signal("learner", signal.SIGSTOP)
        shutil.copytree(run.learner, root / "copied")
        fleet.signal("learner", signal.SIGCONT)
        run.start_learner(fleet, "copy", root / "copied", "other")
        begun = time.monotonic()
        until(lambda: has_published(sys.maxsize), seconds, _POLL_S)
        ends = [end.code for end in fleet.exits if end.name == "copy" and end.at > begun]
        said = (root / "logs" / "copy.log").read_text(encoding="utf-8", errors="replace")
    learners.close()
    return {
        "seconds": seconds,
        "switches": switches(learners.published),
        "publications_of_the_copy": learners.published.count("copy"),
        "publications_of_the_run": learners.published.count("learner"),
        "ends_of_the_copy": len(ends),
        "refused_in_one_line": "another learner has continued the run" in said,
    }


def snapshot(root: Path, seconds: float, restores: bool) -> dict[str, Any]:
    """Let a run continue after a snapshot of its folders, then restore the snapshot."""
    run = Run(root)
    watcher = Watcher(run.addresses["quantizer"])
    with _fleet(run) as fleet:
        run.start(fleet)
        if until(lambda: watcher.newest >= 3, _START_S) is None:
            raise ActorQError(f"the run did not start; see {root / 'logs'}")
        until(lambda: False, seconds / 4)
        # The processes are stopped, because a snapshot of a volume is also taken at one moment.
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for name in ("learner", "quantizer"):
                fleet.signal(name, number)
            if number == signal.SIGSTOP:
                for folder in (run.learner, run.store):
                    shutil.copytree(folder, folder.with_suffix(".snapshot"))
        until(lambda: False, seconds)
    before = dict.fromkeys(watcher.contents)
    for folder in (run.learner, run.store):
        shutil.rmtree(folder)
        folder.with_suffix(".snapshot").rename(folder)
    if restores:
        subprocess.run([sys.executable, "-m", "actorq_apps.cli.main", "restore", str(run.learner)], check=True)
    with _fleet(run) as fleet:
        run.start(fleet)
        watcher.newest = 0
        until(lambda: len(watcher.contents.keys() - before) >= _GOES_ON_VERSIONS, _START_S + seconds)
    watcher.close()
    return {
        "versions_before": len(before),
        "versions_after": len(watcher.contents.keys() - before.keys()),
        "versions_with_two_contents": sum(len(each) > 1 for each in watcher.contents.values()),
        "newest": max(watcher.contents),
    }


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    with TemporaryDirectory() as folder:
        copied = copy(Path(folder, "copy"), arguments.seconds)
        print(copied, flush=True)
        snapshots = snapshot(Path(folder, "snapshot"), arguments.seconds / 4, not arguments.without_restore)
        print(snapshots, flush=True)
    figures = {"copy": copied, "snapshot": snapshots}
    return figures, targets(figures)


MEANINGS = (
    Meaning(
        "switches of the publisher beside a copied folder",
        "How often do a learner and its copy alternate in publishing policies?",
        "A copied folder disturbs the run.",
    ),
    Meaning(
        "the copy is refused in one line",
        "How many learners in copied folders are refused?",
        "A copied folder disturbs the run without an error.",
    ),
    Meaning(
        "versions with two contents after a restored snapshot",
        "How many policy versions have two contents after a snapshot is restored?",
        "Actors may use another policy than the run records.",
    ),
)


def targets(figures: dict[str, Any]) -> list[Target]:
    """The targets of these figures."""
    copied, snapshots = figures["copy"], figures["snapshot"]
    return [
        Target("switches of the publisher beside a copied folder", copied["switches"], 0),
        Target("the copy is refused in one line", int(copied["refused_in_one_line"]), 1, False),
        Target("versions with two contents after a restored snapshot", snapshots["versions_with_two_contents"], 0),
        Target("new versions after the restore", snapshots["versions_after"], _GOES_ON_VERSIONS, False),
    ]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=90.0, help="seconds with both learners (default: 90)")
    parser.add_argument(
        "--without-restore", action="store_true", help="continue from the snapshot without actorq restore"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _add_flags, _measure))
