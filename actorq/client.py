"""The public Python API of the three services. It takes and returns plain values, and raises `actorq.errors`.

    with LearnerClient("127.0.0.1:50051") as learner:
        for status in learner.watch():
            print(status.environment_steps, status.evaluation)

Clients are thread-safe. Unary calls have a deadline. A stream ends when its iterator is closed.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actorq import wire
from actorq.domain.contract import CONTRACT
from actorq.domain.policy import SIGNED, Policy, PolicyDescriptor, RetainedPolicy, Variant, variant_of
from actorq.domain.processes import NodeEnergy, ProcessStats
from actorq.domain.status import ActorSelfStatus, EnvironmentReset, Membership, RunStatus
from actorq.domain.trajectory import Episode, Evaluation, Role
from actorq.errors import CorruptedError, ExhaustedError, InvalidInputError, UnavailableError
from actorq.transport.channels import open_channel
from actorq.transport.errors import translated, was_dropped
from actorq.transport.options import UNARY_DEADLINE_S, Certificates
from actorq.transport.payload.blobs import ENCODINGS
from actorq.transport.reconnect import Backoff
from actorq.transport.security.renewal import Renewal
from actorq.v1 import actor_pb2, actor_pb2_grpc, learner_pb2, learner_pb2_grpc, quantizer_pb2, quantizer_pb2_grpc
from actorq.wire import bounds

_CHECKPOINT_DEADLINE_S = 60.0
# Waits before repeating a call that the service's gRPC has dropped.
_AFTER_DROP = Backoff(initial_s=0.05, maximum_s=0.5)
# Bounds on a quantizer's answers: number of retained versions, seconds of a hold.
_MAX_RETAINED = 100_000
_MAX_GRANTED_S = 86_400.0


class _Client:
    """Calls one service. `deadline_s` is the deadline of unary calls in seconds.

    A call that begins later uses renewed certificates. Open streams keep their certificates.
    """

    service = ""
    make_stub: Callable[[grpc.Channel], Any]

    def __init__(
        self, address: str, certificates: Certificates | None = None, deadline_s: float = UNARY_DEADLINE_S
    ) -> None:
        """Raises UserError when `address` is not HOST:PORT. The first call connects."""
        self.peer = f"{self.service} at {address}"
        self._address = address
        self._deadline = deadline_s
        self._renewal = None if certificates is None else Renewal(certificates)
        self._rng = random.Random()
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []
        self._closed = threading.Event()
        self._open(certificates)

    @property
    def channel(self) -> grpc.Channel:
        """The channel for calls that begin now. Callers must not keep it: renewed certificates bring a new channel."""
        self._renew()
        return self._channels[-1]

    @property
    def stub(self) -> Any:
        """The service's RPCs for calls that begin now. Callers must not keep it."""
        self._renew()
        return self._stub

    def wait(self) -> None:
        """Wait without a limit until the service can be reached. Ends with UnavailableError when the client is closed.

        gRPC's channel_ready_future is not used: its thread prints a traceback when the channel is closed early.
        """
        with self.calls():
            call = self._health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            next(call)
            call.cancel()

    def close(self) -> None:
        """Close the connection; streams end with UnavailableError."""
        with self._lock:
            self._closed.set()
        for channel in self._channels:
            channel.close()

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Turn gRPC errors of the calls inside into errors of the domain. This includes calls of a closed client."""
        try:
            with translated(self.peer):
                yield
        except ValueError as error:
            # gRPC raises this error for a call that begins on a closed channel.
            if not self._closed.is_set():
                raise
            raise UnavailableError(f"{self.peer} cannot be reached (this client is closed)") from error

    def _renew(self) -> None:
        with self._lock:
            renewed = None if self._renewal is None or self._closed.is_set() else self._renewal.poll()
            if renewed is not None:
                self._open(renewed)

    def _open(self, certificates: Certificates | None) -> None:
        # Earlier channels stay open, because streams may run on them.
        self._channels.append(open_channel(self._address, certificates))
        # Each channel gets its stub here: creating a stub on a closed channel crashes the process.
        self._stub = type(self).make_stub(self._channels[-1])
        self._health = health_pb2_grpc.HealthStub(self._channels[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _unary(self, method: Any, request: Any, deadline_s: float | None = None) -> Any:
        end, dropped = time.monotonic() + (deadline_s or self._deadline), 0
        while True:
            try:
                with self.calls():
                    return method(request, timeout=max(0.0, end - time.monotonic()))
            except UnavailableError as error:
                dropped += 1
                delay = _AFTER_DROP.delay(dropped, self._rng)
                if not was_dropped(error.__cause__) or time.monotonic() + delay >= end or self._closed.wait(delay):
                    raise


class LearnerClient(_Client):
    """Watch and control a run."""

    service = "learner"
    make_stub = learner_pb2_grpc.LearnerServiceStub

    def join(
        self,
        name: str,
        incarnation: int,
        role: Role,
        software_version: str,
        nonce: int = 0,
        epoch: int = 0,
        newest_version: int = 0,
    ) -> Membership:
        """Announce an actor and get its settings: see `JoinRequest` in protos/actorq/v1/learner.proto."""
        joining = wire.Joining(name, incarnation, role, software_version, nonce, epoch, newest_version)
        response = self._unary(self.stub.Join, wire.joining_to_proto(joining))
        try:
            return wire.membership_from_proto(response)
        except InvalidInputError as error:
            # A later attempt may succeed, unlike an attempt after a refusal.
            raise CorruptedError(f"{self.peer} sent an invalid answer: {error}") from error

    def status(self) -> RunStatus:
        """The current status of the run."""
        return wire.run_status_from_proto(self._unary(self.stub.GetStatus, learner_pb2.GetStatusRequest()).status)

    def watch(self, period_s: float = 1.0, patience_s: float = 600.0) -> Iterator[RunStatus]:
        """The status of the run, now and every `period_s` seconds, until the run is over.

        When the learner moves or dies, watching continues with the next learner. Raises UnavailableError when the first
        call finds no learner, when no learner has answered for `patience_s` seconds, and after `close`.
        """
        away_since, failures, was_there = 0.0, 0, False
        backoff, rng = Backoff(), random.Random()
        while True:
            try:
                for status in self._statuses(period_s):
                    failures, was_there = 0, True
                    yield status
                return
            except UnavailableError:
                away_since = away_since if failures else time.monotonic()
                failures += 1
                gives_up = not was_there or time.monotonic() - away_since >= patience_s
                if gives_up or self._closed.wait(backoff.delay(failures, rng)):
                    raise

    def _statuses(self, period_s: float) -> Iterator[RunStatus]:
        """One stream of statuses."""
        period = Duration()
        period.FromNanoseconds(round(period_s * 1e9))
        with self.calls():
            for response in self.stub.WatchStatus(learner_pb2.WatchStatusRequest(period=period)):
                yield wire.run_status_from_proto(response.status)

    def pause(self) -> int:
        """Pause updates. Returns the number of gradient updates so far."""
        return int(self._unary(self.stub.PauseTraining, learner_pb2.PauseTrainingRequest()).updates)

    def resume(self) -> int:
        """Resume updates. Returns the number of gradient updates so far."""
        return int(self._unary(self.stub.ResumeTraining, learner_pb2.ResumeTrainingRequest()).updates)

    def save_checkpoint(self) -> str:
        """Write a checkpoint. Returns its folder on the learner's disk."""
        request = learner_pb2.SaveCheckpointRequest()
        return str(self._unary(self.stub.SaveCheckpoint, request, _CHECKPOINT_DEADLINE_S).path)

    def reset_environment(self, discard: bool = False) -> EnvironmentReset:
        """Make the run forget the environment's spec. The run then uses the spec of the next actor.

        discard: also reset a run that has made progress, and move its files aside. Otherwise, progress raises
            ConflictError.
        """
        request = learner_pb2.ResetEnvironmentRequest(discard=discard)
        response = self._unary(self.stub.ResetEnvironment, request, _CHECKPOINT_DEADLINE_S)
        return wire.environment_reset_from_proto(response)

    def stop(self) -> None:
        """End the run permanently. The learner saves everything first."""
        self._unary(self.stub.StopRun, learner_pb2.StopRunRequest())

    def report_energy(self, energy: NodeEnergy, processes: tuple[ProcessStats, ...]) -> None:
        """Report the energy of a node, and the statistics of processes that cannot report themselves."""
        request = learner_pb2.ReportEnergyRequest(
            energy=wire.node_energy_to_proto(energy), processes=[wire.process_to_proto(stats) for stats in processes]
        )
        self._unary(self.stub.ReportEnergy, request)


