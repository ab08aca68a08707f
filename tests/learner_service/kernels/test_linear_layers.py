"""The fast linear layer is torch's."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from learner_service.kernels import linear as layers
from learner_service.kernels.linear import product
from learner_service.kernels.torch_private import onednn_product, plain_product
from learner_service.networks import Linear, mlp

# Rows, inputs and units: below and above the size from which oneDNN may multiply, also with odd numbers.
SIZES = [(4, 3, 5), (256, 17, 300), (64, 256, 256), (257, 129, 65)]


def data(rows: int, inputs: int) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["oneDNN", "MKL"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library for large products, for any processor."""
    chosen = onednn_product() if request.param == "oneDNN" else plain_product
    monkeypatch.setattr(layers, "large_product", lambda: chosen)


@pytest.mark.parametrize(
    ("cpuinfo", "prefers"),
    [("vendor_id\t: AuthenticAMD\n", True), ("vendor_id\t: GenuineIntel\n", False), (None, True)],
)
def test_the_processors_vendor_decides_the_library_for_products(
    tmp_path: Path, cpuinfo: str | None, prefers: bool
) -> None:
    file = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        file.write_text(cpuinfo)
    assert layers.large_product(file) is (onednn_product() if prefers else plain_product)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "units"), SIZES)
def test_values_and_gradients_are_those_of_torch(rows: int, inputs: int, units: int, bias: bool) -> None:
    torch.manual_seed(0)
    expected = nn.Linear(inputs, units, bias)
    actual = Linear(inputs, units, bias)
    actual.load_state_dict(expected.state_dict())
    results = []
    for layer in (expected, actual):
        x = data(rows, inputs).requires_grad_()
        y = layer(x)
        torch.autograd.backward((y * torch.arange(units).cos()).square().sum())
        assert x.grad is not None
        gradients = [parameter.grad for parameter in layer.parameters()]
        results.append([y.detach(), x.grad, *gradients])
        with torch.no_grad():
            assert torch.equal(layer(x), y)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("library")
def test_tensors_without_gradient_get_none() -> None:
    layer = Linear(256, 256).requires_grad_(False)
    x = data(64, 256).requires_grad_()
    torch.autograd.backward(layer(x).sum())
    assert x.grad is not None
    assert layer.weight.grad is None
    assert layer.bias.grad is None


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("rows", "inputs", "units"), SIZES)
def test_a_product_with_relu_is_the_product_and_relu(rows: int, inputs: int, units: int) -> None:
    x, weight, bias = data(rows, inputs), data(units, inputs), data(1, units).squeeze(0)
    expected = torch.relu(x @ weight.T + bias)
    assert 0 < torch.count_nonzero(expected) < expected.numel()
    torch.testing.assert_close(product(x, weight, bias, relu=True), expected, rtol=1e-4, atol=1e-4)


def test_it_begins_with_the_values_that_torch_draws() -> None:
    torch.manual_seed(3)
    expected = nn.Linear(6, 4)
    torch.manual_seed(3)
    assert torch.equal(Linear(6, 4).weight, expected.weight)


def test_a_traced_layer_is_an_operation_of_torch() -> None:
    program = torch.export.export(Linear(256, 256), (torch.zeros(64, 256),))
    assert "linear" in str(program.graph)
    assert "mkldnn" not in str(program.graph)


def test_a_deep_copy_has_parameters_of_its_own() -> None:
    network = mlp((3, 8, 5))
    other = copy.deepcopy(network)
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert next(network.parameters()).any()
    assert network(data(2, 3)).shape == (2, 5)
    assert (network(data(64, 3)) >= 0).all()
