"""A loaded policy computes the same as ONNX Runtime; the slot passes it to the loop."""

import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from actor_service.policies.policy import OnnxPolicy, PolicySlot, load_policy
from actorq.domain.policy import Policy
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError
from tests.actor_service.actor_policies import (
    as_policy,
    constant_policy,
    gaussian_policy,
    linear_policy,
    logits_policy,
    noisy_policy,
    random_policy,
    sampler_needs,
)

VECTOR = ArraySpec((4,), "float32")
DEADLINE_S = 30.0


@pytest.mark.parametrize("batch", [1, 5, 32])
@pytest.mark.parametrize("spec", [VECTOR, ArraySpec((3, 2), "uint8")], ids=["vectors", "images"])
def test_outputs_are_those_of_a_plain_session(spec: ArraySpec, batch: int) -> None:
    rng = np.random.default_rng(batch)
    size = int(np.prod(spec.shape))
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    weights = rng.standard_normal((size, 3)).astype(np.float32)
    policy = linear_policy(weights, np.zeros(3, np.float32), element_type=element_type)
    loaded = OnnxPolicy(policy, spec, batch)
    plain = onnxruntime.InferenceSession(policy.model, providers=["CPUExecutionProvider"])
    for _ in range(3):
        observations = rng.integers(0, 200, (batch, *spec.shape)).astype(spec.dtype)
        (expected,) = plain.run(None, {"observations": observations})
        np.testing.assert_array_equal(loaded(observations), expected)


def test_its_buffers_are_bound_once() -> None:
    loaded = OnnxPolicy(random_policy(4, 2), VECTOR, 3)
    first = loaded(np.ones((3, 4), np.float32))
    before = first.copy()
    observations = np.full((3, 4), 2.0, np.float32)
    assert loaded(observations) is first
    np.testing.assert_allclose(first, 2 * before, rtol=1e-6)
    # What the caller does with its own array afterwards changes nothing.
    observations[:] = 0.0
    np.testing.assert_allclose(first, 2 * before, rtol=1e-6)


def test_it_keeps_its_description() -> None:
    policy = constant_policy([0.0, 1.0], version=9)
    assert OnnxPolicy(policy, VECTOR, 1).descriptor is policy.descriptor


def test_weights_that_are_stored_in_int8_are_float_once_it_is_loaded(tmp_path: Path) -> None:
    weights = np.array([[10, -20], [30, 40], [50, 60], [70, 127]], np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["weights", "scale"], ["floats"]),
        helper.make_node("MatMul", ["observations", "floats"], ["q_values"]),
    ]
    arrays = {"weights": weights, "scale": np.float32(0.5)}
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observations", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("q_values", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    loaded = OnnxPolicy(as_policy(model.SerializeToString(), scheme="int8-weights"), VECTOR, 1)
    np.testing.assert_allclose(loaded(np.ones((1, 4), np.float32)), weights.sum(axis=0, keepdims=True) * 0.5)
    options = loaded._session.get_session_options()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert [node.op_type for node in onnx.load(tmp_path / "loaded.onnx").graph.node] == ["MatMul"]


def two_inputs() -> Policy:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("a", "b", "sum")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["sum"])], "policy", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return as_policy(model.SerializeToString(), version=7)


@pytest.mark.parametrize(
    "policy",
    [
        as_policy(b"", version=7),
        as_policy(b"garbage", version=7),
        as_policy(constant_policy([0.0, 1.0]).model[:-40], version=7),
        constant_policy([0.0, 1.0], observation_size=5, version=7),
        linear_policy(np.zeros((4, 2), np.float32), np.zeros(2, np.float32), 7, element_type=TensorProto.DOUBLE),
    ],
    ids=["nothing", "garbage", "a cut model", "another size", "another dtype"],
)
def test_a_model_that_does_not_fit_is_refused(policy: Policy) -> None:
    with pytest.raises(InvalidInputError, match=r"version 7: .*float32\[2, 4\]"):
        OnnxPolicy(policy, VECTOR, 2)


def test_a_model_of_several_inputs_is_refused_by_their_names() -> None:
    with pytest.raises(InvalidInputError, match=r"version 7: .*observations.*2 \(a, b\)"):
        OnnxPolicy(two_inputs(), VECTOR, 2)


def test_a_stochastic_policy_gets_noise_and_without_noise_gets_zeros() -> None:
    loaded = OnnxPolicy(noisy_policy(4, 3), VECTOR, 2)
    observations = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
    noise = np.array([[0.5, -1, 2], [0, 1, 3]], np.float32)
    assert loaded.takes_noise
    np.testing.assert_allclose(loaded(observations, noise), noise + [[10], [1]])
    np.testing.assert_allclose(loaded(observations), [[10] * 3, [1] * 3])
    assert not OnnxPolicy(random_policy(4, 2), VECTOR, 2).takes_noise


