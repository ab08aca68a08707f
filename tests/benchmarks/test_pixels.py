"""The benchmarks of pixels: their targets, and the explanations of these."""

import re
from typing import Any

import numpy as np
import pytest

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.process import parse_arguments
from benchmarks.speedup import pixels as actor
from benchmarks.training.pixels import __main__ as training
from benchmarks.training.pixels.__main__ import SCHEME, TASKS
from sitegen import parts
from sitegen.tables import pixels as tables

CONDITIONS: dict[str, Any] = {"commit": "c", "changes": None, "machine": {}}
TASK = TASKS[0]
# Small pictures, so that no test needs a renderer.
SPEC = EnvironmentSpec(
    "dm_control_pixels/cartpole-swingup",
    ArraySpec((3, 36, 36), "uint8"),
    ArraySpec((1,), "float32", (-1.0,), (1.0,)),
    frame_stack=3,
)


def run(seed: int, mean_return: float, seconds: float = 1_000.0, scheme: str = SCHEME) -> dict[str, Any]:
    return {
        "task": TASK.name,
        "seed": seed,
        "wall_clock_s": seconds,
        "environment_steps": 20_000,
        "updates": 10_000,
        "confirmed": {"mean_return": mean_return, "episodes": 30, "scheme": scheme},
        "transitions_by_scheme": {scheme: 10},
        "conditions": CONDITIONS,
    }


def test_targets_are_about_the_worst_seed_and_the_slowest_run() -> None:
    found = training.targets({"runs": [run(1, 700.0), run(2, 599.0, 3_601.0), run(3, 800.0, scheme="fp32")]})
    assert [(target.measured, target.met) for target in found] == [(599.0, False), (3_601.0, False), (2, False)]
    good = training.targets({"runs": [run(1, 700.0), run(2, 600.0)]})
    assert all(target.met for target in good)
    for target in good:
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in training.MEANINGS), target.name


def test_one_seed_gives_no_verdict() -> None:
    assert {target.refused for target in training.targets({"runs": [run(1, 900.0)]})} == {"one seed gives no verdict"}


def test_runs_have_the_presets_settings_and_a_bound_below_their_end() -> None:
    config: Any = parse_arguments("actorq train", "", (RunConfig,), TASK.flags(3))[0]
    preset = RunConfig(environment=TASK.environment)
    assert config.sac == preset.sac
    assert (config.scheme, config.seed, config.target_return) == (SCHEME, 3, TASK.end)
    assert TASK.least < TASK.end
    assert TASK.steps <= preset.max_environment_steps


def figures(ratio: float, passed: bool = True) -> dict[str, Any]:
    timed = [
        {
            "environments": count,
            "rates": dict.fromkeys(("int8-static", "fp32"), 100.0),
            "ratios": {"int8-static": ratio, "fp32": 1.0},
            "quartiles": dict.fromkeys(("int8-static", "fp32"), (ratio, ratio)),
        }
        for count in (1, 8)
    ]
    error = {"mean_error": 0.01, "passed": passed, "reason": "because"}
    return {"calls": timed, "steps": timed, "fidelity": {"int8-static": error, "int8": error}}


def test_targets_of_the_actor_are_about_int8_static() -> None:
    assert all(target.met for target in actor.targets(figures(1.6)))
    missed = actor.targets(figures(1.2, passed=False))
    assert [target.met for target in missed] == [False, False, True, True, False, False]
    for target in missed:
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in actor.MEANINGS), target.name


def test_the_policies_are_the_same_in_all_schemes() -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(256, size=(16, 3, 3, 6, 6), dtype=np.uint8).repeat(6, axis=-1).repeat(6, axis=-2)
    policies = actor.policies_of(RunConfig(environment=SPEC.environment_id), SPEC, pictures)
    outputs = {
        scheme: policy(pictures[:4]).copy() for scheme, policy in actor.loaded_policies(policies, SPEC, 4).items()
    }
    assert set(outputs) == set(actor.SCHEMES)
    for scheme, actions in outputs.items():
        np.testing.assert_allclose(actions, outputs["fp32"], atol=1e-5 if scheme == "torch" else 0.1, err_msg=scheme)


def test_ratios_are_those_of_neighboring_turns() -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(256, size=(16, 3, 3, 36, 36), dtype=np.uint8)
    policies = actor.policies_of(RunConfig(environment=SPEC.environment_id), SPEC, pictures)
    found = actor.timed_calls(policies, SPEC, pictures, 2, repeats=3, slice_s=0.01)
    assert found.ratios["fp32"] == 1.0
    for scheme, ratio in found.ratios.items():
        low, high = found.quartiles[scheme]
        assert low <= ratio <= high
        assert found.rates[scheme] > 0


@pytest.mark.parametrize("name", ["returns", "calls", "steps", "errors"])
def test_tables_are_complete(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"runs": [run(1, 700.0), run(2, 800.0)], **figures(1.6)}
    monkeypatch.setattr(tables, "figures", lambda _: stored)
    assert len(parts.part(f"pixels {name}").splitlines()) == 4
