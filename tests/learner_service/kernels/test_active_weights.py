"""Products that leave zeros out are those that multiply them."""

import copy

import pytest
import torch
from torch import Tensor, nn

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.kernels.linear import in_columns, input_gradient, product, weight_gradient
from learner_service.kernels.sparse_products import DENSEST_PRODUCT, ActiveWeights
from learner_service.networks import Linear, TwinCritic, mlp
from learner_service.sparsity.weights import maskable_weights, multiply_by

SPEC = EnvironmentSpec("Any-v0", ArraySpec((60,), "float32"), ArraySpec((4,), "float32", (-1.0,), (1.0,)), ())
# So sparse that all products leave zeros out, and so that gradients of weights alone do.
DENSITIES = [0.04, 0.12]
ROWS, INPUTS, UNITS = 130, 150, 140


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mask_of(shape: tuple[int, ...], density: float, seed: int = 1) -> Tensor:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density
    # A row and a column without any, the last ones.
    mask[-1], mask[:, -1] = False, False
    return mask


def active_of(mask: Tensor) -> ActiveWeights:
    active = ActiveWeights()
    active.set(mask)
    return active


@pytest.mark.parametrize("density", DENSITIES)
def test_sparse_products_equal_products_with_zeros(density: float) -> None:
    mask = mask_of((UNITS, INPUTS), density)
    active, weight = active_of(mask), drawn(UNITS, INPUTS) * mask
    assert active.multiplies == (density < DENSEST_PRODUCT)
    x, y, bias = drawn(INPUTS, ROWS), drawn(UNITS, ROWS), drawn(UNITS)
    torch.testing.assert_close(active.product(weight, x, None), weight @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(active.product(weight, x, bias), weight @ x + bias[:, None], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(active.transposed_product(weight, y), weight.t() @ y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(active.gradient(y, x), (y @ x.t()) * mask, rtol=1e-4, atol=1e-4)


def test_set_changes_the_active_weights() -> None:
    active = active_of(mask_of((UNITS, INPUTS), 0.04))
    mask = mask_of((UNITS, INPUTS), 0.06, seed=2)
    active.set(mask)
    weight, x = drawn(UNITS, INPUTS) * mask, drawn(INPUTS, ROWS)
    torch.testing.assert_close(active.product(weight, x, None), weight @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("density", [*DENSITIES, None])
@pytest.mark.parametrize("columns", [False, True])
def test_values_and_gradients_do_not_depend_on_the_order_in_memory(density: float | None, columns: bool) -> None:
    mask = mask_of((UNITS, INPUTS), 1.0 if density is None else density)
    active = None if density is None else active_of(mask)
    weight, bias, x, to_y = drawn(UNITS, INPUTS) * mask, drawn(UNITS), drawn(ROWS, INPUTS), drawn(ROWS, UNITS, seed=1)
    expected = torch.relu(x @ weight.t() + bias), (to_y.t() @ x) * mask, to_y @ weight
    if columns:
        x, to_y = in_columns(x), in_columns(to_y)
        assert x.stride() == (1, ROWS)
    gradient = weight_gradient(to_y, x, active)
    found = product(x, weight, bias, relu=True, active=active), gradient * mask, input_gradient(to_y, weight, active)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if active is not None:
        assert not gradient[~mask].any()


@pytest.mark.parametrize("density", DENSITIES)
def test_a_network_with_sparse_products_equals_the_dense_one(density: float) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(mlp((20, 140, 150)), Linear(150, 5))
    masks = [mask_of((weight.units, weight.inputs), density) for weight in maskable_weights(plain)]
    for layer, mask in zip((part for part in plain.modules() if isinstance(part, Linear)), masks, strict=True):
        layer.weight.data.mul_(mask)
    sparse = copy.deepcopy(plain)
    multiply_by([None, active_of(masks[1]), None], sparse)
    x, target = drawn(ROWS, 20), drawn(ROWS, 5, seed=3)
    results = []
    for network in (plain, sparse):
        y = network(x)
        torch.autograd.backward((y - target).square().sum())
        gradients = [parameter.grad for parameter in network.parameters()]
        gradients[2] = gradients[2] * masks[1] if gradients[2] is not None else None
        results.append([y.detach(), *gradients])
        with torch.no_grad():
            torch.testing.assert_close(network(x), y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("density", DENSITIES)
def test_critics_with_sparse_products_equal_the_dense_ones(density: float) -> None:
    torch.manual_seed(0)
    plain, sparse = (TwinCritic(SPEC, (140, 150)) for _ in range(2))
    weights = maskable_weights(plain)
    masks = [mask_of((weight.units, weight.inputs), density, seed) for seed, weight in enumerate(weights)]
    for layer, stacked in enumerate(plain.stacked[::2]):
        for number in range(2):
            stacked.data[number].mul_(masks[2 * layer + number] if layer == 1 else 1.0)
    sparse.load_state_dict(plain.state_dict())
    # Of the first critic alone, to begin with: the second one multiplies by whole matrices then.
    for active in (
        [None, None, active_of(masks[2]), None, None, None],
        [None, None, *map(active_of, masks[2:4]), None],
    ):
        multiply_by([*active, *[None] * (6 - len(active))], sparse)
        results = []
        for critic in (plain, sparse):
            critic.zero_grad()
            actions = (drawn(ROWS, 4, seed=2)).requires_grad_()
            values = critic(drawn(ROWS, 60), actions)
            torch.autograd.backward(values.mean())
            hidden = critic.stacked[2].grad
            assert hidden is not None
            hidden.mul_(torch.stack(masks[2:4]))
            judged = drawn(ROWS, 4, seed=2).requires_grad_()
            torch.autograd.backward(critic.judge(drawn(ROWS, 60), judged, critics=1).mean())
            gradients = [parameter.grad for parameter in critic.stacked]
            results.append([values.detach(), actions.grad, judged.grad, *gradients])
        torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-5)


def test_gradients_of_all_weights_are_there_when_asked_for() -> None:
    mask = mask_of((UNITS, INPUTS), 0.04)
    active, x, to_y = active_of(mask), drawn(ROWS, INPUTS), drawn(ROWS, UNITS, seed=1)
    active.whole_gradient = True
    torch.testing.assert_close(weight_gradient(to_y, x, active), to_y.t() @ x, rtol=1e-4, atol=1e-4)


def test_a_copied_network_has_the_same_weights_active() -> None:
    layer = Linear(INPUTS, UNITS)
    layer.active = active_of(mask_of((UNITS, INPUTS), 0.04))
    assert copy.deepcopy(layer).active is layer.active


def test_a_traced_layer_multiplies_by_the_whole_matrix() -> None:
    layer = Linear(INPUTS, UNITS)
    layer.active = active_of(mask_of((UNITS, INPUTS), 0.04))
    program = torch.export.export(layer, (torch.zeros(ROWS, INPUTS),))
    assert "linear" in str(program.graph)
    assert "sparse" not in str(program.graph)
