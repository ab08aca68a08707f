"""Methods of the benchmark of sparse training are settings of `actorq train`."""

import pytest

from actorq.config.run_config import RunConfig
from actorq.process import Sources, argument_parser
from benchmarks.training.rlx2_tasks import METHODS, TASKS


def _config(method: str) -> RunConfig:
    task = next(task for task in TASKS if task.name == "td3/Hopper-v5")
    models = (RunConfig,)
    return Sources.read(models, argument_parser("test", "", models).parse_args(task.flags(method, "int8", 1))).resolve(
        RunConfig
    )


def test_a_static_actor_has_a_dynamic_critic_and_the_other_mechanisms_of_rlx2() -> None:
    found, rlx2 = _config("static_actor"), _config("rlx2")
    assert found.sparsity.method_of("actor") == "static"
    assert found.sparsity.method_of("critic") == "rlx2"
    assert (found.sparsity.actor, found.sparsity.critic) == (rlx2.sparsity.actor, rlx2.sparsity.critic)
    assert found.multi_step_of(1) == rlx2.multi_step_of(1)
    assert found.asks_for_greedy_actions
    assert rlx2.asks_for_greedy_actions


@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_valid_settings(method: str) -> None:
    assert _config(method).scheme == "int8"
