"""Callers cancel every call of real services at random times. The logs then have no traceback."""

import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from actorq.client import QuantizerClient
from actorq.domain.contract import CONTRACT
from actorq.errors import NotFoundError
from actorq.v1 import actor_pb2, actor_pb2_grpc, learner_pb2, learner_pb2_grpc, quantizer_pb2, quantizer_pb2_grpc
from tests.integration.training_run import ENDLESS, TrainingRun, trained

ROUNDS, SEED = 15, 5
# The longest time before a caller leaves. Most calls take less, so callers leave before, during and after the answer.
LONGEST_S = 0.02
COMPLAINTS = ("Traceback", "never retrieved", "never awaited", "destroyed but it is pending")


class Caller:
    """Starts calls of one service and cancels them."""

    def __init__(self, address: str, make_stub: Callable[[grpc.Channel], Any]) -> None:
        self._address = address
        self._make_stub = make_stub
        self._rng = random.Random(SEED)
        self.gone = threading.Event()

    def leave(self, calls: list[tuple[str, Any]]) -> None:
        """Start each call many times and cancel it. Sometimes also close the connection."""
        for _ in range(ROUNDS):
            with grpc.insecure_channel(self._address) as channel:
                stub = self._make_stub(channel)
                for method, request in calls:
                    rpc = getattr(stub, method)
                    call = rpc.future(request) if hasattr(rpc, "future") else rpc(self._endless(request))
                    self.gone.wait(self._rng.uniform(0.0, LONGEST_S))
                    if self._rng.random() < 0.9:
                        call.cancel()

    def _endless(self, request: Any) -> Any:
        """An endless stream of requests, or the single request itself."""
        if not isinstance(request, tuple):
            return request

        def requests() -> Iterator[Any]:
            yield from request
            self.gone.wait()

        return requests()


def test_canceled_calls_leave_no_traceback_in_any_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    learner, quantizer, actor = learner_pb2, quantizer_pb2, actor_pb2
    run = TrainingRun.start(tmp_path / "run", *ENDLESS, "--replay.min-size", "500")
    status = run.until(lambda status: trained(updates=1)(status) and "actor-0" in run.addresses()["actors"])
    addresses = run.addresses()
    opening = quantizer.PublishOpen(run_id=status.run_id, scheme="int8", contract=CONTRACT)
    callers: list[tuple[Caller, list[tuple[str, Any]]]] = [
        (
            Caller(addresses["learner"], learner_pb2_grpc.LearnerServiceStub),
            [
                ("Join", learner.JoinRequest(actor_name="leaver", role=learner.ACTOR_ROLE_ACTOR, contract=CONTRACT)),
                ("StreamTrajectories", (learner.StreamTrajectoriesRequest(),)),
                ("GetStatus", learner.GetStatusRequest()),
                ("WatchStatus", learner.WatchStatusRequest()),
                ("PauseTraining", learner.PauseTrainingRequest()),
                ("ResumeTraining", learner.ResumeTrainingRequest()),
                ("SaveCheckpoint", learner.SaveCheckpointRequest()),
                ("ResetEnvironment", learner.ResetEnvironmentRequest()),
                ("ReportEnergy", learner.ReportEnergyRequest()),
            ],
        ),
        (
            Caller(addresses["quantizer"], quantizer_pb2_grpc.QuantizerServiceStub),
            [
                ("WatchPolicies", quantizer.WatchPoliciesRequest(scheme="int8-weights")),
                ("GetPolicy", quantizer.GetPolicyRequest(scheme="fp32", version=10**9)),
                ("GetPolicy", quantizer.GetPolicyRequest(scheme="fp32")),
                ("ListPolicies", quantizer.ListPoliciesRequest()),
                ("GetFidelityReport", quantizer.GetFidelityReportRequest(scheme="int8", version=10**9)),
                ("HoldPolicy", quantizer.HoldPolicyRequest(version=10**9)),
                ("PublishCheckpoints", (quantizer.PublishCheckpointsRequest(open=opening),)),
                ("PublishCheckpoints", (quantizer.PublishCheckpointsRequest(),)),
            ],
        ),
        (
            Caller(addresses["actors"]["actor-0"], actor_pb2_grpc.ActorServiceStub),
            [
                ("GetActorStatus", actor.GetActorStatusRequest()),
                ("Evaluate", actor.EvaluateRequest(episodes=3)),
                ("Evaluate", actor.EvaluateRequest(episodes=1, scheme="int8", policy_version=10**9)),
            ],
        ),
    ]
    with ThreadPoolExecutor() as pool:
        for leaving in [pool.submit(caller.leave, calls) for caller, calls in callers]:
            leaving.result()
    for caller, _ in callers:
        caller.gone.set()
    # On a slow machine, possibly none of the other callers waited for its answer.
    with QuantizerClient(addresses["quantizer"]) as client, pytest.raises(NotFoundError):
        client.get("fp32", 10**9)
    run.signal(signal.SIGINT)
    code, printed = run.finish()
    assert code == 130, printed
    logs = {path.name: path.read_text() for path in sorted((tmp_path / "run" / "logs").iterdir())}
    # The services answered the callers that waited.
    assert "GetPolicy refused" in "\n".join(logs.values())
    for name, text in logs.items():
        if any(complaint in text for complaint in COMPLAINTS):
            pytest.fail(f"{name} complains:\n{text}")
