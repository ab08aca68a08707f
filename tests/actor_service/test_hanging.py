"""A whole actor whose environment hangs: it ends, so that its supervisor restarts it."""

import json
import os
import re
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from actorq.client import ActorClient
from actorq.errors import UnavailableError
from actorq.lifeline import READY
from actorq.process import EXIT_HUNG
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import ScriptedLearner, ScriptedQuantizer, membership, serving
from tests.actor_service.actor_policies import constant_policy
from tests.builders.forked_commands import ForkedCommand

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0


@pytest.mark.parametrize(
    ("environment", "role"),
    [("Hanging-v0", "actor"), ("HangingAtTheEnd-v0", "actor"), ("HangingAtTheEnd-v0", "evaluator")],
)
def test_an_actor_whose_environment_hangs_ends_with_its_own_exit_code(environment: str, role: str) -> None:
    learner, quantizer = ScriptedLearner(), ScriptedQuantizer()
    # Its third step, or its end, never returns.
    learner.membership = membership(environment_id=f"environment_doubles:{environment}", segment_length=2)
    with serving(learner) as learner_address, serving(quantizer) as quantizer_address:
        actor = ForkedCommand(
            *("actor_service", "--learner", learner_address, "--quantizer", quantizer_address, "--role", role),
            *("--actor.environment-timeout-s", "2", "--actor.allow-modules", "environment_doubles"),
            environment={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests/user_modules"},
            cwd=ROOT,
        )
        try:
            learner.opened()
            quantizer.watched()
            quantizer.serve(constant_policy([1.0, 0.0, 0.0], observation_size=2))
            learner.answer(credit=1)
            learner.received(1)
            learner.answer(directive=learner_pb2.DIRECTIVE_STOP)
            _, log = actor.communicate(timeout=DEADLINE_S)
        finally:
            with actor:
                actor.kill()
    assert actor.returncode == EXIT_HUNG
    assert re.search(rf" \d+ s: .*{EXIT_HUNG}", log)
    # And where it hangs.
    assert "environment_doubles.py" in log


def test_a_requested_evaluation_that_hangs_ends_a_drained_actor_too(tmp_path: Path) -> None:
    quantizer, announced = ScriptedQuantizer(), tmp_path / "actor.json"
    quantizer.publish(constant_policy([1.0, 0.0, 0.0], observation_size=2))
    parents_end, lifeline = socket.socketpair()
    with serving(quantizer) as quantizer_address, parents_end, lifeline:
        actor = ForkedCommand(
            *("actor_service", "--role", "standalone", "--environment", "environment_doubles:Hanging-v0"),
            *("--quantizer", quantizer_address, "--announce", str(announced), "--lifeline"),
            *("--actor.environment-timeout-s", "2", "--scheme", "int8-weights"),
            environment={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests/user_modules"},
            cwd=ROOT,
            lifeline=lifeline.fileno(),
        )
        try:
            assert parents_end.recv(len(READY))
            with ActorClient(json.loads(announced.read_text())["address"], deadline_s=DEADLINE_S) as client:
                evaluating = threading.Thread(target=evaluate, args=(client,))
                evaluating.start()
                assert actor.stdout.readline() == "hanging\n"
                client.drain()
                _, log = actor.communicate(timeout=DEADLINE_S)
                evaluating.join(DEADLINE_S)
        finally:
            with actor:
                actor.kill()
    assert actor.returncode == EXIT_HUNG
    assert "draining" not in log


def test_an_evaluator_whose_environment_hangs_while_it_is_made_ends_too() -> None:
    actor = ForkedCommand(
        *("actor_service", "--role", "standalone", "--environment", "environment_doubles:HangingWhenMade-v0"),
        *("--actor.environment-timeout-s", "1"),
        environment={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests/user_modules"},
        cwd=ROOT,
    )
    try:
        _, log = actor.communicate(timeout=DEADLINE_S)
    finally:
        with actor:
            actor.kill()
    assert actor.returncode == EXIT_HUNG
    assert "environment_doubles.py" in log


def evaluate(client: ActorClient) -> None:
    with suppress(UnavailableError):
        list(client.evaluate(1))
