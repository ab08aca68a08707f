"""The number of weights of each layer, and refused settings."""

from itertools import pairwise

import pytest

from actorq.errors import UserError
from learner_service.sparsity.densities import budgets, erdos_renyi
from learner_service.sparsity.weights import Weight


def layers(*sizes: int) -> tuple[Weight, ...]:
    return tuple(Weight(f"layer {number}", 0, units, inputs) for number, (inputs, units) in enumerate(pairwise(sizes)))


@pytest.mark.parametrize("sparsity", [0.0, 0.2, 0.5, 0.9, 0.96, 0.99])
@pytest.mark.parametrize("sizes", [(17, 256, 256, 6), (111, 256, 256, 8), (3, 32, 1), (300, 400, 5)])
def test_the_whole_network_has_the_requested_sparsity(sizes: tuple[int, ...], sparsity: float) -> None:
    network = layers(*sizes)
    total = sum(layer.size for layer in network)
    densities = erdos_renyi(network, 1 - sparsity)
    assert all(0 < density <= 1 for density in densities)
    active = sum(density * layer.size for density, layer in zip(densities, network, strict=True))
    assert active == pytest.approx((1 - sparsity) * total)
    assert sum(budgets(network, sparsity, "sparsity.actor")) == pytest.approx(active, abs=len(network) / 2)


def test_densities_are_in_proportion_to_sides_over_areas_where_no_layer_is_full() -> None:
    network = layers(64, 128, 64, 32)
    densities = erdos_renyi(network, 0.1)
    scales = [
        density * layer.size / (layer.units + layer.inputs) for density, layer in zip(densities, network, strict=True)
    ]
    assert max(densities) < 1
    assert scales == pytest.approx([scales[0]] * 3)


def test_a_layer_that_would_be_more_than_full_is_dense_and_the_others_are_solved_again() -> None:
    """HalfCheetah's policy at 90%: of 71,424 weights 7,142; the head has 1,536, and 273 + 512 sides share the rest."""
    densities = erdos_renyi(layers(17, 256, 256, 6), 0.1)
    scale = (7142.4 - 1536) / (273 + 512)
    assert densities == pytest.approx((scale * 273 / 4352, scale * 512 / 65536, 1.0))


def test_several_layers_may_be_full() -> None:
    assert erdos_renyi(layers(2, 100, 100, 1), 0.1) == pytest.approx((1.0, (0.1 * 10_300 - 300) / 10_000, 1.0))
    assert erdos_renyi(layers(2, 100, 100, 1), 1.0) == (1.0, 1.0, 1.0)


def test_kernels_of_convolutions_count_as_sides() -> None:
    convolution = Weight("convolution", 0, 32, 4 * 8 * 8, (8, 8))
    linear = Weight("linear", 0, 256, 512)
    first, second = erdos_renyi((convolution, linear), 0.1)
    assert first * convolution.size / (32 + 4 + 8 + 8) == pytest.approx(second * linear.size / (256 + 512))


def test_a_layer_without_weights_gives_one_line() -> None:
    with pytest.raises(UserError, match=r"^sparsity\.critic: .*0\.9999, .*32 x 3 in layer 0") as caught:
        budgets(layers(3, 32, 32, 2), 0.9999, "sparsity.critic")
    assert "\n" not in str(caught.value)
