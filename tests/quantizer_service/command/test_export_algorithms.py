"""Exported policies of every algorithm: other runtimes compute the same, and `predict` acts like the trained policy.

The ONNX reference evaluator represents other runtimes: it knows only the operators of the standard.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

import actorq
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import SCHEMES, Checkpoint
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.rundirectory import RunDirectory
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from quantizer_service.command import export
from tests.builders.stored_policies import stored_run
from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import (
    ALL_ALGORITHMS,
    BOUNDED,
    DISCRETE,
    hidden,
    make,
    random_batch,
    trained,
)

ROWS = 4
# Of the range of the outputs. Activations of int4 are in 8 bits where ONNX Runtime multiplies, and in float32 in the
# standard form.
TOLERANCE = {"int4": 0.05}

ON_POLICY = ("ppo discrete", "ppo clipped", "impala squashed")

Policy = tuple[RunDirectory, torch.nn.Module, EnvironmentSpec]


@pytest.fixture(
    scope="module",
    params=[
        *(f"{name} on vectors" for name in ALL_ALGORITHMS),
        "dqn on frames",
        "td3 sparse",
        "sac sparse",
        *ON_POLICY,
    ],
)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A run of an algorithm, with its policy in the learner and its environment."""
    name, _, kind = request.param.partition(" ")
    if request.param in ON_POLICY:
        return stored_on_policy(name, kind, tmp_path_factory.mktemp("stored") / "run")
    spec = DISCRETE if name == "dqn" else BOUNDED
    if kind == "on frames":
        spec = replace(spec, observations=ArraySpec((84, 84), "uint8"), frame_stack=4)
    settings = hidden(name, 48, 48, 48)
    if kind == "sparse":
        settings["sparsity"] = {"method": "rlx2", "structured": True, "actor": 0.6, "critic": 0.5, "period_updates": 4}
    torch.manual_seed(0)
    algorithm = make(name, spec, normalize_observations=kind != "on frames", **settings)
    algorithm.normalize(np.array([1.0, -2.0, 3.0]), np.array([0.5, 2.0, 10.0]))
    trained(algorithm, spec)
    graph = export_policy_graph(algorithm.policy, spec, algorithm.takes_noise)
    rows = random_batch(np.random.default_rng(1), spec, 128).observations
    calibration = calibration_batch(rows, spec, algorithm.takes_noise, seed=0)
    version = Checkpoint(1, 5, graph.digest, snapshot_parameters(algorithm.policy), calibration, 0.0)
    root = tmp_path_factory.mktemp("stored") / "run"
    return stored_run(root, graph, [version], spec=spec, algorithm=name), algorithm.policy, spec


def stored_on_policy(name: str, kind: str, root: Path) -> Policy:
    spec = DISCRETE if kind == "discrete" else BOUNDED
    options: dict[str, Any] = {
        "hidden_sizes": (48, 48, 48),
        "squash": kind == "squashed",
        "normalize_observations": True,
    }
    algorithm = on_policy_parts.make(name, spec, **options)
    algorithm.normalize(np.array([1.0, -2.0, 3.0]), np.array([0.5, 2.0, 10.0]))
    on_policy_parts.trained(algorithm, spec)
    # Initial weights of the last layer are so small that rounding would hide the rest.
    with torch.no_grad():
        algorithm.policy.head.weight.mul_(20.0)
    graph = export_policy_graph(algorithm.policy, spec)
    rows = random_batch(np.random.default_rng(1), spec, 128).observations
    calibration = calibration_batch(rows, spec, takes_noise=False, seed=0)
    version = Checkpoint(1, 5, graph.digest, snapshot_parameters(algorithm.policy), calibration, 0.0)
    return stored_run(root, graph, [version], spec=spec, algorithm=name), algorithm.policy, spec


def observations(spec: EnvironmentSpec) -> NDArray[Any]:
    found: NDArray[Any] = random_batch(np.random.default_rng(2), spec, ROWS).observations
    return found


def feeds(session: onnxruntime.InferenceSession, spec: EnvironmentSpec) -> dict[str, NDArray[Any]]:
    """Observations, and noise for a policy with a noise input."""
    rng = np.random.default_rng(3)
    given = {OBSERVATIONS: observations(spec)}
    if Role.NOISE in [each.name for each in session.get_inputs()]:
        given[Role.NOISE] = rng.standard_normal((ROWS, *spec.actions.shape), np.float32)
    return given


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_runtime_computes_the_same_as_onnx_runtime(stored: Policy, scheme: str, tmp_path: Path) -> None:
    run, _, spec = stored
    for form in ("onnxruntime", "standard"):
        path = tmp_path / f"{form}.onnx"
        # Whether the gate passes a policy after five updates is not the question.
        assert export.run([str(run.root), "--scheme", scheme, "--form", form, "-o", str(path), "--force"]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "onnxruntime.onnx")
    given = feeds(session, spec)
    outputs: Any = session.run(None, given)
    evaluated: Any = ReferenceEvaluator(str(tmp_path / "standard.onnx")).run(None, given)
    for actual, expected in zip(evaluated, outputs, strict=True):
        span = float(np.ptp(expected))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE.get(scheme, 1e-5) * max(span, 1e-2))


def test_predict_returns_the_actions_of_the_learners_policy_without_noise(stored: Policy, tmp_path: Path) -> None:
    run, module, spec = stored
    path = tmp_path / "policy.onnx"
    assert export.run([str(run.root), "--scheme", "fp32", "-o", str(path)]) == 0
    normalization = json.loads(path.with_suffix(".json").read_text())["normalization"]
    if spec.observations.dtype == "uint8":
        assert normalization is None
    else:
        assert normalization == {"in_model": True, "mean": [1.0, -2.0, 3.0], "scale": pytest.approx([2.0, 0.5, 0.1])}
    policy, rows = actorq.load_policy(path), observations(spec)
    with torch.no_grad():
        returned = module(torch.from_numpy(rows))
    outputs = (returned[0] if isinstance(returned, tuple) else returned).numpy()
    batch, single = policy.predict(rows), policy.predict(rows[0])
    if spec.sizes:
        np.testing.assert_array_equal(batch, outputs.argmax(1))
        assert single == outputs[0].argmax()
    else:
        np.testing.assert_allclose(batch, outputs, atol=1e-5)
        np.testing.assert_allclose(single, outputs[0], atol=1e-5)