class QuantizerClient(_Client):
    """Get policies.

    run_id: the run whose policies the caller wants; empty for any run. A policy of another run raises
        UnavailableError, because a relay or a name may temporarily lead to another run.

    weight_encoding: encoding of int8 weights that this processor computes exactly. Policies arrive in this encoding.

    A policy whose scheme, encoding or version differs from the request raises CorruptedError. A policy of the requested
    scheme may compute in fp32: see `PolicyDescriptor.effective_scheme`.
    """

    service = "quantizer"
    make_stub = quantizer_pb2_grpc.QuantizerServiceStub
    run_id = ""
    weight_encoding = SIGNED

    def watch(self, scheme: str, after_version: int = 0) -> Iterator[Policy]:
        """The newest policy of a scheme, then each newer one as soon as it is available. A slow caller misses some.

        The stream never ends by itself. Raises UnavailableError when the quantizer drains, dies or begins another run,
        and after `close`. Call `watch` again to continue.
        """
        variant = variant_of(scheme, self.weight_encoding)
        request = quantizer_pb2.WatchPoliciesRequest(
            after_version=after_version, encodings=ENCODINGS, contract=CONTRACT, **wire.variant_to_proto(variant)
        )
        with self.calls():
            for policy in self._policies(self.stub.WatchPolicies(request), variant):
                version = policy.descriptor.version
                if version <= after_version:
                    raise CorruptedError(f"{self.peer}: expected a version above {after_version}, got {version}")
                after_version = version
                yield policy
        raise UnavailableError(f"{self.peer} has ended the stream of {scheme} policies; watch again")

    def get(self, scheme: str, version: int = 0) -> Policy:
        """One retained policy, the newest for version 0. Raises NotFoundError when the version is not retained."""
        variant = variant_of(scheme, self.weight_encoding)
        request = quantizer_pb2.GetPolicyRequest(version=version, encodings=ENCODINGS, **wire.variant_to_proto(variant))
        with self.calls():
            for policy in self._policies(self.stub.GetPolicy(request, timeout=self._deadline), variant):
                if version not in (0, policy.descriptor.version):
                    raise CorruptedError(f"{self.peer}: expected version {version}, got {policy.descriptor.version}")
                return policy
        raise CorruptedError(f"{self.peer}: the stream of the policy ended before its last part")

    def _policies(self, responses: Iterator[Any], variant: Variant) -> Iterator[Policy]:
        assembler = wire.PolicyAssembler(variant)
        for response in responses:
            try:
                policy = assembler.add(response)
            except (InvalidInputError, ExhaustedError) as error:
                # A later attempt may succeed, unless the user's input is wrong.
                raise CorruptedError(f"{self.peer}: {error}") from error
            if policy is None:
                continue
            if self.run_id not in ("", policy.descriptor.run_id):
                raise UnavailableError(
                    f"{self.peer}: expected policies of run {self.run_id}, got one of run {policy.descriptor.run_id}"
                )
            yield policy

    def list(self) -> list[RetainedPolicy]:
        """All retained versions, newest first."""
        policies: list[RetainedPolicy] = []
        token = ""
        while True:
            page, token = self.page(page_token=token)
            policies += page
            if len(policies) > _MAX_RETAINED:
                raise ExhaustedError(f"{self.peer}: expected at most {_MAX_RETAINED} retained policies, got more")
            if not (token and page):
                return policies

    def page(self, page_size: int = 0, page_token: str = "") -> tuple[tuple[RetainedPolicy, ...], str]:
        """The retained versions after the page that gave the token, newest first, and the token of the next page.

        page_size: maximum number of versions; 0 for the service's default.
        """
        request = quantizer_pb2.ListPoliciesRequest(page_size=page_size, page_token=page_token)
        page = self._unary(self.stub.ListPolicies, request)
        token = bounds.page_token("next_page_token", page.next_page_token)
        return tuple(map(wire.retained_from_proto, page.policies)), token

    def fidelity(self, scheme: str, version: int = 0) -> PolicyDescriptor:
        """Descriptor of a retained policy with its fidelity report, the newest for version 0."""
        request = quantizer_pb2.GetFidelityReportRequest(scheme=scheme, version=version)
        return wire.descriptor_from_proto(self._unary(self.stub.GetFidelityReport, request).policy)

    def hold(self, version: int, seconds: float) -> float:
        """Keep a version in the store until its next evaluation, for `seconds` at most. Returns the seconds granted.

        Raises NotFoundError when the version is not retained.
        """
        request = quantizer_pb2.HoldPolicyRequest(version=version)
        request.duration.FromNanoseconds(round(seconds * 1e9))
        granted = self._unary(self.stub.HoldPolicy, request).granted
        return bounds.duration_s("granted", granted, 0.0, _MAX_GRANTED_S)


