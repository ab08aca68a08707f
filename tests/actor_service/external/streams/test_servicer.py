"""Play over real connections: the states of a stream, and its ends."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from actor_service.external.streams.servicer import ExternalServicer
from actorq import wire
from actorq.domain.leaves import Leaf
from actorq.errors import ConflictError, DeniedError, ExhaustedError, InvalidInputError, UnavailableError
from actorq.transport.options import Certificates
from actorq.transport.security.identity import identity_uri
from actorq.v1 import external_pb2, tensor_pb2
from tests.actor_service.external.clients import Client, served
from tests.actor_service.external.simulators import DEADLINE_S, NAME, door, opening, step
from tests.actorq.transport.certificate_authority import Authority


def test_a_simulator_opens_its_stream_plays_and_closes_it() -> None:
    at = door(timeout_s=12.5)
    with served(at) as stage:
        client = Client(stage.address)
        ready = client.open(opening(2))
        assert (ready.protocol, ready.run_id, ready.environment_id) == (1, "run", NAME)
        assert ready.timeout.ToSeconds() == 12
        for _ in range(3):
            action = client.play(step(np.zeros((2, 4), np.float32)))
            assert wire.tensor_from_proto(action.actions).tolist() == [1, 1]
            assert list(action.policy_versions) == [3, 3]
            assert (action.scheme, list(action.evaluating)) == ("int8", [False, False])
        client.finish()
        assert client.error() is None
    assert at.streams == 0


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([step()], "stream: the first message must be `open`"),
        ([external_pb2.PlayRequest()], "stream: the first message must be `open`"),
        ([opening(), opening()], "stream: expected a step after `open`, got another message"),
        ([opening(), external_pb2.PlayRequest()], "expected a step after `open`"),
        ([opening(observations=())], "open.observations: expected at least one array"),
        ([opening(environments=0)], "open.environments: must be 1 to 65536, got 0"),
        ([opening(), step(np.zeros((1, 3), np.float32))], r"step 1: .*must be float32\[1, 4\], got float32\[1, 3\]"),
        ([opening(), step(), step(rewards=float("nan"))], "step 2: step.rewards: must be from .* got nan"),
        ([opening(), step(), step(rewards=float("inf"))], "got inf in environment 0"),
    ],
)
def test_a_wrong_message_ends_the_stream_with_one_line(messages: list[object], error: str) -> None:
    at = door()
    with served(at) as stage:
        client = Client(stage.address)
        for message in messages:
            client.send(message)  # type: ignore[arg-type]
        found = client.error()
        assert isinstance(found, InvalidInputError), found
        assert re.search(error, str(found))
        # Other simulators go on.
        other = Client(stage.address)
        other.open()
        other.play(step())


def test_spaces_that_change_after_the_opening_are_refused() -> None:
    with served(door()) as stage:
        client = Client(stage.address)
        client.open()
        client.play(step())
        client.send(step(np.zeros((1, 4), np.float32), np.zeros((1, 2), np.float32)))
        with pytest.raises(InvalidInputError, match=r"step 2: .*expected 1 arrays as in `open`, got 2"):
            client.receive()


def test_a_simulator_with_other_spaces_or_another_protocol_is_refused() -> None:
    with served(door()) as stage:
        Client(stage.address).open()
        with pytest.raises(ConflictError, match=r"sizes \(3,\) instead of \(2,\)"):
            Client(stage.address).open(opening(sizes=(3,)))
        with pytest.raises(ConflictError, match=r"open.protocol: expected 1, got 9"):
            Client(stage.address).open(opening(protocol=9))


def test_a_simulator_beyond_the_limit_is_refused() -> None:
    with served(door(max_streams=1)) as stage:
        first = Client(stage.address)
        first.open()
        with pytest.raises(ExhaustedError, match="at most 1 streams"):
            Client(stage.address).open()
        first.finish()


def test_bytes_that_are_no_tensor_are_refused() -> None:
    with served(door()) as stage:
        client = Client(stage.address)
        client.open()
        tensor = tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1, 4], data=b"short")
        message = external_pb2.PlayStep(observations=[tensor], rewards=[0.0], terminated=[False], truncated=[False])
        client.send(external_pb2.PlayRequest(step=message))
        with pytest.raises(InvalidInputError, match="must have 16 bytes, got 5"):
            client.receive()


def test_a_simulator_without_a_step_in_time_is_disconnected_and_may_come_back() -> None:
    at = door(timeout_s=0.2)
    with served(at) as stage:
        slow = Client(stage.address)
        slow.open()
        slow.play(step())
        with pytest.raises(UnavailableError, match=r"sent no step after an answer for 0\.2 s.*external\.timeout_s"):
            slow.receive()
        Client(stage.address).open()


def test_a_simulator_that_does_not_read_its_answers_is_disconnected() -> None:
    at = door(timeout_s=1.0, max_environments=1_000)
    image = Leaf("", "image", (8, 8, 3), "uint8")
    with served(at) as stage:
        deaf = Client(stage.address)
        deaf.send(opening(1_000, observations=(image,)))
        other = Client(stage.address)
        other.open(opening(observations=(image,)))
        for _ in range(500):
            deaf.send(step(np.zeros((1_000, 8, 8, 3), np.uint8)))
        for _ in range(50):
            other.play(step(np.zeros((1, 8, 8, 3), np.uint8)))
        assert isinstance(deaf.error(), UnavailableError)


def test_a_killed_simulator_leaves_and_the_others_go_on() -> None:
    at = door()
    with served(at) as stage:
        killed, other = Client(stage.address), Client(stage.address)
        killed.open()
        killed.play(step())
        other.open()
        killed.kill()
        while at.streams > 1:
            other.play(step())


@pytest.mark.parametrize("waits_for", ["step", "answer"])
def test_the_end_of_the_actor_ends_all_streams(waits_for: str) -> None:
    at = door()
    with served(at, answers=False) as stage:
        client = Client(stage.address)
        client.open()
        if waits_for == "answer":
            client.send(step())
            while not at.take(DEADLINE_S).arrivals:
                pass
        at.end(UnavailableError("the actor ends: connect again"))
        with pytest.raises(UnavailableError, match="the actor ends: connect again"):
            client.receive()


def test_the_end_of_the_actor_waits_for_a_write_in_progress() -> None:
    written: list[external_pb2.PlayResponse] = []

    class SlowContext:
        """gRPC refuses the status of a call whose write was cancelled."""

        async def write(self, response: external_pb2.PlayResponse) -> None:
            at.end(UnavailableError("the actor ends: connect again"))
            for _ in range(10):
                await asyncio.sleep(0)
            written.append(response)

    async def requests() -> AsyncIterator[external_pb2.PlayRequest]:
        yield external_pb2.PlayRequest(open=wire.play_opening_to_proto(opening()))
        await asyncio.Event().wait()

    async def play() -> None:
        with pytest.raises(UnavailableError, match="the actor ends: connect again"):
            await ExternalServicer(at).Play(requests(), SlowContext())

    at = door()
    asyncio.run(play())
    assert [each.WhichOneof("payload") for each in written] == ["ready"]


def test_the_end_of_the_run_is_the_end_of_the_stream() -> None:
    at = door()
    with served(at) as stage:
        client = Client(stage.address)
        client.open()
        client.play(step())
        at.end(None)
        assert client.error() is None
        with pytest.raises(ConflictError, match="the run is over"):
            Client(stage.address).open()


@pytest.mark.parametrize(("role", "allowed"), [("simulator", True), ("actor", False), ("operator", False)])
def test_only_a_simulators_certificate_may_play(role: str, allowed: bool, tmp_path: Path) -> None:
    authority = Authority()
    mine = Certificates.load(authority.issue(tmp_path, "server"))
    own = Certificates.load(authority.issue(tmp_path, role, uris=(identity_uri(role, "actorq"),)))
    with served(door(), mine) as stage:
        client = Client(stage.address, own)
        if allowed:
            assert client.open().protocol == 1
        else:
            with pytest.raises(
                DeniedError, match=f"{role} may not call ExternalEnvironmentService.Play: only simulator"
            ):
                client.open()


def test_many_simulators_play_at_once() -> None:
    at = door()
    with served(at) as stage:
        clients = [Client(stage.address) for _ in range(50)]
        for client in clients:
            client.open()
        for _ in range(5):
            for client in clients:
                client.send(step())
            for client in clients:
                assert list(client.receive().action.policy_versions) == [3]
        assert at.streams == 50
