"""Settings without effect are reported, each with the reason."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from actorq.config import settings
from actorq.config.algorithms import ALGORITHMS
from actorq.config.presets import FAMILIES, preset
from actorq.config.run_config import RunConfig
from actorq.config.unread import given_in_vain
from actorq.domain.spaces import ArraySpec, EnvironmentSpec

VECTORS = ArraySpec((3,), "float32")
CONTINUOUS = EnvironmentSpec("Other-v0", VECTORS, ArraySpec((1,), "float32", (-1.0,), (1.0,)), ())
DISCRETE = EnvironmentSpec("Other-v0", VECTORS, ArraySpec((), "int64"), (2,))
IMAGES = replace(DISCRETE, observations=ArraySpec((36, 36, 3), "uint8"))


def in_vain(spec: EnvironmentSpec = CONTINUOUS, **given: Any) -> Mapping[str, str]:
    return given_in_vain(given, settings.build(RunConfig, given), spec)


def are_told(told: Mapping[str, str], facts: Mapping[str, str]) -> bool:
    """Whether exactly these settings are reported, each with a reason that contains this fact."""
    return told.keys() == facts.keys() and all(fact in told[name] for name, fact in facts.items())


def test_image_layout_has_no_effect_without_images() -> None:
    assert are_told(in_vain(image_layout="channels-last"), {"image_layout": "no images"})
    assert in_vain(IMAGES, image_layout="channels-last") == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reports_settings_of_every_other_algorithm(algorithm: str) -> None:
    for other in ALGORITHMS:
        given: dict[str, Any] = {other: {"discount": 0.123}}
        found = in_vain(algorithm=algorithm, environment="Other-v0", **given)
        assert found == ({} if other == algorithm else {f"{other}.*": f"the algorithm is {algorithm}"})


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        ("dqn", ["noise", "correlation"]),
        ("d4pg", ["epsilon", "alpha"]),
        ("td3", ["epsilon", "alpha"]),
        ("sac", ["epsilon", "alpha", "noise"]),
        ("xqc", ["epsilon", "alpha", "noise"]),
    ],
)
def test_reports_exploration_settings_that_the_algorithm_lacks(algorithm: str, told: list[str]) -> None:
    exploration = {"epsilon": 0.3, "alpha": 3.0, "noise": 0.7, "correlation": 0.5, "random_steps": 7}
    found = in_vain(algorithm=algorithm, environment="Other-v0", exploration=exploration)
    assert are_told(found, {f"exploration.{name}": algorithm for name in told})


@pytest.mark.parametrize(
    ("given", "name", "fact"),
    [
        (
            {"replay": {"prioritized": False, "priority_exponent": 0.3}},
            "replay.priority_exponent",
            "replay.prioritized",
        ),
        ({"dqn": {"learning_rate_updates": 7}}, "dqn.learning_rate_updates", "dqn.learning_rate_end"),
        ({"network": "my:layers", "dqn": {"hidden_sizes": (8,)}}, "dqn.hidden_sizes", "network"),
        ({"hindsight": {"copies": 2}}, "hindsight", "no goals"),
        ({"dynamic_capacity": {"oldest": 7}}, "dynamic_capacity.oldest", "dynamic_capacity.enabled"),
        ({"multi_step_returns": {"n_step": 7}}, "multi_step_returns", "multi_step"),
        ({"sparsity": {"method": "dense", "actor": 0.5}}, "sparsity.actor", "dense"),
        ({"sparsity": {"method": "static", "until": 0.5}}, "sparsity.until", "masks never"),
        ({"sparsity": {"method": "rigl", "critic": 0.5}}, "sparsity.critic", "dqn"),
        ({"init_from": "/run", "exploration": {"random_steps": 9}}, "exploration.random_steps", "init_from is given"),
        ({"sparsity": {"compressed_products": False}}, "sparsity.compressed_products", "no network"),
        ({"quantizer": {"gate": {"max_kl": 0.3}}}, "quantizer.gate.max_kl", "dqn"),
    ],
)
def test_reports_a_setting_that_another_setting_turns_off(given: dict[str, Any], name: str, fact: str) -> None:
    assert are_told(in_vain(algorithm="dqn", environment="Other-v0", **given), {name: fact})


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_reports_a_setting_for_other_actions_or_observations(algorithm: str) -> None:
    own = {"squash": True, "log_std": -1.0, "hidden_sizes": (8,), "value_sizes": (8,), "activation": "relu"}
    given: dict[str, Any] = {"algorithm": algorithm, algorithm: own, "normalize_observations": True, "scheme": "fp32"}
    gaussian = {f"{algorithm}.{name}": "discrete" for name in ("squash", "log_std")}
    layers = {f"{algorithm}.{name}": "images" for name in ("hidden_sizes", "value_sizes", "activation")}
    assert in_vain(CONTINUOUS, **given) == {}
    assert are_told(in_vain(DISCRETE, **given), gaussian)
    assert are_told(in_vain(IMAGES, **given), {**gaussian, **layers, "normalize_observations": "images"})
    aware = in_vain(CONTINUOUS, **given, learner={"quantization_aware_after": 0.5})
    assert are_told(aware, {"learner.quantization_aware_after": "fp32"})
    bits = in_vain(CONTINUOUS, algorithm=algorithm, learner={"quantization_aware_bits": 3})
    assert are_told(bits, {"learner.quantization_aware_bits": "quantization_aware_after is none"})


def test_does_not_report_a_setting_with_an_effect() -> None:
    sparsity = {"method": "rlx2", "actor": 0.5, "critic": 0.5, "until": 0.5}
    rlx2: dict[str, Any] = {
        "sparsity": sparsity,
        "dynamic_capacity": {"min_size": 7},
        "multi_step_returns": {"n_step": 7},
    }
    assert in_vain(algorithm="td3", environment="Other-v0", **rlx2) == {}
    fixed = {"temperature": 0.1, "target_entropy": -7.0}
    assert are_told(in_vain(algorithm="sac", sac=fixed), {"sac.target_entropy": "sac.temperature"})
    assert in_vain(algorithm="ppo", ppo={"correct": False, "max_weight": 0.5}) == {}
    # It may be a subclass of DQN.
    assert in_vain(algorithm="own_algorithms:PatientDQN", dqn={"batch_size": 7}) == {}


def test_presets_contain_no_setting_without_effect() -> None:
    for algorithm in ALGORITHMS:
        for family in FAMILIES:
            environment = family.patterns[0]
            for name in ("standard", "data-rich", "auto"):
                own = {"algorithm": algorithm, "environment": environment, **preset(algorithm, environment, name)}
                assert in_vain(**own) == {}, (algorithm, environment, name)