def test_a_stochastic_policy_gives_greedy_actions_on_demand() -> None:
    policy, noise = noisy_policy(4, 3, greedy=True), np.array([[0.5, -1, 2], [0, 1, 3]], np.float32)
    observations = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
    loaded = OnnxPolicy(policy, VECTOR, 2, needs=(Role.GREEDY_ACTIONS,))
    np.testing.assert_allclose(loaded(observations, noise), noise + [[10], [1]])
    np.testing.assert_allclose(loaded.outputs[Role.GREEDY_ACTIONS], [[10] * 3, [1] * 3])
    # A caller without needs, such as an evaluator, gets a policy like any other.
    np.testing.assert_allclose(OnnxPolicy(policy, VECTOR, 2)(observations), [[10] * 3, [1] * 3])


def test_the_greedy_actions_of_a_deterministic_policy_are_its_actions() -> None:
    loaded = OnnxPolicy(constant_policy([0.5, 1.0]), VECTOR, 2, needs=(Role.GREEDY_ACTIONS,))
    assert loaded(np.zeros((2, 4), np.float32)) is loaded.outputs[Role.GREEDY_ACTIONS]


def test_a_stochastic_policy_without_greedy_actions_is_refused_where_they_are_needed() -> None:
    with pytest.raises(InvalidInputError, match=r"greedy_actions, .*actions"):
        OnnxPolicy(noisy_policy(4, 3), VECTOR, 2, needs=(Role.GREEDY_ACTIONS,))


