"""Exported policies with memory: the file describes its state, and `actorq.load_policy` keeps the state."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import actorq
from actor_service.environments import describe_environment
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import SCHEMES, SEQUENCE_LENGTHS, Checkpoint
from actorq.domain.signature import Role
from actorq.errors import InvalidInputError
from actorq.rundirectory import RunDirectory
from learner_service.policy.policy_graph import snapshot_parameters
from quantizer_service.command import export
from tests.builders.stored_policies import CONTINUOUS, stored_run
from tests.integration.recurrent_policies import Recurrent
from tests.quantizer_service.policy_graphs import OBSERVATION_SIZE
from tests.quantizer_service.recurrent_graphs import SEQUENCES, STATE, integrator, version
from tests.quantizer_service.recurrent_graphs import STEPS as SEQUENCE_STEPS

GRAPH, STEPS, ROWS, UNITS = integrator(), 30, 3, 32
CARTPOLE = describe_environment("CartPole-v1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    versions = [version(GRAPH)]
    # A PPO run may have a memory. Its gate is of no interest here.
    return stored_run(
        tmp_path_factory.mktemp("stored") / "run",
        *(GRAPH, versions, None, CONTINUOUS),
        algorithm="ppo",
        memory="gru",
        quantizer={"gate": {"max_state_drift": 10.0}},
    )


def exported(run: RunDirectory, path: Path, *flags: str) -> Path:
    assert export.run([str(run.root), "-o", str(path), *flags, "--force"]) == 0
    return path


def observations(steps: int = STEPS, rows: int = ROWS, size: int = OBSERVATION_SIZE) -> Any:
    return np.random.default_rng(5).standard_normal((steps, rows, size)).astype(np.float32)


def stepped(path: Path, observed: Any) -> Any:
    """The actions of an ONNX Runtime session whose state is fed back by hand, [T, B, action]."""
    session, told = onnxruntime.InferenceSession(path), json.loads(path.with_suffix(".json").read_text())["memory"]
    state, actions = np.zeros((observed.shape[1], told["size"]), np.float32), []
    for rows in observed:
        feeds = {"observation": rows, told["state"]: state}
        action, state = session.run(["actions", told["next_state"]], feeds)
        actions.append(action)
    return np.stack(actions)


def test_the_description_names_the_state(run: RunDirectory, tmp_path: Path) -> None:
    told = json.loads(exported(run, tmp_path / "p.onnx").with_suffix(".json").read_text())
    assert told["memory"] == {"state": "state", "next_state": "next_state", "size": STATE}
    assert told["inputs"]["state"] == {"shape": ["batch", STATE], "dtype": "float32"}
    assert [each["steps"] for each in told["fidelity"]["sequences"]] == [1, 8, 64]


@pytest.mark.parametrize("scheme", ["fp32", "int8"])
def test_predict_keeps_the_state_of_each_row(run: RunDirectory, scheme: str, tmp_path: Path) -> None:
    path = exported(run, tmp_path / "p.onnx", "--scheme", scheme)
    policy, observed = actorq.load_policy(path), observations()
    assert policy.has_memory
    expected = stepped(path, observed)
    found = np.stack([policy.predict(rows) for rows in observed])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # The second episode of the same observations differs without a reset, and is equal after it.
    assert not np.allclose(policy.predict(observed[0]), expected[0], atol=1e-3)
    policy.reset()
    np.testing.assert_allclose(policy.predict(observed[0]), expected[0], atol=1e-5)
    # After a reset, the number of rows may change; one observation is one row.
    policy.reset()
    single = policy.predict(observed[0, 0])
    assert single.shape == expected[0, 0].shape
    assert not np.allclose(policy.predict(observed[0, 0]), single, atol=1e-3)


def test_a_reset_of_some_rows_keeps_the_others(run: RunDirectory, tmp_path: Path) -> None:
    path, observed = exported(run, tmp_path / "p.onnx", "--scheme", "fp32"), observations()
    policy, expected = actorq.load_policy(path), stepped(path, observed)
    for chosen in ([1], np.array([False, True, False]), 1):
        policy.reset()
        policy.predict(observed[0])
        policy.reset(chosen)
        rows = policy.predict(observed[1])
        np.testing.assert_allclose(rows[[0, 2]], expected[1][[0, 2]], atol=1e-5)
        np.testing.assert_allclose(rows[1], stepped(path, observed[1:2])[0, 1], atol=1e-5)
    policy.reset([])
    np.testing.assert_allclose(policy.predict(observed[2])[[0, 2]], expected[2][[0, 2]], atol=1e-5)


def test_another_number_of_rows_and_unknown_rows_are_refused(run: RunDirectory, tmp_path: Path) -> None:
    policy = actorq.load_policy(exported(run, tmp_path / "p.onnx"))
    with pytest.raises(InvalidInputError, match="rows: expected indexes below 0"):
        policy.reset([0])
    policy.predict(observations()[0])
    with pytest.raises(InvalidInputError, match=r"expected 3 rows, as in the steps before, got 1; .*call reset\(\)"):
        policy.predict(observations()[0, 0])
    wrong: list[Any] = [[3], [-1], [0.5], np.ones(2, np.bool_), [[0]]]
    for rows in wrong:
        with pytest.raises(InvalidInputError, match="rows: expected indexes below 3, or a mask of 3 rows"):
            policy.reset(rows)


def test_a_policy_of_a_runs_folder_keeps_its_state(run: RunDirectory, tmp_path: Path) -> None:
    observed, file = observations(), exported(run, tmp_path / "p.onnx", "--scheme", "int8")
    for policy in (actorq.load_policy(run.root), actorq.load_policy(file)):
        found = np.stack([policy.predict(rows) for rows in observed])
        np.testing.assert_allclose(found, stepped(file, observed), atol=1e-5)


@pytest.fixture(scope="module", params=["integrator", "gru", "lstm"])
def with_size(
    request: pytest.FixtureRequest, run: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunDirectory, int]:
    """A run of the integrator, or of a network with a cell of this kind, and the numbers in its state."""
    if request.param == "integrator":
        return run, STATE
    recurrent, memory = Recurrent(CARTPOLE, request.param, UNITS), {"kind": request.param, "units": UNITS}
    observed = np.random.default_rng(2).standard_normal((SEQUENCE_STEPS, SEQUENCES, *CARTPOLE.observations.shape))
    sequences: dict[str, Any] = {
        SEQUENCE_LENGTHS: np.full(SEQUENCES, SEQUENCE_STEPS, np.int32),
        OBSERVATIONS: observed.astype(np.float32),
        Role.STATE: np.zeros((SEQUENCES, recurrent.size), np.float32),
    }
    parameters, seen = snapshot_parameters(recurrent.policy), recurrent.calibration()
    published = Checkpoint(1, 1, recurrent.graph.digest, parameters, seen, 0.0, sequences=sequences)
    root = tmp_path_factory.mktemp("stored") / "run"
    found = stored_run(root, recurrent.graph, [published], spec=CARTPOLE, algorithm="ppo", memory=memory)
    return found, {"gru": 1, "lstm": 2}[request.param] * UNITS


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_runtime_computes_the_same_steps(
    with_size: tuple[RunDirectory, int], scheme: str, tmp_path: Path
) -> None:
    """The reference evaluator and ONNX Runtime, each with its own state over some steps."""
    run, size = with_size
    paths = [exported(run, tmp_path / f"{form}.onnx", "--scheme", scheme, "--form", form) for form in FORMS]
    session, other = onnxruntime.InferenceSession(paths[0]), ReferenceEvaluator(str(paths[1]))
    told = json.loads(paths[1].with_suffix(".json").read_text())
    assert told["memory"] == {"state": "state", "next_state": "next_state", "size": size}
    assert [each["steps"] for each in told["fidelity"]["sequences"]] == [1, 8, 64]
    observation, acting = next(iter(told["inputs"])), next(iter(told["outputs"]))
    states = [np.zeros((ROWS, size), np.float32)] * 2
    # Actions and states of all steps, of both runtimes.
    steps: list[list[Any]] = []
    for rows in observations(8, size=told["inputs"][observation]["shape"][1]):
        results: list[Any] = [
            each.run([acting, "next_state"], {observation: rows, "state": state})
            for each, state in zip((session, other), states, strict=True)
        ]
        states = [result[1] for result in results]
        steps.append(results)
    for output in (0, 1):
        expected, actual = (np.stack([results[runtime][output] for results in steps]) for runtime in (0, 1))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * float(np.ptp(expected)))


FORMS = ("onnxruntime", "standard")
# Of the range of an output. Rounding halves differently may change a product by one step of its scale.
TOLERANCE = 0.02
