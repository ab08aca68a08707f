"""torch's private operations give the results of their public forms, which replace them if torch lacks them."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from learner_service.kernels import linear, torch_private
from learner_service.kernels.torch_private import (
    AdamTensors,
    fused_adam,
    linear_pointwise,
    plain_adam,
    plain_product,
)
from tests.learner_service.algorithms.algorithm_parts import ALL_ALGORITHMS, hidden, make, ones, random_batch, spec_of


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def forget() -> None:
    """Operations are chosen again after this call."""
    for chosen in (torch_private.adam_step, torch_private.onednn_product, linear.large_product):
        chosen.cache_clear()


@pytest.fixture
def chosen_anew() -> Iterator[None]:
    forget()
    yield
    forget()


def test_here_the_private_operations_are_used() -> None:
    assert torch_private.adam_step() is fused_adam
    assert torch_private.onednn_product() is (
        linear_pointwise if torch.backends.mkldnn.is_available() else plain_product  # type: ignore[no-untyped-call]
    )


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
@pytest.mark.parametrize("divisor", [None, torch.tensor(3.0)], ids=["whole", "clipped"])
def test_steps_of_adam_are_those_of_torch(divisor: Tensor | None, epsilon: float) -> None:
    start, gradients = numbers(1000), [numbers(1000, seed=seed) for seed in range(1, 20)]
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([parameter], lr=0.01, eps=epsilon)
    for gradient in gradients:
        parameter.grad = gradient.clone() if divisor is None else gradient / divisor
        optimizer.step()
    for step in (fused_adam, plain_adam):
        vector, mean, square = start.clone(), torch.zeros(1000), torch.zeros(1000)
        for number, gradient in enumerate(gradients, 1):
            tensors = AdamTensors(vector, gradient.clone(), mean, square, torch.tensor(float(number)))
            step(tensors, 0.01, divisor, epsilon)
        torch.testing.assert_close(vector, parameter.detach())


@pytest.mark.parametrize("step", [fused_adam, plain_adam])
def test_torch_counts_a_step_as_a_change(step: torch_private.AdamStep) -> None:
    vector, ones = torch.zeros(3), torch.ones(3)
    before = vector._version
    step(AdamTensors(vector, ones.clone(), ones.clone(), ones.clone(), torch.tensor(1.0)), 0.1, None, 1e-8)
    assert vector._version > before


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [numbers(300, seed=2), None], ids=["bias", "no bias"])
def test_products_agree(bias: Tensor | None, relu: bool) -> None:
    x, weight = numbers(256, 65), numbers(300, 65, seed=1)
    expected = x @ weight.T + (0 if bias is None else bias)
    expected = expected.clamp(min=0) if relu else expected
    for product in (linear_pointwise, plain_product):
        torch.testing.assert_close(product(x, weight, bias, relu), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("chosen_anew")
@pytest.mark.parametrize("name", ALL_ALGORITHMS)
def test_every_algorithm_learns_the_same_without_private_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch(np.random.default_rng(0), spec_of(name), 5 * 512)
    states = []
    for lacking in (False, True):
        if lacking:
            monkeypatch.setattr(torch_private, "choose", lambda private, public, works: public)
            forget()
            assert torch_private.adam_step() is plain_adam
        algorithm = make(name, batch_size=512, **hidden(name, 64, 64))
        losses = algorithm.update(batch, ones(5 * 512))
        states.append({**algorithm.state(), "priorities": torch.from_numpy(losses.priorities)})
    for key, value in states[1].items():
        torch.testing.assert_close(value, states[0][key], rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize(
    ("private", "reason"),
    [
        (lambda x: x + 1, "different numbers"),
        (lambda: 0.0, "TypeError"),
        (lambda x: x.no_such_operation(), "AttributeError"),
    ],
)
def test_a_missing_or_changed_private_operation_is_not_used_and_logged(
    private: Callable[..., float], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def public(x: float) -> float:
        return 2 * x

    assert torch_private.choose(private, public, lambda form: form(4.0) == 8.0) is public
    (line,) = caplog.messages
    assert "not used" in line
    assert reason in line
    assert "\n" not in line