def test_of_several_outputs_the_first_acts() -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "twice", "zero")]
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Sub", ["x", "x"], ["zero"])]
    graph = helper.make_graph(nodes, "policy", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    outputs = OnnxPolicy(as_policy(model.SerializeToString()), VECTOR, 2)(np.ones((2, 4), np.float32))
    np.testing.assert_array_equal(outputs, np.full((2, 4), 2.0))


DISCRETE = EnvironmentSpec("Any-v0", VECTOR, ArraySpec((), "int64"), sizes=(2,))
CONTINUOUS = EnvironmentSpec("Any-v0", VECTOR, ArraySpec((2,), "float32", (-1.0,), (1.0,)), ())


def test_a_policy_outputs_its_distribution_if_actions_are_drawn() -> None:
    observations = np.array([[1, 0, 0, 0], [0, 0, 0.5, 0]], np.float32)
    loaded = load_policy(gaussian_policy([0.25, -3.0], [-1.0, -2.0]), CONTINUOUS, 2, (Role.MEAN, Role.LOG_STD))
    np.testing.assert_array_equal(loaded(observations), [[1, -1], [0.75, -1]])
    np.testing.assert_array_equal(loaded.outputs[Role.MEAN], [[1.25, -2], [0.75, -2.5]])
    np.testing.assert_array_equal(loaded.outputs[Role.LOG_STD], [[-1, -2]] * 2)
    logits = load_policy(logits_policy([0.5, -1.0]), DISCRETE, 2, (Role.LOGITS,))
    np.testing.assert_array_equal(logits(observations), [[0.5, -1]] * 2)


@pytest.mark.parametrize(
    ("spec", "policy"), [(DISCRETE, logits_policy([0.0, 1.0])), (CONTINUOUS, gaussian_policy([0.0] * 2, [0.0] * 2))]
)
def test_without_drawn_actions_the_first_output_is_enough(spec: EnvironmentSpec, policy: Policy) -> None:
    assert load_policy(policy, spec, 3)(np.ones((3, 4), np.float32)).shape == (3, 2)
    assert load_policy(constant_policy([0.0, 1.0]), spec, 3)(np.ones((3, 4), np.float32)).shape == (3, 2)


@pytest.mark.parametrize(
    ("spec", "policy", "fact"),
    [
        (DISCRETE, constant_policy([0.0, 1.0], version=7), "logits, .*q_values"),
        (DISCRETE, gaussian_policy([0.0] * 2, [0.0] * 2, version=7), "logits, .*actions, mean, log_std"),
        (CONTINUOUS, logits_policy([0.0, 1.0], version=7), "log_std, mean, .*logits"),
        (CONTINUOUS, noisy_policy(4, 2, version=7), "log_std, mean, .*actions"),
    ],
    ids=["values", "continuous", "discrete", "noise"],
)
def test_a_policy_without_a_fitting_distribution_is_refused_if_actions_are_drawn(
    spec: EnvironmentSpec, policy: Policy, fact: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"version 7: .*{fact};"):
        load_policy(policy, spec, 3, sampler_needs(spec))


def test_a_distribution_of_another_size_is_refused() -> None:
    policy = gaussian_policy([0.0] * 2, [0.0] * 2, version=7, rows=2)
    with pytest.raises(InvalidInputError, match="version 7: "):
        load_policy(policy, CONTINUOUS, 3, (Role.MEAN, Role.LOG_STD))
    with pytest.raises(InvalidInputError, match=r"\[3, 2\], .*\[3, 1\]"):
        load_policy(gaussian_policy([0.0], [0.0]), CONTINUOUS, 3, (Role.MEAN, Role.LOG_STD))


@pytest.mark.parametrize("actions", [2, 4])
def test_a_model_with_another_number_of_actions_is_refused(actions: int) -> None:
    policy = constant_policy([0.0, 1.0, 2.0], version=7)
    with pytest.raises(InvalidInputError, match=rf"version 7: .*\[5, {actions}\], .*\[5, 3\]"):
        OnnxPolicy(policy, VECTOR, 5, actions)
    assert OnnxPolicy(policy, VECTOR, 5, 3)(np.zeros((5, 4), np.float32)).shape == (5, 3)


@pytest.fixture
def slot() -> PolicySlot:
    return PolicySlot(clock=lambda: 100.0)


def load(version: int, snapshot_at: float = 0.0) -> OnnxPolicy:
    return OnnxPolicy(as_policy(constant_policy([0.0, 1.0]).model, version, snapshot_at=snapshot_at), VECTOR, 1)


class Waiter(threading.Thread):
    """Waits at a slot for a version from `version` on."""

    def __init__(self, slot: PolicySlot, version: int) -> None:
        super().__init__()
        self._slot, self._version = slot, version
        self.asked = threading.Semaphore(0)
        self.found: OnnxPolicy | None = None
        self.start()

    def run(self) -> None:
        self.found = self._slot.wait(self._wanted, DEADLINE_S)

    def _wanted(self, descriptor: object) -> bool:
        self.asked.release()
        return getattr(descriptor, "version", 0) >= self._version


def test_the_newest_policy_is_seen_at_once(slot: PolicySlot) -> None:
    assert slot.peek() is None
    policies = [load(1), load(2)]
    for policy in policies:
        slot.put(policy)
        assert slot.peek() is policy
    assert slot.wait(lambda descriptor: descriptor.version == 2, 0.0) is policies[1]


def test_a_thread_waits_until_the_policy_is_one_that_it_wants(slot: PolicySlot) -> None:
    slot.put(load(1))
    waiter = Waiter(slot, version=2)
    assert waiter.asked.acquire(timeout=DEADLINE_S)
    wanted = load(2)
    slot.put(wanted)
    waiter.join(DEADLINE_S)
    assert waiter.found is wanted


def test_waiting_ends_without_a_policy_when_time_is_up_or_the_slot_is_closed(slot: PolicySlot) -> None:
    assert slot.wait(lambda _: True, 0.0) is None
    slot.put(load(1))
    assert slot.wait(lambda descriptor: descriptor.version > 1, 0.0) is None
    waiter = Waiter(slot, version=2)
    assert waiter.asked.acquire(timeout=DEADLINE_S)
    slot.close()
    waiter.join(DEADLINE_S)
    assert waiter.found is None
    assert slot.wait(lambda _: True, DEADLINE_S) is None


def test_a_woken_thread_calls_wanted_again(slot: PolicySlot) -> None:
    slot.put(load(1))
    waiter = Waiter(slot, version=2)
    assert waiter.asked.acquire(timeout=DEADLINE_S)
    waiter._version = 1
    slot.wake()
    waiter.join(DEADLINE_S)
    assert waiter.found is slot.peek()


def test_each_activation_is_reported_once_in_seconds_since_the_snapshot(slot: PolicySlot) -> None:
    for snapshot_at in (99.5, 98.0, 101.0):  # the last from a clock that is ahead
        slot.activated(load(1, snapshot_at).descriptor)
    assert slot.pop_activations() == (0.5, 2.0, 0.0)
    assert slot.pop_activations() == ()


def test_only_the_last_activations_are_kept(slot: PolicySlot) -> None:
    policy = load(1, snapshot_at=99.0)
    for _ in range(500):
        slot.activated(policy.descriptor)
    assert len(slot.pop_activations()) == 100


def test_a_policy_runs_on_the_thread_that_calls_it() -> None:
    # Its own threads would use the cores of other actors.
    process = psutil.Process()
    first = OnnxPolicy(random_policy(4, 2), VECTOR, 1)
    before = process.num_threads()
    policies = [first, *(OnnxPolicy(random_policy(4, 2), VECTOR, 1) for _ in range(3))]
    assert process.num_threads() <= before
    assert len(policies) == 4
