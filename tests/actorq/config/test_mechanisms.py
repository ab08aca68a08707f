"""Settings decide which RLx2 mechanisms a run uses. Useless combinations are refused."""

from dataclasses import replace
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError

OBSERVATIONS = ArraySpec((4,), "float32")
DISCRETE = EnvironmentSpec("CartPole-v1", OBSERVATIONS, ArraySpec((), "int64"), sizes=(2,))
CONTINUOUS = EnvironmentSpec("Arms-v0", OBSERVATIONS, ArraySpec((2,), "float32", (-1.0,), (1.0,)))


def config(
    algorithm: str = "td3",
    method: str = "dense",
    dynamic: bool | None = None,
    min_size: int = 7_000,
    **changes: Any,
) -> RunConfig:
    tree = {
        "algorithm": algorithm,
        "sparsity": {"method": method},
        "actor": {"segment_length": 8},
        "replay": {"capacity": 9_000, "min_size": 100, "prioritized": False},
        "dynamic_capacity": {"min_size": min_size, "enabled": dynamic},
    }
    return RunConfig.model_validate({**tree, **changes})


@pytest.mark.parametrize("algorithm", ["td3", "sac", "xqc", "my_package:Algorithm"])
@pytest.mark.parametrize(
    ("method", "switch", "on"),
    [
        ("dense", None, False),
        ("rigl", None, False),
        ("rlx2", None, True),
        ("rlx2", False, False),
        ("dense", True, True),
    ],
)
def test_rlx2_turns_multi_step_targets_on_and_the_setting_overrides_it(
    algorithm: str, method: str, switch: bool | None, on: bool
) -> None:
    settings = config(algorithm, method, multi_step=switch)
    assert settings.multi_step_of(n_step=1) == (settings.multi_step_returns if on else None)


@pytest.mark.parametrize(
    ("algorithm", "n_step", "instead"),
    [("d4pg", 5, ""), ("d4pg", 1, ""), ("dqn", 3, ""), ("td3", 2, r".*td3\.n_step.* 1")],
)
def test_algorithms_with_multi_step_returns_keep_their_returns(algorithm: str, n_step: int, instead: str) -> None:
    returns: dict[str, Any] = {algorithm: {"n_step": n_step}}
    assert config(algorithm, "dense" if algorithm == "dqn" else "rlx2", **returns).multi_step_of(n_step) is None
    with pytest.raises(ValueError, match=f"multi_step.*{algorithm}.*n_step {n_step}{instead}"):
        config(algorithm, multi_step=True, **returns)


def test_a_users_algorithm_with_multi_step_returns_keeps_its_returns() -> None:
    """The steps of its returns are known only once it is created."""
    with pytest.raises(UserError, match=r"multi_step.*own:Algorithm.* 3.*own:Algorithm\.n_step.* 1"):
        config("own:Algorithm", multi_step=True).multi_step_of(n_step=3)


def test_returns_may_have_more_steps_than_segments() -> None:
    settings = config(multi_step=True, multi_step_returns={"n_step": 9})
    assert settings.multi_step_of(n_step=1) == settings.multi_step_returns
    assert config("dqn", dqn={"n_step": 9}).dqn.n_step == 9


@pytest.mark.parametrize("algorithm", ["td3", "sac", "d4pg", "xqc"])
@pytest.mark.parametrize(
    ("method", "switch", "on"),
    [("dense", None, False), ("set", None, False), ("rlx2", None, True), ("rlx2", False, False), ("dense", True, True)],
)
def test_rlx2_turns_dynamic_capacity_on_and_the_setting_overrides_it(
    algorithm: str, method: str, switch: bool | None, on: bool
) -> None:
    settings = config(algorithm, method, dynamic=switch)
    assert settings.dynamic_capacity_of(CONTINUOUS) == (settings.dynamic_capacity if on else None)
    assert settings.asks_for_greedy_actions == on


def test_rlx2_is_refused_for_dqn_which_has_neither_mechanism() -> None:
    with pytest.raises(ValueError, match=r"sparsity\.method.*rlx2.*dqn.*rigl"):
        config("dqn", "rlx2")
    assert config("dqn", "rigl").sparsity.method == "rigl"


def test_refuses_dynamic_capacity_with_discrete_actions() -> None:
    assert config("own:Algorithm", "rlx2").dynamic_capacity_of(DISCRETE) is None
    with pytest.raises(ValueError, match=r"dynamic_capacity\.enabled.*dqn.*discrete"):
        config("dqn", dynamic=True)
    with pytest.raises(UserError, match=r"dynamic_capacity\.enabled.*CartPole-v1.* 2 discrete"):
        config("own:Algorithm", dynamic=True).dynamic_capacity_of(DISCRETE)


def test_refuses_dynamic_capacity_in_a_run_too_short_to_drop_transitions() -> None:
    config(dynamic=True, max_environment_steps=7_001).dynamic_capacity_of(CONTINUOUS)
    with pytest.raises(UserError, match=r"dynamic_capacity\.min_size.*max_environment_steps.*7000.* 7000"):
        config(dynamic=True, max_environment_steps=7_000).dynamic_capacity_of(CONTINUOUS)


def test_refuses_a_dynamic_capacity_whose_minimum_fills_the_replay() -> None:
    # 9000 rows: 8 of 9 are transitions; with stacks of 4, 8 of 12.
    config(dynamic=True, min_size=7_999).dynamic_capacity_of(CONTINUOUS)
    with pytest.raises(UserError, match=r"dynamic_capacity\.min_size.* 8000.*9000 rows.* 8000"):
        config(dynamic=True, min_size=8_000).dynamic_capacity_of(CONTINUOUS)
    with pytest.raises(UserError, match=r" 6000.* 7000.*--no-dynamic-capacity\.enabled"):
        config(dynamic=True).dynamic_capacity_of(replace(CONTINUOUS, frame_stack=4))
