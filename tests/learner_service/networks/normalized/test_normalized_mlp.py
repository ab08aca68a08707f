"""Batch normalization, unit rows, and the folding into plain layers, against numbers worked out by hand."""

import pytest
import torch
from torch import Tensor, nn

from learner_service.kernels.linear import Linear, mlp
from learner_service.networks.normalized.mlp import EPSILON, MOMENTUM, NormalizedMLP

SIZES, OUTPUTS = (3, 8, 6), 4


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def unfolded(network: NormalizedMLP, x: Tensor) -> Tensor:
    """The outputs with running statistics, layer by layer, in float64."""
    means, variances = (part.double().split(SIZES) for part in network.statistics)
    y = x.double()
    for number, size in enumerate(SIZES):
        if number:
            y = y @ network.layers[number - 1].weight.double().T  # type: ignore[operator]
        assert y.shape[1] == size
        y = (y - means[number]) / (variances[number] + EPSILON).sqrt()
        y = y * network.scales[number].double()
        y = (y + network.shifts[number - 1].double()).relu() if number else y
    return y @ network.head.weight.double().T + network.head.bias.double()


def random_network() -> NormalizedMLP:
    """A network with random scales, shifts and statistics."""
    network = NormalizedMLP(SIZES, OUTPUTS)
    with torch.no_grad():
        for scale in network.scales:
            scale.uniform_(0.5, 2.0)
        for shift in network.shifts:
            shift.normal_()
    network.statistics[0].normal_(2.0, 1.0)
    network.statistics[1].uniform_(0.1, 5.0)
    return network


def test_a_batch_is_normalized_with_its_own_mean_and_variance() -> None:
    network = NormalizedMLP((1, 1), 1)
    with torch.no_grad():
        network.head.weight.fill_(1.0)
        network.head.bias.zero_()
        network.layers[0].weight.fill_(1.0)  # type: ignore[operator]
        network.scales[1].fill_(2.0)
        network.shifts[0].fill_(0.5)
    # Mean 2 and variance 1 at the input, then mean 0 and variance 1.
    outputs, statistics = network(torch.tensor([[1.0], [3.0]]))
    torch.testing.assert_close(outputs, torch.tensor([[0.0], [2.5]]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(statistics, torch.tensor([[2.0, 0.0], [1.0, 1.0]]), rtol=1e-4, atol=1e-4)


def test_running_statistics_move_one_percent_of_the_way() -> None:
    network = NormalizedMLP((1, 1), 1)
    network.follow(torch.tensor([[2.0, -1.0], [5.0, 0.0]]))
    expected = [[2 * MOMENTUM, -MOMENTUM], [1 + 4 * MOMENTUM, 1 - MOMENTUM]]
    torch.testing.assert_close(network.statistics, torch.tensor(expected))


def test_rows_have_norm_one_after_a_projection_and_keep_their_direction() -> None:
    network = NormalizedMLP((2, 2), 1)
    weight = network.layers[0].weight
    assert isinstance(weight, Tensor)
    torch.testing.assert_close(weight.detach().norm(dim=1), torch.ones(2))
    with torch.no_grad():
        weight.copy_(torch.tensor([[3.0, 4.0], [0.0, -2.0]]))
    network.project()
    torch.testing.assert_close(weight.detach(), torch.tensor([[0.6, 0.8], [0.0, -1.0]]))


def test_the_norm_of_a_row_does_not_change_the_outputs() -> None:
    network, x = random_network(), torch.randn(64, SIZES[0])
    before, _ = network(x)
    with torch.no_grad():
        network.layers[0].weight.mul_(3.0)  # type: ignore[operator]
    torch.testing.assert_close(network(x)[0], before, rtol=1e-3, atol=1e-3)


def test_gradients_flow_through_the_statistics() -> None:
    network, x = random_network(), torch.randn(16, SIZES[0], requires_grad=True)
    outputs, statistics = network(x)
    (gradient,) = torch.autograd.grad(outputs[:8].square().sum(), x)
    # Only the shared statistics connect the second half of the batch with the outputs of the first half.
    assert float(gradient[8:].abs().min()) > 0
    assert not statistics.requires_grad


def test_folded_layers_compute_the_outputs_with_running_statistics() -> None:
    network, x = random_network(), 3.0 + 2.0 * torch.randn(256, SIZES[0])
    layers, head = mlp(SIZES), Linear(SIZES[-1], OUTPUTS)
    network.fold_into(layers, head)
    assert [type(layer) for layer in layers] == [Linear, nn.ReLU] * 2
    expected = unfolded(network, x).detach()
    with torch.no_grad():
        actual = head(layers(x))
    assert float(expected.abs().max()) > 0.5
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=2e-5)


def test_folded_statistics_of_a_batch_give_the_outputs_of_that_batch() -> None:
    network, x = random_network(), torch.randn(128, SIZES[0])
    outputs, statistics = network(x)
    network.statistics.copy_(statistics)
    layers, head = mlp(SIZES), Linear(SIZES[-1], OUTPUTS)
    network.fold_into(layers, head)
    torch.testing.assert_close(head(layers(x)), outputs, rtol=1e-4, atol=1e-4)
