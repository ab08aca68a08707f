"""Policies with memory and everything that other networks have: own layers, masks, sparsity, rounding, bf16."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from actorq.config.memory import MemoryConfig
from actorq.config.run_config import RunConfig
from actorq.domain.leaves import Leaf, views
from actorq.domain.policy import INT8_PER_TENSOR, LayerReport
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.algorithms.registry import make_algorithm
from learner_service.networks import SoftmaxPolicy, ValueNetwork
from learner_service.policy.policy_graph import export_policy_graph
from learner_service.quantization.fake_quantization import FakeQuantization
from tests.builders.structured import CATEGORY, NUMBERS, discrete, mixed, random_choices, random_observations
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DISCRETE, on_device
from tests.learner_service.algorithms.on_policy_parts import random_trajectories
from tests.learner_service.algorithms.recurrent_parts import UNITS, make_recurrent, random_recurrent, with_states

STRUCTURED = {
    "masked": discrete(NUMBERS, CATEGORY, masked=True),
    "several parts": discrete(NUMBERS, choices=(2, 3), masked=True),
    "both kinds of actions": mixed(NUMBERS),
    "images": discrete(NUMBERS, Leaf("eye", "image", (4, 4, 1), "uint8")),
}


def learned(algorithm: PolicyGradient, rollout: Any) -> None:
    """Learn from a rollout; all numbers stay finite and the policy changes."""
    before = algorithm.state()["policy.parameters"]
    result = algorithm.learn(rollout, 0.0)
    assert result.updates > 0
    assert all(math.isfinite(value) for value in (result.loss, *result.figures.values()))
    after = algorithm.state()["policy.parameters"]
    assert bool(after.isfinite().all())
    assert not torch.equal(after, before)


@pytest.mark.parametrize("name", ["ppo", "impala"])
@pytest.mark.parametrize("spec", STRUCTURED.values(), ids=STRUCTURED)
def test_observations_of_several_arrays_and_actions_of_several_parts_are_learned(
    name: str, spec: EnvironmentSpec
) -> None:
    algorithm, rng = make_recurrent(name, spec, "gru"), np.random.default_rng(0)
    steps = random_trajectories(rng, BOUNDED, 9, 4)
    observations, actions = random_observations(rng, spec, 10, 4), random_choices(rng, spec, 9, 4)
    if spec.mask is not None:
        # All actions are legal where one was drawn.
        views(spec.leaves, observations)[spec.mask.name][...] = True
    learned(algorithm, [with_states(algorithm, steps.with_columns(observations=observations, actions=actions), rng)])
    signature = export_policy_graph(algorithm.policy, spec).signature
    assert (signature.state, signature.next_state) == ("state", "next_state")


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_a_cell_follows_the_users_layers(name: str) -> None:
    algorithm = make_recurrent(name, DISCRETE, "lstm", network="own_algorithms:half_frozen")
    learned(algorithm, random_recurrent(algorithm, DISCRETE, 8))


@pytest.mark.parametrize("name", ["ppo", "impala"])
@pytest.mark.parametrize("method", ["static", "set", "rigl", "structured", "tiny"])
def test_sparse_policies_have_memory(name: str, method: str) -> None:
    structured = {"method": "rigl", "structured": True} if method == "structured" else {"method": method}
    sparsity = {**structured, "actor": 0.5, "critic": 0.5, "period_updates": 4}
    algorithm = make_recurrent(name, DISCRETE, "gru", sparsity=sparsity, hidden_sizes=(32, 32), value_sizes=(32, 32))
    for seed in range(3):
        learned(algorithm, random_recurrent(algorithm, DISCRETE, 8, 8, seed=seed))
    weights = [each.weight for each in algorithm.policy.memory.children()]
    zeros = [float((weight == 0).float().mean()) for weight in weights]
    assert all(share > 0.1 for share in zeros) == (method != "tiny")
    flops: Any = algorithm.flops  # type: ignore[attr-defined]
    assert flops.action.ratio < 0.75


@pytest.mark.parametrize("name", ["ppo", "impala"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("scheme", ["int8-weights", "int8", "int8-static", "int4"])
def test_training_simulates_the_actors_rounding_through_time(name: str, scheme: str, kind: str) -> None:
    algorithm = make_recurrent(name, DISCRETE, kind)
    rollout = random_recurrent(algorithm, DISCRETE, 8)
    algorithm.learn(rollout, 0.0)
    fake = FakeQuantization(algorithm.policy, export_policy_graph(algorithm.policy, DISCRETE))
    layers = tuple(
        key
        for key, module in algorithm.policy.named_modules()
        # int4 needs 16 inputs.
        if isinstance(module, nn.Linear) and (scheme != "int4" or module.in_features >= 16)
    )
    assert {"memory.input", "memory.recurrent"} <= {*layers}
    fake.follow(scheme, [LayerReport(layer, INT8_PER_TENSOR) for layer in layers])
    assert set(fake.layers) == set(layers)
    states = algorithm.states(rollout[0])
    rows = [each.reshape(-1, each.shape[2]) for each in (rollout[0].observations[:-1], states)]
    fake.calibrate(*map(on_device, rows))
    with fake.applied():
        rounded = algorithm.states(rollout[0])
        learned(algorithm, rollout)
    difference = np.abs(rounded - states)[1:]
    assert 0 < float(difference.max()) < (0.2 if scheme == "int4" else 0.1)


def test_wide_cells_multiply_in_bf16_on_request() -> None:
    wide: dict[str, Any] = {"hidden_sizes": (128,), "value_sizes": (128,), "batch_size": 512}
    memory = {"kind": "gru", "units": 128}
    made = [
        make_recurrent("ppo", DISCRETE, memory, learner={"precision": precision}, **wide)
        for precision in ("fp32", "bf16")
    ]
    assert [algorithm.precision for algorithm in made] == ["fp32", "bf16"]
    for algorithm in made:
        learned(algorithm, random_recurrent(algorithm, DISCRETE, 64))
    torch.testing.assert_close(*(each.state()["policy.parameters"] for each in made), rtol=0.1, atol=0.05)


def test_the_value_network_reads_the_policys_memory_without_changing_it() -> None:
    memory = MemoryConfig(kind="gru", units=UNITS)
    policy, value = SoftmaxPolicy(DISCRETE, (8,), memory=memory), ValueNetwork(DISCRETE, (8,), memory=memory)
    assert value.memory is None
    assert (policy.further_inputs, value.further_inputs) == ((UNITS,), (UNITS,))
    observations, remembered = torch.randn(5, 3), torch.randn(5, UNITS)
    values = value(observations, remembered)
    assert values.shape == (5,)
    assert not torch.equal(values, value(observations, 2 * remembered))
    # Without the policy's part of the loss, its gradient is zero.
    ppo = make_recurrent("ppo", DISCRETE, "gru", entropy_cost=0.0, normalize_advantages=False, gae_lambda=1.0)
    steps = random_recurrent(ppo, DISCRETE, 8)[0]
    before = ppo.state()
    ppo.learn([steps.with_columns(log_probabilities=np.full_like(steps.rewards, np.inf))], 0.0)
    after = ppo.state()
    assert torch.equal(after["policy.parameters"], before["policy.parameters"])
    assert not torch.equal(after["critic.parameters"], before["critic.parameters"])


def test_an_algorithm_without_memory_is_refused_in_one_line() -> None:
    config = RunConfig.model_validate({"algorithm": "own_on_policy:Reinforce", "memory": "gru"})
    with pytest.raises(UserError, match=r"algorithm own_on_policy:Reinforce has no memory.*give --memory none"):
        make_algorithm(config, DISCRETE)
