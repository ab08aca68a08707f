"""Networks of each group of agents, with every algorithm that has them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.config.run_config import RunConfig
from actorq.domain.leaves import CRITIC_VECTOR, VECTOR, Leaf, views
from actorq.domain.signature import RowGroup
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms import make_algorithm
from learner_service.policy.graph_writer import write_graph
from learner_service.policy.policy_graph import calibration_batch, graph_by, snapshot_parameters
from tests.builders.grouped import FIRST_BIT, GROUPS, SIZE, grouped, random_rows, with_groups
from tests.builders.structured import packed
from tests.learner_service.algorithms import on_policy_parts
from tests.learner_service.algorithms.algorithm_parts import (
    BATCH,
    BOUNDED,
    DEVICE,
    DISCRETE,
    assert_equal_states,
    make,
    of_the_cpu,
    on_device,
    ones,
    random_batch,
)

PAIR, SOLO = 0, 1
ON_POLICY = tuple(on_policy_parts.CLASSES)
CASES = ("dqn", "td3", "sac", "ppo", "impala", "ppo-continuous")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def spec_of(case: str) -> EnvironmentSpec:
    return grouped(BOUNDED if case in ("td3", "sac", "ppo-continuous") else DISCRETE)


def made(case: str, spec: EnvironmentSpec | None = None, **options: Any) -> Any:
    name = case.partition("-")[0]
    algorithm: Any = (on_policy_parts.make if name in ON_POLICY else make)(name, spec or spec_of(case), **options)
    algorithm.normalize(np.array([0.5, -1.0, 2.0, 10.0, -20.0]), np.array([2.0, 1.0, 0.5, 5.0, 4.0]))
    return algorithm


def learn(algorithm: Any, groups: int | None = None, seed: int = 7) -> None:
    """One batch of updates on random data of a group, or of both."""
    spec, rng = algorithm._spec, np.random.default_rng(seed)

    def with_some(observations: NDArray[Any]) -> NDArray[Any]:
        own = rng.integers(2, size=observations.shape[:-1]) if groups is None else groups
        return with_groups(observations, own)

    if algorithm.name in ON_POLICY:
        steps = on_policy_parts.random_trajectories(rng, spec)
        algorithm.learn([steps.with_columns(observations=with_some(steps.observations))], 0.0)
        return
    batch = random_batch(rng, spec, 2 * BATCH)
    columns = {name: with_some(getattr(batch, name)) for name in ("observations", "bootstrap_observations")}
    algorithm.update(batch.with_columns(**columns), ones(2 * BATCH))


def networks(algorithm: Any) -> Iterator[nn.Module]:
    for network in algorithm.networks.values():
        yield network.network


def parameters_of(algorithm: Any, group: str) -> dict[str, NDArray[np.float32]]:
    """Copies of the parameters of a group in all networks."""
    return {
        f"{number}.{name}": value.detach().cpu().numpy().copy()
        for number, network in enumerate(networks(algorithm))
        for name, value in network.named_parameters()
        if f"group_{group}" in name.split(".")
    }


def outputs(algorithm: Any, observations: NDArray[Any]) -> list[NDArray[np.float32]]:
    """The outputs of the policy, and of the critics for one action."""
    seen, found = on_device(observations), []
    with torch.no_grad():
        found.append(algorithm.policy(seen))
        if "critic" in algorithm.networks:
            acted = torch.zeros((len(seen), 2), device=DEVICE)
            inputs = () if algorithm.name in ON_POLICY else (acted,)
            found.append(algorithm.networks["critic"].network(seen, *inputs))
    first = [each[0] if isinstance(each, tuple) else each for each in found]
    # Twin critics have the rows on their second axis.
    return [(each if len(each) == len(seen) else each.T).cpu().numpy() for each in first]


def test_a_row_gets_the_outputs_of_its_own_groups_networks(case: str) -> None:
    algorithm, rows = made(case), random_rows(16)
    is_solo = rows[:, FIRST_BIT + SOLO] == 1
    before = outputs(algorithm, rows)
    with torch.no_grad():
        for network in networks(algorithm):
            for name, parameter in network.named_parameters():
                if "group_pair" in name.split("."):
                    parameter.add_(0.25)
    for old, new in zip(before, outputs(algorithm, rows), strict=True):
        assert np.array_equal(old[is_solo], new[is_solo])
        assert (old[~is_solo] != new[~is_solo]).any(axis=tuple(range(1, old.ndim))).all()


def test_networks_do_not_see_the_bits(case: str) -> None:
    algorithm, rows = made(case, normalize_observations=True), random_rows(16)
    with torch.no_grad():
        for network in networks(algorithm):
            parameters = dict(network.named_parameters())
            for name, parameter in parameters.items():
                if "group_solo" in name.split("."):
                    parameter.copy_(parameters[name.replace("group_solo", "group_pair")])
    of_pair, of_solo = (outputs(algorithm, with_groups(rows, group)) for group in (PAIR, SOLO))
    assert all(map(np.array_equal, of_pair, of_solo))


def test_rows_of_one_group_train_only_its_networks(case: str) -> None:
    algorithm = made(case)
    before = {group.name: parameters_of(algorithm, group.name) for group in GROUPS}
    learn(algorithm, SOLO)
    for name, changes in (("pair", False), ("solo", True)):
        after = parameters_of(algorithm, name)
        assert before[name].keys() == after.keys()
        assert any(not np.array_equal(before[name][key], after[key]) for key in after) is changes
    before = {group.name: parameters_of(algorithm, group.name) for group in GROUPS}
    learn(algorithm)
    for group in GROUPS:
        after = parameters_of(algorithm, group.name)
        # Hidden layers and heads of policies and critics.
        assert all(not np.array_equal(before[group.name][key], after[key]) for key in after if "weight" in key)


def test_every_parameter_of_a_policy_has_the_name_of_its_group(case: str) -> None:
    names = snapshot_parameters(made(case, normalize_observations=True).policy)
    shared = {"observe.normalizer.mean", "observe.normalizer.scale"}
    assert {group.name: sum(f"group_{group.name}" in name.split(".") for name in names) for group in GROUPS} == {
        "pair": (len(names) - 2) // 2,
        "solo": (len(names) - 2) // 2,
    }
    assert {name for name in names if "group_" not in name} == shared


def test_resumed_networks_equal_the_saved_ones(case: str) -> None:
    algorithm, resumed = made(case), made(case, seed=2)
    learn(algorithm)
    resumed.load_state(algorithm.state())
    learn(algorithm, seed=8)
    learn(resumed, seed=8)
    assert_equal_states(algorithm, resumed)


@of_the_cpu
def test_recorded_updates_are_those_of_autograd(case: str, caplog: pytest.LogCaptureFixture) -> None:
    recorded, by_autograd = made(case), made(case)
    assert recorded.can_record
    by_autograd.can_record = False
    for seed in range(4):
        learn(recorded, seed=seed)
        learn(by_autograd, seed=seed)
    assert_equal_states(recorded, by_autograd)
    assert "updates are not recorded" not in caplog.text


@pytest.mark.parametrize("first_bit", [0, 1, 3])
def test_the_graph_computes_the_same_for_any_rows(case: str, first_bit: int) -> None:
    spec = grouped(spec_of(case), first_bit)
    algorithm = made(case, spec, normalize_observations=True)
    noise = getattr(algorithm, "takes_noise", False)
    # Written without PyTorch's exporter.
    graph = graph_by(write_graph, algorithm.policy, spec, noise, False)
    assert graph.signature.groups == tuple(
        RowGroup(group.name, "observations", first_bit + number) for number, group in enumerate(GROUPS)
    )
    session = onnxruntime.InferenceSession(graph.model, providers=["CPUExecutionProvider"])
    rows = np.random.default_rng(3).standard_normal((9, SIZE), np.float32)
    rows = with_groups(rows, np.array([0, 1, 1, 0, 1, 0, 0, 1, 1]), first_bit)
    feeds = {**calibration_batch(rows, spec, noise, seed=1), **snapshot_parameters(algorithm.policy)}
    expected = session.run(None, feeds)
    with torch.no_grad():
        inputs = [on_device(value) for name, value in feeds.items() if name in ("observations", "noise")]
        found = algorithm.policy(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    for own, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(own, other.cpu().numpy(), atol=1e-5)
    for row in range(9):
        single = {name: value[row : row + 1] if len(value) == 9 else value for name, value in feeds.items()}
        for own, other in zip(session.run(None, single), expected, strict=True):
            np.testing.assert_allclose(own, other[row : row + 1], atol=1e-5)


def test_critics_may_see_more_than_the_groups_policies() -> None:
    seen = Leaf(VECTOR, "numbers", (SIZE,), "float32")
    hidden = Leaf(CRITIC_VECTOR, "numbers", (2,), "float32", critic=True)
    spec = replace(grouped(BOUNDED), observations=packed(seen, hidden))
    for name in ("sac", "ppo"):
        algorithm: Any = (on_policy_parts.make if name in ON_POLICY else make)(name, spec)
        packed_rows = np.zeros((16, spec.observations.shape[0]), np.uint8)
        found = views(spec.leaves, packed_rows)
        found[VECTOR][...] = random_rows(16)
        before = outputs(algorithm, packed_rows)
        found[CRITIC_VECTOR][...] = 1.0
        after = outputs(algorithm, packed_rows)
        assert np.array_equal(before[0], after[0])
        assert not np.isclose(before[1], after[1], atol=1e-6).any()


@of_the_cpu
@pytest.mark.parametrize("case", ["dqn", "sac", "ppo"])
def test_products_of_each_group_may_be_in_bfloat16(case: str) -> None:
    sizes: dict[str, Any] = {"hidden_sizes": (256, 256), "batch_size": 160, "learner": {"precision": "bf16"}}
    algorithm = made(case, **sizes | ({"value_sizes": (256, 256)} if case == "ppo" else {}))
    assert algorithm.precision == "bf16"
    wide = [
        name
        for network in algorithm.networks.values()
        for name, layer in network.network.named_modules()
        if getattr(layer, "bf16_weight", None) is not None or any(getattr(layer, "bf16_weights", ()))
    ]
    assert {group.name for group in GROUPS for name in wide if f"group_{group.name}" in name} == {"pair", "solo"}
    assert np.isfinite(outputs(algorithm, random_rows(160))[0]).all()


@pytest.mark.parametrize("name", ["d4pg", "xqc"])
def test_an_algorithm_without_networks_of_groups_refuses_them(name: str) -> None:
    with pytest.raises(UserError, match=f"policies: algorithm {name} has one policy for all agents"):
        make(name, grouped(BOUNDED))


def test_a_run_with_groups_refuses_an_environment_with_one_agent() -> None:
    config = RunConfig.model_validate({"policies": {"a": ["red"], "b": ["green"]}})
    with pytest.raises(UserError, match="policies: expected an environment with several agents, got Discrete-v0"):
        make_algorithm(config, DISCRETE)
