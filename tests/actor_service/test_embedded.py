"""An actor on the threads of another program."""

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from actor_service.embedded import EmbeddedActor, OwnEnvironment
from actorq.config.run_config import RunConfig


def test_evaluations_get_their_share_of_the_one_core_that_python_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    config = RunConfig(environment="caller/CartPole", like="CartPole-v1")
    actor = EmbeddedActor(
        OwnEnvironment("CartPole", CartPoleEnv), config, "127.0.0.1:1", "127.0.0.1:2", lambda error: None
    )
    evaluator = actor._roles[1]
    assert evaluator.role == "evaluator"
    assert evaluator._host.processors == 1
