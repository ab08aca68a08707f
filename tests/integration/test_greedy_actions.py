"""Greedy actions without noise: from the learner, through every scheme, to the decisions of the replay."""

from pathlib import Path

import numpy as np
import pytest
import torch

from actor_service.policies.policy import OnnxPolicy
from actorq.domain.policy import INT8_PER_CHANNEL, SCHEMES, FidelityReport, Policy, PolicyDescriptor
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options, scheme_named, training_forms
from actorq.quantization.schemes.base import Plan
from actorq.quantization.training import Place
from learner_service.networks import GaussianPolicy
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from quantizer_service.emission.reference import Reference
from tests.integration.training_run import TrainingRun

SPEC = EnvironmentSpec("Arms-v0", ArraySpec((24,), "float32"), ArraySpec((6,), "float32", (-2.0,), (1.0,)))
NO_ERROR = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, None, ())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_emits_greedy_actions(scheme: str) -> None:
    torch.manual_seed(0)
    policy, rng = GaussianPolicy(SPEC, (64, 64, 64)), np.random.default_rng(0)
    source = export_policy_graph(policy, SPEC, takes_noise=True, greedy=True)
    observations = rng.standard_normal((32, 24), np.float32)
    batch = calibration_batch(observations, SPEC, takes_noise=True, seed=0)
    graph, parameters = Graph.parse(source), snapshot_parameters(policy)
    plan = Plan(graph, scheme_named(scheme), Options())
    _, statistics = Reference(graph).observe(parameters, batch, plan.observed)
    emission = plan.emit(parameters, statistics, "run", 1)
    size = len(emission.model)
    descriptor = PolicyDescriptor("run", 1, 0, scheme, b"", size, size, 0.0, NO_ERROR)
    loaded = OnnxPolicy(Policy(descriptor, emission.model), SPEC.observations, 32, 6, (Role.GREEDY_ACTIONS,))
    assert loaded.takes_noise
    with torch.no_grad():
        expected = policy(torch.from_numpy(observations)).numpy()
    actions = loaded(observations, batch["noise"]).copy()
    # Relative to the range of 3; int4 weights are the coarsest.
    np.testing.assert_allclose(loaded.outputs[Role.GREEDY_ACTIONS], expected, atol=0.3 if scheme == "int4" else 0.05)
    assert np.abs(actions - loaded.outputs[Role.GREEDY_ACTIONS]).max() > 0.5
    # Noise changes neither these actions nor those of evaluators, which have no noise.
    greedy = loaded.outputs[Role.GREEDY_ACTIONS].copy()
    np.testing.assert_array_equal(loaded(observations), greedy)
    np.testing.assert_array_equal(loaded.outputs[Role.GREEDY_ACTIONS], greedy)


def test_greedy_actions_do_not_change_the_places_of_quantization_aware_training() -> None:
    policy = GaussianPolicy(SPEC, (64, 64, 64))
    places = []
    for greedy in (False, True):
        graph = Graph.parse(export_policy_graph(policy, SPEC, takes_noise=True, greedy=greedy))
        forms = training_forms("int8-static", graph, dict.fromkeys(("torso.2", "torso.4"), INT8_PER_CHANNEL))
        places.append({name: [each and each.place for each in (f.inputs, f.outputs)] for name, f in forms.items()})
    assert places[0] == places[1]
    assert places[0]["torso.2"] == [Place("torso.2", False), Place("torso.4", False)]
    assert places[0].keys() == {"torso.2", "torso.4"}


def test_a_run_uses_multi_step_targets_and_drops_old_transitions(tmp_path: Path) -> None:
    run = TrainingRun.start(
        tmp_path / "run",
        *("--environment", "Pendulum-v1", "--algorithm", "td3", "--multi-step", "--dynamic-capacity.enabled"),
        *("--max-environment-steps", "1200", "--multi-step-returns.after", "0.5", "--exploration.random-steps", "256"),
        *("--replay.min-size", "256", "--rate-limiter.samples-per-insert", "16", "--rate-limiter.error-buffer", "4096"),
        *("--dynamic-capacity.min-size", "400", "--dynamic-capacity.period-steps", "200"),
        # Half the variance of a random action is 1/6. No policy is closer to many random actions.
        *("--dynamic-capacity.threshold", "0.02"),
        *("--td3.hidden-sizes", "32,32", "--no-energy.enabled"),
    )
    code, printed = run.finish()
    assert code == 3, printed
    summary = run.summary()
    assert 600 <= summary["multi_step_since"] < summary["environment_steps"]
    replay = summary["dynamic_capacity"]
    assert replay["distance"] > 0
    assert replay["drops"] >= 1
    assert replay["transitions"] == summary["environment_steps"] - replay["dropped_transitions"] >= 400
