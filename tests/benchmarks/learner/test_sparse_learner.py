"""Networks in compressed sparse rows compute what masked dense ones do, gradients included."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from actorq.config.run_config import RunConfig
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import write_twice
from benchmarks.learner.sparse_learner import of_run, surviving, targets, updates
from benchmarks.learner.sparse_learner_csr import SparseMLP, SparseTwinCritic, networks_with, sparse_networks
from benchmarks.training.rlx2_sparsities import PAPER, Sparsity, spec_of
from learner_service.algorithms import make_algorithm
from learner_service.training.checkpoint import Checkpoints, LearnerState


@pytest.fixture
def masks() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.rand(shape, generator=generator) < density
        for shape, density in (((256, 17), 0.6), ((128, 256), 0.1), ((6, 128), 0.7))
    ]


def test_outputs_and_gradients_are_those_of_a_dense_network_with_zeros(masks: list[Tensor]) -> None:
    torch.manual_seed(1)
    sparse = SparseMLP(masks)
    assert [weight.ndim for weight in sparse.weights] == [2, 1, 2]
    assert [pattern is not None for pattern in sparse.patterns] == [False, True, False]
    x, gradient = torch.randn(32, 17), torch.randn(32, 6)
    taken = x.clone().requires_grad_()
    outputs = sparse(taken)
    torch.autograd.backward(outputs, gradient)
    weights = [weight.requires_grad_() for weight in _dense(sparse, masks)]
    expected_x = x.clone().requires_grad_()
    expected = _mlp(expected_x, weights, list(sparse.biases))
    torch.autograd.backward(expected, gradient)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(taken.grad, expected_x.grad)
    for mask, weight, parameter in zip(masks, weights, sparse.weights, strict=True):
        assert weight.grad is not None
        assert parameter.grad is not None
        active = weight.grad * mask if parameter.ndim == 2 else weight.grad[mask]
        torch.testing.assert_close(parameter.grad, active)


def test_fixed_parameters_get_no_gradient(masks: list[Tensor]) -> None:
    sparse, x = SparseMLP(masks), torch.randn(4, 17, requires_grad=True)
    torch.autograd.backward(sparse.fixed(x).sum())
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in sparse.parameters())


def test_a_judge_asks_the_critics_that_it_is_told_to() -> None:
    spec = spec_of("HalfCheetah-v5")
    own = [torch.ones(8, 23, dtype=torch.bool), torch.ones(1, 8, dtype=torch.bool)]
    critic = SparseTwinCritic((own, own), spec)
    observations, actions = torch.randn(5, 17), torch.randn(5, 6)
    values = critic(observations, actions)
    assert values.shape == (2, 5)
    torch.testing.assert_close(critic.judge(observations, actions, critics=1), values[:1])


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_algorithms_learn_with_sparse_networks_and_only_with_active_weights(algorithm: str) -> None:
    spec = spec_of("HalfCheetah-v5")
    heads = 6 if algorithm == "td3" else 12
    actor = [torch.ones(shape, dtype=torch.bool) for shape in ((8, 17), (heads, 8))]
    critic = [torch.ones(shape, dtype=torch.bool) for shape in ((8, 23), (1, 8))]
    with networks_with(*sparse_networks(actor, (critic, critic))):
        run = updates(RunConfig(algorithm=algorithm, environment="HalfCheetah-v5"), spec)
    losses = [getattr(run(), "loss", 0.0) for _ in range(8)]
    assert losses[-1] < losses[0]


def test_a_unit_survives_as_long_as_a_way_leads_to_an_output() -> None:
    first = torch.zeros(4, 3, dtype=torch.bool)
    second = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=torch.bool)
    last = torch.tensor([[1, 0, 1], [1, 0, 0]], dtype=torch.bool)
    assert surviving([first, second, last]) == (2, 2)


def _measured(critic: float, masked: float, training: float) -> dict[str, Any]:
    return {"sparsity": [0.9, critic], "ratios": {"dense": 1.0, "masked": masked, "training": training}}


def test_masks_alone_do_not_meet_the_target_of_the_sparsest_critics() -> None:
    cells = [_measured(0.85, 1.01, 1.0), _measured(0.95, 1.02, 0.7), _measured(0.95, 1.02, 0.5)]
    assert [(target.measured, target.met) for target in targets(cells)] == [(1.0, True), (0.7, True)]
    masked = [_measured(cell["sparsity"][1], 1.0, cell["ratios"]["masked"]) for cell in cells]
    assert [(target.measured, target.met) for target in targets(masked)] == [(1.02, True), (1.02, False)]


def test_critics_that_are_not_so_sparse_have_one_target() -> None:
    assert [target.met for target in targets([_measured(0.85, 1.01, 1.2)])] == [False]


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_masks_of_a_run_are_those_of_its_checkpoint(algorithm: str, tmp_path: Path) -> None:
    spec = spec_of("Hopper-v5")
    config = _sparse_config(algorithm, "rlx2", (16, 16))
    made = make_algorithm(config, spec)
    run = RunDirectory(tmp_path / "run")
    run.create(config)
    write_twice(run.root / "environment.json", spec.to_json())
    Checkpoints(run.root / "checkpoints", 1).save(LearnerState(1, made.state(), {}))
    case = of_run(run.root)
    assert (case.algorithm, case.width, case.spec, case.sparsity) == (algorithm, 16, spec, Sparsity(0.75, 0.5))
    heads = 3 if algorithm == "td3" else 6
    assert [tuple(mask.shape) for mask in case.masks.actor] == [(16, 11), (16, 16), (heads, 16)]
    layers = [part.weight for part in made.policy.modules() if isinstance(part, torch.nn.Linear)]
    for mask, weight in zip(case.masks.actor, layers, strict=True):
        assert mask.dtype == torch.bool
        assert not weight[~mask].any()
        assert weight[mask].all()
    for masks in case.masks.critics:
        assert [tuple(mask.shape) for mask in masks] == [(16, 14), (16, 16), (1, 16)]
        active, weights = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
        assert active / weights == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("method", "sizes"), [("dense", (16, 16)), ("rlx2", (16, 8)), ("rlx2", (16,))])
def test_a_run_without_such_networks_is_refused(method: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(_sparse_config("td3", method, sizes))
    with pytest.raises(SystemExit, match="expected sparse TD3 or SAC with two hidden layers of one width"):
        of_run(run.root)


def test_sparsities_are_shares() -> None:
    assert all(0.7 < share < 1 for sparsity in PAPER.values() for share in (sparsity.actor, sparsity.critic))


def _sparse_config(algorithm: str, method: str, sizes: tuple[int, ...]) -> RunConfig:
    sparsity = {"method": method, "actor": 0.75, "critic": 0.5}
    tree = {"algorithm": algorithm, "environment": "Hopper-v5", algorithm: {"hidden_sizes": sizes}}
    return RunConfig.model_validate({**tree, "sparsity": sparsity})


def _dense(network: SparseMLP, masks: list[Tensor]) -> list[Tensor]:
    weights = []
    for weight, mask in zip(network.weights, masks, strict=True):
        dense = torch.zeros(mask.shape)
        dense[mask] = weight.detach() if weight.ndim == 1 else weight.detach()[mask]
        weights.append(dense)
    return weights


def _mlp(x: Tensor, weights: list[Tensor], biases: list[torch.nn.Parameter]) -> Tensor:
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = functional.linear(x.relu() if number else x, weight, bias.detach())
    return x
