"""Critics and value networks that see more than the policy, with every algorithm that has them."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.domain.leaves import CRITIC_VECTOR, VECTOR, Leaf, views
from actorq.domain.signature import Role
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms import make_algorithm
from learner_service.networks.encoders import Leaves
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from tests.builders.structured import IMAGE, NUMBERS, critics, discrete, packed, random_observations
from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    BOUNDED,
    DEVICE,
    assert_equal_states,
    make,
    on_device,
    ones,
    random_batch,
)
from tests.learner_service.algorithms.recurrent_parts import UNITS, make_recurrent, random_recurrent
from tests.learner_service.algorithms.replayed_parts import random_sequences, run_of

HIDDEN = Leaf(CRITIC_VECTOR, "numbers", (2,), "float32", critic=True)
SPEC = replace(BOUNDED, observations=packed(NUMBERS, HIDDEN))
WITH_IMAGE = replace(BOUNDED, observations=packed(NUMBERS, HIDDEN, critics(IMAGE)))
ON_POLICY = tuple(on_policy_parts.CLASSES)
REPLAYED = ("td3", "sac", "d4pg", "xqc")
MOMENTS = np.array([0.5, -1.0, 2.0, 10.0, -20.0]), np.array([2.0, 1.0, 0.5, 5.0, 4.0])


@pytest.fixture(params=(*REPLAYED, *ON_POLICY))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(name: str, spec: EnvironmentSpec = SPEC, **options: Any) -> Any:
    algorithm: Any = (on_policy_parts.make if name in ON_POLICY else make)(name, spec, **options)
    algorithm.normalize(*MOMENTS)
    return algorithm


def observations_of(spec: EnvironmentSpec, *rows: int, seed: int = 0) -> NDArray[np.uint8]:
    return random_observations(np.random.default_rng(seed), spec, *rows)


def learn(algorithm: Any, seed: int = 7) -> None:
    """One batch of updates on random data."""
    spec, rng = algorithm._spec, np.random.default_rng(seed)
    if algorithm.name in ON_POLICY:
        steps = on_policy_parts.random_trajectories(rng, BOUNDED)
        seen = observations_of(spec, *steps.observations.shape[:2], seed=seed)
        algorithm.learn([steps.with_columns(observations=seen)], 0.0)
        return
    batch = random_batch(rng, BOUNDED, 2 * BATCH)
    seen, following = (observations_of(spec, 2 * BATCH, seed=number) for number in (seed, seed + 1))
    algorithm.update(batch.with_columns(observations=seen, bootstrap_observations=following), ones(2 * BATCH))


def changed(spec: EnvironmentSpec, observations: NDArray[np.uint8], *leaves: str) -> NDArray[np.uint8]:
    """The observations with other values of some leaves."""
    found, other = observations.copy(), observations_of(spec, *observations.shape[:-1], seed=99)
    for leaf in leaves:
        views(spec.leaves, found)[leaf][...] = views(spec.leaves, other)[leaf]
    return found


def judged(algorithm: Any, observations: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The outputs of the critics or the value network for one action."""
    network, seen = algorithm.networks["critic"].network, on_device(observations)
    actions = () if algorithm.name in ON_POLICY else (torch.zeros((len(seen), 2), device=DEVICE),)
    with torch.no_grad():
        outputs = network(seen, *actions)
    found: NDArray[np.float32] = (outputs[0] if isinstance(outputs, tuple) else outputs).cpu().numpy()
    return found


def acted(algorithm: Any, observations: NDArray[np.uint8]) -> NDArray[np.float32]:
    with torch.no_grad():
        outputs = algorithm.policy(on_device(observations))
    found: NDArray[np.float32] = (outputs[0] if isinstance(outputs, tuple) else outputs).cpu().numpy()
    return found


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
def test_the_critics_outputs_depend_on_the_leaf_and_those_of_the_policy_do_not(name: str, normalize: bool) -> None:
    algorithm = made(name, normalize_observations=normalize)
    learn(algorithm)
    before = observations_of(SPEC, 16)
    for leaf, actions_change in ((CRITIC_VECTOR, False), (VECTOR, True)):
        after = changed(SPEC, before, leaf)
        assert np.array_equal(acted(algorithm, before), acted(algorithm, after)) is not actions_change
        assert not np.allclose(judged(algorithm, before), judged(algorithm, after), atol=1e-4)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