class ActorClient(_Client):
    """Inspect and control one actor."""

    service = "actor"
    make_stub = actor_pb2_grpc.ActorServiceStub

    def status(self) -> ActorSelfStatus:
        """The current status of the actor."""
        response = self._unary(self.stub.GetActorStatus, actor_pb2.GetActorStatusRequest())
        return wire.actor_self_status_from_proto(response)

    def evaluate(
        self, episodes: int, scheme: str = "", policy_version: int = 0, seed: int = 0
    ) -> Iterator[Episode | Evaluation]:
        """Run greedy episodes on the actor. Yields each episode when it ends, then the evaluation over all episodes.

        An empty scheme is the run's scheme, version 0 the newest.
        """
        request = actor_pb2.EvaluateRequest(episodes=episodes, scheme=scheme, policy_version=policy_version, seed=seed)
        with self.calls():
            for response in self.stub.Evaluate(request):
                if response.WhichOneof("payload") == "episode":
                    yield wire.episode_from_proto(response.episode)
                else:
                    yield wire.evaluation_from_proto(response.evaluation)

    def drain(self) -> tuple[int, int]:
        """Stop the actor. Returns the number of segments sent during the drain, and the number left unsent."""
        response = self._unary(self.stub.Drain, actor_pb2.DrainRequest())
        return response.sent_segments, response.unsent_segments
