"""Impossible settings give one line before training."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.config.settings import build
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms import make_algorithm
from learner_service.sparsity import METHODS, check_same_topology

# The default of a learner's process. More threads only wait for each other on networks this small.
torch.set_num_threads(1)

ARMS = EnvironmentSpec("Arms-v0", ArraySpec((6,), "float32"), ArraySpec((2,), "float32", (-1.0,), (1.0,)), ())
LEVERS = EnvironmentSpec("Levers-v0", ArraySpec((6,), "float32"), ArraySpec((), "int64"), sizes=(3,))


def config(algorithm: str = "td3", **sparsity: Any) -> RunConfig:
    return RunConfig.model_validate({"algorithm": algorithm, "sparsity": sparsity})


def refusal(algorithm: str, **sparsity: Any) -> str:
    with pytest.raises(UserError) as caught:
        make_algorithm(config(algorithm, **sparsity), LEVERS if algorithm == "dqn" else ARMS)
    message = str(caught.value)
    assert "\n" not in message
    return message


class Own:
    """An algorithm of a user's own, which knows of no sparsity."""

    name = "own"
    action_spaces = ("continuous",)

    def __init__(self, *_: object) -> None:
        raise AssertionError("it was made")

    def update(self, batch: object, weights: NDArray[np.float32]) -> None:
        """Of no interest here."""

    def normalize(self, mean: object, std: object) -> None:
        """Of no interest here."""

    def state(self) -> None:
        """Of no interest here."""

    def load_state(self, state: object) -> None:
        """Of no interest here."""


class Static(Own):
    """One that trains with static masks."""

    sparsity_methods = ("dense", "static")


def test_a_method_that_an_algorithm_does_not_support_is_refused() -> None:
    for name, methods, method in (("Own", "dense", "rlx2"), ("Static", "dense, static", "tiny")):
        assert re.match(
            rf"sparsity\.method: .*:{name} .* {methods}, .*{method}", refusal(f"{__name__}:{name}", method=method)
        )
    for name, method in (("Own", "dense"), ("Static", "static")):
        with pytest.raises(UserError, match="AssertionError: it was made"):
            make_algorithm(config(f"{__name__}:{name}", method=method), ARMS)


@pytest.mark.parametrize(
    ("algorithm", "method"),
    [(name, each) for name in ("dqn", "d4pg", "td3", "sac") for each in METHODS if (name, each) != ("dqn", "rlx2")],
)
def test_built_in_algorithms_support_all_methods(algorithm: str, method: str) -> None:
    spec = LEVERS if algorithm == "dqn" else ARMS
    assert make_algorithm(config(algorithm, method=method, actor=0.5, critic=0.5), spec).name == algorithm


@pytest.mark.parametrize("algorithm", ["dqn", "d4pg", "td3", "sac"])
def test_a_layer_without_weights_is_refused(algorithm: str) -> None:
    for name in ("actor",) if algorithm == "dqn" else ("actor", "critic"):
        assert re.match(rf"sparsity\.{name}: .*0\.99999", refusal(algorithm, method="rigl", **{name: 0.99999}))


def test_an_impossible_tiny_network_is_refused() -> None:
    assert re.match(r"sparsity\.actor: .*tiny .*7 weights .*256, 256", refusal("td3", method="tiny", actor=0.9999))


def test_masks_that_change_with_every_step_are_refused() -> None:
    assert re.match(r"sparsity\.period_updates: .* 2 updates .* 2;", refusal("td3", method="rigl", period_updates=2))


@pytest.mark.parametrize("name", ["actor", "critic"])
@pytest.mark.parametrize("value", [1.0, -0.1, 1.5, float("nan")])
def test_sparsities_are_at_least_0_and_below_1(name: str, value: float) -> None:
    with pytest.raises(UserError) as caught:
        build(RunConfig, {"sparsity": {name: value}})
    message = str(caught.value)
    assert "\n" not in message
    assert f"sparsity.{name}" in message


@pytest.mark.parametrize("method", ["dense", "tiny", "static"])
def test_structure_needs_masks_that_change(method: str) -> None:
    with pytest.raises(ValueError, match=rf"sparsity\.method .*set, rigl or rlx2, .*{method}"):
        config(method=method, structured=True)


@pytest.mark.parametrize(
    ("sparsity", "actor", "critic"),
    [
        ({"method": "rlx2"}, "rlx2", "rlx2"),
        ({"method": "rlx2", "actor_method": "static"}, "static", "rlx2"),
        ({"method": "rigl", "critic_method": "dense"}, "rigl", "dense"),
        ({"method": "dense", "actor_method": "rigl"}, "dense", "dense"),
    ],
)
def test_a_part_may_have_a_method_of_its_own(sparsity: dict[str, Any], actor: str, critic: str) -> None:
    chosen = config(**sparsity).sparsity
    assert (chosen.method_of("actor"), chosen.method_of("critic")) == (actor, critic)


