"""Which environments every process can create, and which only the calling process can."""

from functools import partial
from typing import Any

import gymnasium
import pytest
from environment_doubles import Counting
from gymnasium.envs.classic_control import CartPoleEnv

from actor_service.embedded import OwnEnvironment
from actorq.errors import UserError
from actorq_apps.python.environments import resolve


class Notebook(CartPoleEnv):
    """Defined where other processes cannot import it."""


Notebook.__module__ = "__main__"


def make_cart_pole() -> gymnasium.Env[Any, Any]:
    return CartPoleEnv()


@pytest.mark.parametrize("environment", ["CartPole-v1", "my_package:Arm-v0", "dm_control/cartpole-balance"])
def test_keeps_an_id_unchanged(environment: str) -> None:
    assert resolve(environment) == environment


def test_a_class_of_a_package_gets_the_path_by_which_others_import_it() -> None:
    assert resolve(CartPoleEnv) == "gymnasium.envs.classic_control.cartpole:CartPoleEnv"


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        (Notebook, "Notebook"),
        (lambda: CartPoleEnv(), "environment"),
        (partial(CartPoleEnv, render_mode=None), "partial"),
        (gymnasium.make("CartPole-v1"), "CartPoleEnv"),
        (Counting, "Counting"),
    ],
    ids=["class of __main__", "lambda", "partial", "object", "class of a module off the path"],
)
def test_an_environment_that_others_cannot_import_runs_in_this_process(environment: Any, name: str) -> None:
    own = resolve(environment)
    assert isinstance(own, OwnEnvironment)
    assert own.environment_id == f"caller/{name}"


def test_a_nested_function_runs_in_this_process() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return CartPoleEnv()

    own = resolve(make)
    assert isinstance(own, OwnEnvironment)
    assert own.environment_id == "caller/make"
    assert not own.is_single


@pytest.mark.parametrize("environment", [3, None, ["CartPole-v1"], object()])
def test_refuses_other_values_in_one_line(environment: Any) -> None:
    with pytest.raises(UserError, match=r"environment: expected an id such as CartPole-v1.*, got \w+$"):
        resolve(environment)


def test_an_open_environment_serves_one_run_at_a_time() -> None:
    environment = gymnasium.make("CartPole-v1")
    first, second = OwnEnvironment("one", environment), OwnEnvironment("two", environment)
    first.claim()
    with pytest.raises(UserError, match="another run uses this object"):
        second.claim()
    first.free()
    second.claim()
    assert first.registered_id == "CartPole-v1"
