"""A whole actor for simulators, with a learner and a quantizer that a test scripts."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actor_service.process import ActorService
from actorq import wire
from actorq.client import ActorClient
from actorq.config.run_config import RunConfig
from actorq.domain.status import Exploration
from actorq.domain.trajectory import Episode
from actorq.errors import ConflictError, InvalidInputError, UnavailableError, UserError
from actorq.process import EXIT_OK
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, ScriptedQuantizer, membership
from tests.actor_service.actor_policies import constant_policy
from tests.actor_service.actor_process import beside, first_policy, running_actor, stop
from tests.actor_service.external.clients import Client
from tests.actor_service.external.simulators import NAME, SPEC, opening, step

RIGHT = constant_policy([0.0, 1.0])


@contextmanager
def actor(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, **run: Any
) -> Iterator[tuple[ActorClient, Future[int], str]]:
    """An actor for simulators, without exploration; a client of it, its exit code once it has ended, its address."""
    given = {"environment_id": NAME, "segment_length": 4, **run}
    learner.membership = replace(membership(**given), exploration=Exploration((0.0,), (0.0,)))
    config = RunConfig.model_validate({"scheme": "int8-weights", "external": {"evaluate": False, "timeout_s": 20.0}})
    settings = beside(learner, quantizer).model_copy(update={"external": True})
    with running_actor(settings, config) as (client, ended):
        yield client, ended, client.peer.rpartition(" ")[2]


def connected(address: str, given: wire.PlayOpening | None = None) -> Client:
    """A simulator with an open stream. Before its actor has joined the run, it connects again, as clients do."""
    while True:
        client = Client(address)
        try:
            client.open(given)
            return client
        except UnavailableError:
            client.kill()


def test_transitions_of_a_simulator_reach_the_learner(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    with actor(learner, quantizer) as (client, ended, address):
        simulator = connected(address)
        opened = learner.opens.get(timeout=DEADLINE_S)
        assert wire.environment_from_proto(opened.environment) == SPEC
        quantizer.watched()
        quantizer.serve(RIGHT)
        learner.answer(credit=1)
        for value in range(4):
            action = simulator.play(step(np.full((1, 4), value, np.float32), rewards=float(value)))
            assert wire.tensor_from_proto(action.actions) == [1]
        simulator.play(step(np.full((1, 4), 4, np.float32), rewards=4.0, truncated=1))
        segment = learner.segments.get(timeout=DEADLINE_S)
        segment.check(SPEC)
        np.testing.assert_array_equal(segment.observations[:, 0, 0], range(5))
        np.testing.assert_array_equal(segment.rewards[:, 0], [1, 2, 3, 4])
        np.testing.assert_array_equal(segment.truncated[:, 0], [0, 0, 0, 1])
        assert segment.episodes == (Episode(10.0, 4, 0),)
        status = client.status()
        assert status.environment == SPEC
        assert status.activity == "acting for simulators: 1 connected, 1 environments"
        assert status.report.environment_steps == 4
        stop(learner, ended, acknowledged=1)
        assert simulator.error() is None


def test_a_killed_simulator_cuts_its_episode_and_the_others_go_on(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    with actor(learner, quantizer) as (_, ended, address):
        killed, other = connected(address), connected(address)
        first_policy(learner, quantizer, RIGHT)
        learner.answer(credit=100)
        for _ in range(3):
            killed.play(step())
        killed.kill()
        segment = learner.segments.get(timeout=DEADLINE_S)
        np.testing.assert_array_equal(segment.truncated[:, 0], [False, True])
        for _ in range(5):
            other.play(step())
        assert learner.segments.get(timeout=DEADLINE_S).steps == 4
        stop(learner, ended, acknowledged=2)


def test_a_drained_actor_sends_the_steps_of_all_streams(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    with actor(learner, quantizer) as (client, ended, address):
        one, other = connected(address), connected(address)
        first_policy(learner, quantizer, RIGHT)
        learner.answer(credit=100)
        for simulator in (one, other):
            for _ in range(3):
                simulator.play(step())
        drained: Future[Any] = Future()
        draining = threading.Thread(target=lambda: drained.set_result(client.drain()))
        draining.start()
        assert [sequence for _, sequence in learner.received(2)] == [1, 2]
        learner.answer(acknowledged=2)
        assert drained.result(DEADLINE_S) == (2, 0)
        draining.join()
        for simulator in (one, other):
            assert isinstance(simulator.error(), UnavailableError)
        assert ended.result(DEADLINE_S) == EXIT_OK


@pytest.mark.parametrize(
    "error",
    [
        ConflictError(f"environment: expected the run's {NAME}, got one with sizes (2,) instead of (3,)"),
        InvalidInputError("algorithm sac needs continuous actions"),
    ],
)
def test_spaces_that_the_learner_refuses_end_the_streams_and_not_the_actor(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer, error: Exception
) -> None:
    with actor(learner, quantizer) as (client, ended, address):
        wrong = connected(address)
        learner.opened()
        quantizer.watched()
        learner.fail(error)
        found = wrong.error()
        assert isinstance(found, ConflictError)
        assert str(error) in str(found)
        right = connected(address, opening(sizes=(3,)))
        reopened = learner.opens.get(timeout=DEADLINE_S)
        assert wire.environment_from_proto(reopened.environment).sizes == (3,)
        quantizer.watched()
        quantizer.serve(constant_policy([0.0, 0.0, 1.0]))
        learner.answer(credit=1)
        assert wire.tensor_from_proto(right.play(step()).actions) == [2]
        assert "the last problem: " in client.status().activity
        stop(learner, ended)


def test_an_actor_for_simulators_has_no_environments_for_a_request(
    learner: ScriptedLearner, quantizer: ScriptedQuantizer
) -> None:
    wanted = "connect a simulator with explore=false, or ask another actor"
    with actor(learner, quantizer) as (client, _, _), pytest.raises(ConflictError, match=wanted):
        list(client.evaluate(episodes=1))


def test_only_an_exploring_actor_serves_simulators(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    settings = beside(learner, quantizer, "evaluator").model_copy(update={"external": True})
    with pytest.raises(UserError, match="--external: expected --role actor, got evaluator"):
        ActorService(RunConfig(), settings, "actor-0")


def test_the_run_is_over_for_its_simulators_too(learner: ScriptedLearner, quantizer: ScriptedQuantizer) -> None:
    with actor(learner, quantizer) as (_, ended, address):
        simulator = connected(address)
        first_policy(learner, quantizer, RIGHT)
        simulator.play(step())
        learner.answer(directive=learner_pb2.DIRECTIVE_STOP)
        assert simulator.error() is None
        assert ended.result(DEADLINE_S) == EXIT_OK
