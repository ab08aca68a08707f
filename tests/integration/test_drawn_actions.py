"""Sampled actions of a stored run: `actorq evaluate --sampled`, and predictions of `actorq.load_policy`."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, helper

import actorq
from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.inference.runpolicies import RunPolicies
from actorq.rundirectory import RunDirectory
from tests.builders.processors import INT8_HERE
from tests.builders.stored_policies import stored_run
from tests.integration.training_run import actorq as command
from tests.quantizer_service.policy_graphs import policy_graph
from tests.quantizer_service.policy_runs import checkpoint

CARTPOLE = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,))
PENDULUM = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), ())
WIDTH = 64


def graph(
    observation_size: int, last: list[NodeProto], outputs: tuple[str, ...], discrete: bool, units: int
) -> PolicyGraph:
    """A graph of two hidden layers and a head, then the nodes `last` on the value `head`."""
    names = ("a", "b", "c")
    sizes = ((WIDTH, observation_size), (WIDTH, WIDTH), (units, WIDTH))
    parameters: dict[str, list[int]] = {}
    nodes, value = [], "observation"
    for name, size in zip(names, sizes, strict=True):
        parameters |= {f"{name}.weight": list(size), f"{name}.bias": [size[0]]}
        gemm = "head" if name == "c" else f"{name}_linear"
        nodes.append(helper.make_node("Gemm", [value, f"{name}.weight", f"{name}.bias"], [gemm], transB=1))
        if name != "c":
            value = f"{name}_active"
            nodes.append(helper.make_node("Tanh", [gemm], [value]))
    constants = {"low": -1, "high": 1, "half": 2, "none": 0, "level": -0.5}
    return policy_graph(
        [*nodes, *last],
        parameters,
        ("batch", observation_size),
        outputs[0],
        discrete,
        more_outputs=outputs[1:],
        constants={name: np.array(number, np.float32) for name, number in constants.items()},
    )


LOGITS = graph(4, [helper.make_node("Identity", ["head"], ["logits"])], ("logits",), True, 2)
GAUSSIAN = graph(
    3,
    [
        helper.make_node("Identity", ["head"], ["mean"]),
        helper.make_node("Clip", ["head", "low", "high"], ["clipped"]),
        helper.make_node("Mul", ["clipped", "half"], ["actions"]),
        helper.make_node("Mul", ["head", "none"], ["zeros"]),
        helper.make_node("Add", ["zeros", "level"], ["log_std"]),
    ],
    ("actions", "mean", "log_std"),
    False,
    1,
)


def published(policy: PolicyGraph, observation_size: int) -> Checkpoint:
    rows = np.random.default_rng(5).standard_normal((64, observation_size)).astype(np.float32)
    return checkpoint(policy, 1, calibration={"observation": rows})


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("cartpole") / "run"
    return stored_run(folder, LOGITS, [published(LOGITS, 4)], spec=CARTPOLE, environment="CartPole-v1")


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("pendulum") / "run"
    return stored_run(folder, GAUSSIAN, [published(GAUSSIAN, 3)], spec=PENDULUM, environment="Pendulum-v1")


def returns(run: RunDirectory, *flags: str) -> list[str]:
    result = command("evaluate", str(run.root), "--episodes", "10", "--seed", "4", *flags)
    assert result.returncode == 0, result.stderr
    return [line for line in result.stdout.splitlines() if line.startswith("episode")]


@pytest.mark.parametrize("run", ["cartpole", "pendulum"])
def test_evaluate_samples_actions_on_demand(run: str, request: pytest.FixtureRequest) -> None:
    stored = request.getfixturevalue(run)
    greedy, sampled, again = returns(stored), returns(stored, "--sampled"), returns(stored, "--sampled")
    assert sampled == again != greedy


def test_a_policy_without_a_distribution_is_refused_in_one_line(tmp_path: Path) -> None:
    values = graph(4, [helper.make_node("Identity", ["head"], ["q_values"])], ("q_values",), True, 2)
    run = stored_run(tmp_path / "run", values, [published(values, 4)], spec=CARTPOLE, environment="CartPole-v1")
    result = command("evaluate", str(run.root), "--sampled")
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch("error: .*version 1: .*logits, .*q_values.*\n", result.stderr)


def output(run: RunDirectory, name: str, observations: NDArray[np.float32]) -> NDArray[np.float32]:
    """One output of the int8 model of a run with one version."""
    policies = RunPolicies(run)
    model = policies.stored(policies.versions[0], *INT8_HERE).model
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run([name], {"observation": observations})
    return np.asarray(found)


def test_a_loaded_policy_predicts_the_greedy_action(cartpole: RunDirectory, pendulum: RunDirectory) -> None:
    rng = np.random.default_rng(6)
    seen = rng.standard_normal((50, 4)).astype(np.float32)
    expected = output(cartpole, "logits", seen).argmax(axis=1)
    np.testing.assert_array_equal(actorq.load_policy(cartpole.root).predict(seen), expected)
    seen = rng.standard_normal((50, 3)).astype(np.float32)
    means = output(pendulum, "mean", seen)
    actions = actorq.load_policy(pendulum.root).predict(seen)
    assert (actions.shape, actions.dtype) == ((50, 1), np.float32)
    np.testing.assert_allclose(actions, 2 * np.clip(means, -1, 1), rtol=1e-5)
