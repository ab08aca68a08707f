"""DQN, SAC and TD3 with memory and everything that other networks have: own layers, masks, sparsity, rounding, bf16."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from actorq.domain.leaves import Leaf, views
from actorq.domain.policy import INT8_PER_TENSOR, LayerReport
from actorq.domain.signature import NEXT_STATE, Role
from actorq.domain.spaces import EnvironmentSpec
from actorq.quantization.compaction import Compactor
from actorq.quantization.graph import Graph
from learner_service.algorithms import make_algorithm
from learner_service.batch import Batch
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.quantization.fake_quantization import FakeQuantization
from quantizer_service.emission.reference import Reference
from tests.builders.structured import CATEGORY, NUMBERS, discrete, random_choices, random_observations
from tests.learner_service.algorithms.algorithm_parts import (
    BOUNDED,
    DEVICE,
    DISCRETE,
    assert_equal_states,
    on_device,
    ones,
)
from tests.learner_service.algorithms.replayed_parts import UNITS, random_sequences, run_of

NAMES = ("dqn", "sac", "td3")
STRUCTURED = {
    "masked": discrete(NUMBERS, CATEGORY, masked=True),
    "several parts": discrete(NUMBERS, choices=(2, 3), masked=True),
    "images": discrete(NUMBERS, Leaf("eye", "image", (4, 4, 1), "uint8")),
}
MEMORY = {"burn_in": 2, "sequence_length": 4}
N_STEP, SEQUENCES = 3, 8
PERIOD = 4


def made(name: str, kind: str = "gru", spec: EnvironmentSpec | None = None, **changes: Any) -> Any:
    section = {"hidden_sizes": (32, 32), "batch_size": SEQUENCES * 4, "n_step": N_STEP, **changes}
    # The policy of TD3 is updated each time too.
    section |= {"policy_delay": 1} if name == "td3" else {}
    memory = {"kind": kind, "units": UNITS, **MEMORY, **section.pop("memory", {})}
    return make_algorithm(run_of(name, memory, **section), spec or spec_of(name), DEVICE)


def spec_of(name: str) -> EnvironmentSpec:
    return DISCRETE if name == "dqn" else BOUNDED


def sequences(algorithm: Any, updates: int = 1, spec: EnvironmentSpec | None = None) -> Batch:
    windows = hasattr(algorithm, "needs_windows")
    given = spec or spec_of(algorithm.name)
    return random_sequences(algorithm._config, given, N_STEP, windows, updates * algorithm.sequences)


def learn(algorithm: Any, batch: Batch) -> None:
    """Make updates on a batch; all numbers stay finite and the policy changes."""
    before = snapshot_parameters(algorithm.policy)
    losses = algorithm.update(batch, ones(len(batch.states)))
    assert all(math.isfinite(value) for value in (losses.loss, *losses.figures.values()))
    assert np.isfinite(losses.priorities).all()
    after = snapshot_parameters(algorithm.policy)
    assert all(np.isfinite(values).all() for values in after.values())
    changed = {key.partition(".")[0] for key in after if not np.array_equal(after[key], before[key])}
    assert {"torso", "memory"} <= changed


@pytest.mark.parametrize("spec", STRUCTURED.values(), ids=STRUCTURED)
def test_observations_of_several_arrays_and_actions_of_several_parts_are_learned(spec: EnvironmentSpec) -> None:
    algorithm, rng = made("dqn", spec=spec), np.random.default_rng(0)
    batch = sequences(algorithm, spec=spec)
    observations = random_observations(rng, spec, *batch.observations.shape[:2])
    actions = random_choices(rng, spec, *batch.mask.shape)
    # All actions are legal, so that each may be a stored one.
    if spec.mask is not None:
        views(spec.leaves, observations)[spec.mask.name][...] = True
    learn(algorithm, batch.with_columns(observations=observations, actions=actions))
    signature = export_policy_graph(algorithm.policy, spec).signature
    assert (signature.state, signature.next_state) == (Role.STATE, NEXT_STATE)


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_follows_the_users_layers(name: str) -> None:
    algorithm = made(name, "lstm", run={"network": "own_algorithms:half_frozen"})
    learn(algorithm, sequences(algorithm))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["static", "set", "rigl", "structured", "tiny"])
def test_sparse_policies_have_memory(name: str, method: str) -> None:
    algorithm = sparse(name, method)
    learn(algorithm, sequences(algorithm, updates=3 * PERIOD))
    weights = [each.weight for each in algorithm.policy.memory.children()]
    zeros = [float((weight == 0).float().mean()) for weight in weights]
    assert all(share > 0.1 for share in zeros) == (method != "tiny")
    assert algorithm.flops.action.ratio < 0.75


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_algorithm_continues_bit_for_bit_through_mask_changes(name: str) -> None:
    one, other = sparse(name, "rigl"), sparse(name, "rigl")
    learn(one, sequences(one, updates=5))
    other.load_state({key: value.clone() for key, value in one.state().items()})
    mask = next(key for key in one.state() if key.endswith("topology.mask"))
    before = one.state()[mask].clone()
    for algorithm in (one, other):
        learn(algorithm, sequences(algorithm, updates=3 * PERIOD))
    assert_equal_states(other, one)
    assert not torch.equal(one.state()[mask], before)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("name", NAMES)
def test_the_removal_of_dead_units_keeps_the_state(name: str, kind: str) -> None:
    algorithm = made(name, kind)
    policy, spec = algorithm.policy, spec_of(name)
    layers = {key: module for key, module in policy.named_modules() if isinstance(module, nn.Linear)}
    first, last = (key for key in layers if key.startswith("torso."))
    with torch.no_grad():
        # A third of the hidden units has no inputs, and another third no readers.
        layers[first].weight[::3] = 0
        layers[last].weight[::3] = 0
        layers[last].weight[:, 1::3] = 0
        layers["memory.input"].weight[:, 1::3] = 0
        # Numbers of the state that nothing reads, and gates without inputs.
        layers["memory.recurrent"].weight[:, ::4] = 0
        layers["memory.recurrent"].weight[::5] = 0
        layers["memory.input"].weight[::5] = 0
    source = export_policy_graph(policy, spec, takes_noise=algorithm.takes_noise)
    parameters = snapshot_parameters(policy)
    compactor = Compactor(Graph.parse(source))
    live = compactor.live_units(parameters)
    assert live is not None
    widths = compactor.widths(live)
    assert widths.keys() == {first, last}
    assert all(now < before / 2 for before, now in widths.values())
    left = compactor.parameters(parameters, live)
    assert left is not None
    compact, whole = Reference(compactor.graph(live)), Reference(Graph.parse(source))
    rng, rows = np.random.default_rng(0), 5
    states = [np.zeros((rows, algorithm.policy.state_size), np.float32)] * 2
    for _ in range(200):
        inputs: dict[str, Any] = {"observations": rng.standard_normal((rows, 3), np.float32)}
        if algorithm.takes_noise:
            inputs[Role.NOISE] = rng.standard_normal((rows, 2), np.float32)
        runs = (whole, parameters), (compact, left)
        outputs = [
            network.run(values, {**inputs, Role.STATE: state})
            for (network, values), state in zip(runs, states, strict=True)
        ]
        for output in outputs[0]:
            np.testing.assert_allclose(outputs[1][output], outputs[0][output], atol=1e-4)
        states = [each[NEXT_STATE].astype(np.float32) for each in outputs]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("scheme", ["int8-weights", "int8", "int8-static", "int4"])
def test_training_simulates_the_actors_rounding_through_time(name: str, scheme: str, kind: str) -> None:
    algorithm, exact = made(name, kind), made(name, kind)
    batch, spec = sequences(algorithm), spec_of(name)
    learn(algorithm, batch)
    exact.load_state(algorithm.state())
    policy = algorithm.policy
    fake = FakeQuantization(policy, export_policy_graph(policy, spec, takes_noise=algorithm.takes_noise))
    layers = tuple(
        key
        for key, module in policy.named_modules()
        # int4 needs 16 inputs.
        if isinstance(module, nn.Linear) and (scheme != "int4" or module.in_features >= 16)
    )
    assert {"memory.input", "memory.recurrent"} <= {*layers}
    fake.follow(scheme, [LayerReport(layer, INT8_PER_TENSOR) for layer in layers])
    assert set(fake.layers) == set(layers)
    states = algorithm.states(batch)
    rows = [each.reshape(-1, each.shape[2]) for each in (batch.observations, states)]
    fake.calibrate(*map(on_device, rows))
    with fake.applied():
        rounded = algorithm.states(batch)
        learn(algorithm, batch)
    difference = np.abs(rounded - states)
    assert 0 < float(difference.max()) < (0.2 if scheme == "int4" else 0.1)
    # The rounding errors of later steps contain those of earlier ones. The first state is the stored one.
    assert not difference[:, 0].any()
    learn(exact, batch)
    expected, found = snapshot_parameters(exact.policy), snapshot_parameters(policy)
    assert not np.array_equal(found["memory.recurrent.weight"], expected["memory.recurrent.weight"])


@pytest.mark.parametrize("name", NAMES)
def test_wide_cells_multiply_in_bf16_on_request(name: str) -> None:
    wide: dict[str, Any] = {"hidden_sizes": (128, 128), "batch_size": 512, "memory": {"units": 128}}
    algorithms = [made(name, run={"learner": {"precision": precision}}, **wide) for precision in ("fp32", "bf16")]
    assert [algorithm.precision for algorithm in algorithms] == ["fp32", "bf16"]
    for algorithm in algorithms:
        learn(algorithm, sequences(algorithm))
    one, other = (snapshot_parameters(algorithm.policy) for algorithm in algorithms)
    for key, values in one.items():
        np.testing.assert_allclose(other[key], values, rtol=0.1, atol=0.01)


def sparse(name: str, method: str) -> Any:
    kind = {"method": "rigl", "structured": True} if method == "structured" else {"method": method}
    sparsity = {**kind, "actor": 0.5, "critic": 0.5, "period_updates": PERIOD}
    return made(name, run={"sparsity": sparsity})