def masks(**sparsity: Any) -> dict[str, bool]:
    """Whether the networks of TD3 have masks that change, by network. Networks without masks are left out."""
    made = make_algorithm(config("td3", actor=0.5, critic=0.5, **sparsity), ARMS)
    topologies = {name: network.topology for name, network in made.networks.items()}  # type: ignore[attr-defined]
    return {name: each.growth is not None for name, each in topologies.items() if each is not None}


def test_a_static_policy_trains_beside_dynamic_critics() -> None:
    assert masks(method="rlx2", actor_method="static") == {"actor": False, "critic": True}
    assert masks(method="rigl", actor_method="dense") == {"critic": True}
    assert masks(method="static", critic_method="tiny") == {"actor": False}


def test_the_method_of_a_part_must_be_one_that_the_algorithm_supports() -> None:
    assert re.match(
        r"sparsity\.method: .* dense, static, got rigl$",
        refusal(f"{__name__}:Static", method="static", critic_method="rigl"),
    )


def test_masks_of_one_part_that_would_never_change_are_refused() -> None:
    tree = {"max_environment_steps": 400, "rate_limiter": {"samples_per_insert": 256.0}, "td3": {"batch_size": 256}}
    sparsity = {"method": "static", "critic_method": "set", "actor": 0.5, "critic": 0.5, "period_updates": 400}
    with pytest.raises(UserError, match=r"sparsity\.period_updates: .*400 updates"):
        make_algorithm(RunConfig.model_validate({"algorithm": "td3", **tree, "sparsity": sparsity}), ARMS)


def test_structure_needs_a_policy_whose_masks_change() -> None:
    with pytest.raises(ValueError, match=r"sparsity\.actor_method .*got static"):
        config(method="rlx2", actor_method="static", structured=True)
    config(method="static", actor_method="rigl", structured=True)


# Resuming


def test_masks_that_would_never_change_are_refused() -> None:
    tree = {"max_environment_steps": 400, "rate_limiter": {"samples_per_insert": 256.0}, "td3": {"batch_size": 256}}
    changing = {"method": "rigl", "actor": 0.5, "critic": 0.5, "period_updates": 400}
    with pytest.raises(UserError, match=r"sparsity\.period_updates: .*400 updates"):
        make_algorithm(RunConfig.model_validate({"algorithm": "td3", **tree, "sparsity": changing}), ARMS)
    for sparsity in ({**changing, "period_updates": 399}, {**changing, "method": "static"}):
        make_algorithm(RunConfig.model_validate({"algorithm": "td3", **tree, "sparsity": sparsity}), ARMS)


def test_outputs_without_inputs_are_refused() -> None:
    wide = EnvironmentSpec(
        "Arms-v0", ArraySpec((376,), "float32"), ArraySpec((17,), "float32", (-1,) * 17, (1,) * 17), ()
    )
    tree = {"method": "rlx2", "structured": True, "actor": 0.9995}
    with pytest.raises(UserError, match="34 units of head") as caught:
        make_algorithm(config("sac", **tree), wide)
    assert "\n" not in str(caught.value)
    make_algorithm(config("sac", **{**tree, "structured": False}), wide)


@pytest.mark.parametrize(("name", "value"), [("actor", 0.9), ("critic", 0.9), ("actor_method", "static")])
def test_a_sparsity_without_a_method_is_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"sparsity\.{name} .*sparsity\.method"):
        build(RunConfig, {"sparsity": {name: value}})


def test_the_same_topology_is_accepted_with_another_schedule() -> None:
    saved = {"sparsity": config(method="rigl", actor=0.9).sparsity.topology}
    check_same_topology(config(method="rigl", actor=0.9, period_updates=77, until=0.5, replaced=0.1), saved)
    check_same_topology(config(), {})
    check_same_topology(config(method="dense", actor=0.5), {"sparsity": config().sparsity.topology})
    # A checkpoint from before there was that setting.
    del saved["sparsity"]["structured"]
    check_same_topology(config(method="rigl", actor=0.9), saved)


@pytest.mark.parametrize(
    ("saved", "configured", "fact"),
    [
        ({"method": "rlx2"}, {"method": "rigl"}, "method rlx2, .* rigl;"),
        ({"method": "rlx2"}, {"method": "dense"}, "method rlx2, .* dense;"),
        ({}, {"method": "rlx2"}, "method dense, .* rlx2;"),
        ({"method": "set", "actor": 0.9}, {"method": "set", "actor": 0.8}, r"actor 0\.9, .* 0\.8;"),
        ({"method": "set", "critic": 0.9}, {"method": "set", "critic": 0.8}, r"critic 0\.9, .* 0\.8;"),
        ({"method": "set", "structured": True}, {"method": "set"}, "structured True, .* False;"),
        (
            {"method": "set", "actor_method": "static"},
            {"method": "set"},
            "actor_method static, .* none; resume with",
        ),
    ],
)
def test_another_topology_gives_one_line(saved: dict[str, Any], configured: dict[str, Any], fact: str) -> None:
    values = {"sparsity": config(**saved).sparsity.topology} if saved else {}
    with pytest.raises(UserError, match=rf"sparsity\.{fact} .*--sparsity\.") as caught:
        check_same_topology(config(**configured), values)
    assert "\n" not in str(caught.value)