def test_the_graph_lacks_the_leaf_and_its_statistics(name: str, normalize: bool) -> None:
    algorithm = made(name, normalize_observations=normalize)
    learn(algorithm)
    noise = getattr(algorithm, "takes_noise", False)
    graph = export_policy_graph(algorithm.policy, SPEC, noise)
    observations = observations_of(SPEC, 7)
    inputs = calibration_batch(observations, SPEC, noise, seed=1)
    assert [port.name for port in graph.signature.inputs] == [*inputs] == ["observations/vector", "noise"][: 1 + noise]
    parameters = snapshot_parameters(algorithm.policy)
    shapes = {key: parameters[key].shape for key in parameters if "normalizer" in key}
    assert shapes == {f"observe.normalizer.{part}": (3,) for part in ("mean", "scale") if normalize}
    session = onnxruntime.InferenceSession(graph.model, providers=["CPUExecutionProvider"])
    if noise:
        inputs[Role.NOISE][...] = 0.0
    outputs = session.run(None, {**inputs, **parameters})
    np.testing.assert_allclose(outputs[0], acted(algorithm, observations), rtol=1e-4, atol=1e-5)


def test_both_kinds_of_numbers_are_normalized(name: str) -> None:
    plain, normalized = made(name), made(name, normalize_observations=True)
    before = observations_of(SPEC, 16)
    scaled = before.copy()
    mean, std = MOMENTS
    for leaf, part in ((VECTOR, slice(0, 3)), (CRITIC_VECTOR, slice(3, 5))):
        numbers = views(SPEC.leaves, scaled)[leaf]
        numbers[...] = mean[part] + std[part] * numbers
    np.testing.assert_allclose(judged(normalized, scaled), judged(plain, before), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(acted(normalized, scaled), acted(plain, before), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalized"])
def test_a_resumed_algorithm_continues_bit_for_bit(name: str, normalize: bool) -> None:
    original = made(name, normalize_observations=normalize)
    learn(original)
    resumed: Any = (on_policy_parts.make if name in ON_POLICY else make)(
        name, SPEC, seed=5, normalize_observations=normalize
    )
    resumed.load_state(original.state())
    assert_equal_states(resumed, original)
    for algorithm in (original, resumed):
        learn(algorithm, seed=8)
    assert_equal_states(resumed, original)


def test_a_run_begins_with_all_normalizers_of_another(name: str) -> None:
    original = made(name, normalize_observations=True)
    learn(original)
    begun: Any = (on_policy_parts.make if name in ON_POLICY else make)(name, SPEC, normalize_observations=True)
    begun.begin_from(original.state())
    observations = observations_of(SPEC, 8)
    np.testing.assert_array_equal(judged(begun, observations), judged(original, observations))
    np.testing.assert_array_equal(acted(begun, observations), acted(original, observations))


@pytest.mark.parametrize("name", ["td3", "sac", "d4pg", *ON_POLICY])
def test_an_image_for_critics_gets_an_encoder_of_the_critics(name: str) -> None:
    algorithm = made(name, WITH_IMAGE, normalize_observations=True)
    learn(algorithm)
    assert not [module for module in algorithm.policy.modules() if isinstance(module, torch.nn.Conv2d)]
    before = observations_of(WITH_IMAGE, 16)
    for leaf in (CRITIC_VECTOR, "camera/left"):
        after = changed(WITH_IMAGE, before, leaf)
        np.testing.assert_array_equal(acted(algorithm, before), acted(algorithm, after))
        assert not np.allclose(judged(algorithm, before), judged(algorithm, after), atol=1e-5)


@pytest.mark.parametrize("method", ["static", "rigl", "tiny"])
@pytest.mark.parametrize("name", ["td3", "sac", "d4pg", *ON_POLICY])
def test_critics_with_the_leaf_can_be_sparse(name: str, method: str) -> None:
    sparsity = {"method": method, "actor": 0.5, "critic": 0.5, "period_updates": 3}
    algorithm = made(name, sparsity=sparsity)
    learn(algorithm)
    before = observations_of(SPEC, 16)
    after = changed(SPEC, before, CRITIC_VECTOR)
    np.testing.assert_array_equal(acted(algorithm, before), acted(algorithm, after))
    assert not np.array_equal(judged(algorithm, before), judged(algorithm, after))
    assert algorithm.flops.action.now > 0


@pytest.mark.parametrize("seen", [False, True], ids=["blind", "with the leaf"])
@pytest.mark.parametrize("name", ["td3", "sac", "d4pg", "xqc"])
def test_critics_learn_what_only_the_leaf_shows(name: str, seen: bool) -> None:
    """The return is a number of the leaf, which is independent of everything else."""
    spec = SPEC if seen else BOUNDED
    constant: dict[str, Any] = {"learning_rate_end": None} if name == "xqc" else {}
    algorithm, rng = make(name, spec, **constant), np.random.default_rng(0)
    for _ in range(150):
        observations = observations_of(SPEC, BATCH, seed=int(rng.integers(2**31)))
        hidden = views(SPEC.leaves, observations)[CRITIC_VECTOR][:, 0].copy()
        if not seen:
            observations = views(SPEC.leaves, observations)[VECTOR].copy()
        batch = random_batch(rng, BOUNDED, BATCH).with_columns(
            observations=observations, bootstrap_observations=observations, returns=hidden
        )
        errors = algorithm.update(batch.with_columns(bootstrap_discounts=0 * hidden), ones()).priorities
    assert (float(errors.mean()) < 0.4) is seen


@pytest.mark.parametrize("algorithm", ["dqn", "own_on_policy:Reinforce"])
def test_an_algorithm_without_a_critic_refuses_them(algorithm: str) -> None:
    spec = discrete(NUMBERS, HIDDEN)
    with pytest.raises(UserError, match=f"critic_leaves: algorithm {algorithm} has no critic .* choose ppo or impala"):
        make_algorithm(RunConfig(algorithm=algorithm), spec, DEVICE)


def test_an_actor_that_does_not_hide_them_is_refused() -> None:
    config = RunConfig(algorithm="ppo", critic_leaves=("speed",))
    with pytest.raises(UserError, match="critic_leaves: expected an actor whose policy does not see"):
        make_algorithm(config, discrete(NUMBERS), DEVICE)


def test_xqc_refuses_an_image_for_critics() -> None:
    with pytest.raises(UserError, match="supports observations that are vectors"):
        make("xqc", WITH_IMAGE)


def test_own_encoders_may_be_for_leaves_of_critics() -> None:
    config = RunConfig.model_validate({"algorithm": "sac", "encoders": {CRITIC_VECTOR: f"{__name__}:encoder"}})
    algorithm: Any = make_algorithm(config, SPEC, DEVICE)
    kinds = [[type(module) for module in network.network.modules()] for network in algorithm.networks.values()]
    assert [torch.nn.Softsign in each for each in kinds] == [False, True]
    config = RunConfig.model_validate({"algorithm": "sac", "encoders": {"wheels": f"{__name__}:encoder"}})
    with pytest.raises(UserError, match=f"wheels is not an array .* vector, {CRITIC_VECTOR}"):
        make_algorithm(config, SPEC, DEVICE)


def encoder(leaf: Leaf) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(leaf.shape[0], 4), torch.nn.Softsign())


# With memory


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_the_memory_of_the_policy_lacks_the_leaf_and_the_critics_beside_it_see_it(name: str) -> None:
    memory = {"kind": "gru", "burn_in": 2, "sequence_length": 5}
    config = run_of(name, memory, batch_size=20, run={"normalize_observations": True})
    algorithm: Any = make_algorithm(config, SPEC, DEVICE)
    algorithm.normalize(*MOMENTS)
    batch = random_sequences(config, SPEC, 1, hasattr(algorithm, "needs_windows"), 4)
    batch = batch.with_columns(observations=observations_of(SPEC, *batch.observations.shape[:2]))
    other = batch.with_columns(observations=changed(SPEC, batch.observations, CRITIC_VECTOR))
    np.testing.assert_array_equal(algorithm.states(batch), algorithm.states(other))
    state, weights = algorithm.state(), np.ones(4, np.float32)
    first = algorithm.update(batch, weights).priorities
    algorithm.load_state(state)
    assert not np.allclose(first, algorithm.update(other, weights).priorities)
    graph = export_policy_graph(algorithm.policy, SPEC, getattr(algorithm, "takes_noise", False))
    assert [port.name for port in graph.signature.inputs][:2] == ["observations/vector", Role.STATE]


@pytest.mark.parametrize("name", ON_POLICY)
def test_the_memory_of_the_policy_lacks_the_leaf_and_the_value_network_beside_it_sees_it(name: str) -> None:
    algorithm: Any = make_recurrent(name, SPEC, "gru", normalize_observations=True)
    algorithm.normalize(*MOMENTS)
    (steps,) = random_recurrent(algorithm, BOUNDED, 9)
    steps = steps.with_columns(observations=observations_of(SPEC, *steps.observations.shape[:2]))
    other = steps.with_columns(observations=changed(SPEC, steps.observations, CRITIC_VECTOR))
    np.testing.assert_array_equal(algorithm.states(steps), algorithm.states(other))
    assert algorithm.learn([steps], 0.0).updates > 0
    remembered = torch.zeros((steps.observations.shape[0] * steps.observations.shape[1], UNITS), device=DEVICE)
    values = [algorithm.present_values(each, (remembered,)) for each in (steps, other)]
    assert not np.allclose(*values)


def test_recorded_and_unpacked_observations_have_all_leaves() -> None:
    observations = on_device(observations_of(WITH_IMAGE, 3))
    for spec in (WITH_IMAGE, WITH_IMAGE.for_critics):
        leaves = Leaves(spec)
        for one, other in zip(leaves.encoded(observations), leaves.encoded(leaves.unpacked(observations)), strict=True):
            torch.testing.assert_close(one, other)
    assert [len(Leaves(spec).encoded(observations)) for spec in (WITH_IMAGE, WITH_IMAGE.for_critics)] == [1, 3]
