"""Kills quantizer and learner together, so that neither knows the versions that the other served."""

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError
from tests.integration.training_run import TrainingRun, process_id, trained

KILLS, SEED = 2, 13
VICTIMS = ("learner", "quantizer")


class Witness:
    """Watches the policies like an actor, through all restarts of the quantizer."""

    def __init__(self, address: str) -> None:
        self.contents: dict[int, set[bytes]] = {}
        self._address = address
        self._stop = threading.Event()
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="witness")
        self._thread.start()

    def wait_for(self, versions: int) -> None:
        """Wait until this number of further versions has come."""
        with self._more:
            wanted = len(self.contents) + versions
            assert self._more.wait_for(lambda: len(self.contents) >= wanted, timeout=120.0)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            try:
                with QuantizerClient(self._address) as client:
                    for policy in client.watch("int8"):
                        with self._more:
                            self.contents.setdefault(policy.descriptor.version, set()).add(policy.descriptor.sha256)
                            self._more.notify_all()
                        if self._stop.is_set():
                            return
            except ActorQError:
                continue


def at_work_again(killed: set[int]) -> Callable[[RunStatus], bool]:
    """True once both have restarted and the quantizer has accepted a version of the new learner."""

    def holds(status: RunStatus) -> bool:
        lives = {process.name: process.pid for process in status.processes}
        return all(name in lives and lives[name] not in killed for name in VICTIMS)

    return holds


def test_no_version_has_two_contents_after_double_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    settings = ("--target-return", "501", "--checkpoint.period-s", "3", "--publication.period-updates", "4")
    run = TrainingRun.start(tmp_path / "run", "--seed", "2", *settings)
    run.until(trained(updates=10))
    witness = Witness(run.addresses()["quantizer"])
    killed: set[int] = set()
    try:
        for _ in range(KILLS):
            # A version that is new to the witness may still come from the previous quantizer, or from its store.
            status = run.until(at_work_again(killed))
            witness.wait_for(rng.randint(1, 8))
            victims = {process_id(status, name) for name in VICTIMS}
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            killed |= victims
        run.until(at_work_again(killed))
        witness.wait_for(1)
    finally:
        witness.close()
        run.signal(signal.SIGINT)
        run.finish()
    assert len(witness.contents) > KILLS
    assert {version for version, contents in witness.contents.items() if len(contents) > 1} == set()
