"""The actor around an uploader."""

import queue
import threading
import time
from collections.abc import Callable

from actor_service.environments import describe_environment
from actor_service.uploader import Uploader
from actorq.client import LearnerClient
from actorq.domain.status import ActorReport, Exploration, Membership, RunSpec
from actorq.errors import UnavailableError
from actorq.telemetry.process_stats import measure_process
from tests.actor_service.actor_peers import DEADLINE_S, small_segment

SPEC = describe_environment("CartPole-v1")
RUN = RunSpec("run", "CartPole-v1", 1, 8, 2**20, 2, "int8", 20, 250, 1.0, 0)
FOREVER = threading.Event()


class Side:
    """The actor around an uploader: its arguments for Join, and the calls that it receives."""

    def __init__(self, client: LearnerClient) -> None:
        self.stored = 0
        self.joins = 0
        self.away = 0
        self.steps = 0
        self.stops: queue.Queue[bool] = queue.Queue()
        self.evaluations: queue.Queue[int] = queue.Queue()
        self.faults: queue.Queue[BaseException] = queue.Queue()
        self.shares: queue.Queue[int] = queue.Queue()
        self.uploader = Uploader(
            client,
            "actor-0",
            self._join,
            self._report,
            on_stop=lambda: self.stops.put(True),
            on_evaluate=self.evaluations.put,
            on_fault=self.faults.put,
            on_share=self.shares.put,
        )

    def start(self, capacity: int = 2, period_s: float = 1_000.0) -> Uploader:
        self.uploader.start(SPEC, capacity, period_s)
        return self.uploader

    def fault(self) -> BaseException:
        return self.faults.get(timeout=DEADLINE_S)

    def _join(self) -> Membership:
        self.joins += 1
        if self.away:
            self.away -= 1
            raise UnavailableError("the learner cannot be reached")
        return Membership(RUN, 0, Exploration((0.1,), (0.2,)), self.stored, 7, incarnation=7)

    def _report(self) -> ActorReport:
        self.steps += 1
        return ActorReport(3, "int8", self.steps, 1.0, self.uploader.queued, (), measure_process("actor-0", "actor"))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for the uploader's thread to have seen an answer."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        FOREVER.wait(0.005)


def segments(*sequences: int) -> list[tuple[str, int]]:
    return [("segment", sequence) for sequence in sequences]


def put(uploader: Uploader, *sequences: int) -> None:
    for sequence in sequences:
        uploader.put(small_segment(sequence), FOREVER)
