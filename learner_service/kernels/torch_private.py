"""Fast private operations of torch, each with a public fallback for other versions of torch.

A private operation is used only if it gives the same result as its fallback on a small example. Nothing runs at import,
because processes are forked later, and torch's threads do not survive a fork.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

Divisor = Tensor | None
F = TypeVar("F", bound=Callable[..., Any])
Product = Callable[[Tensor, Tensor, Tensor | None, bool], Tensor]
"""x W^T + b, optionally with ReLU: float32[B, K], [N, K], [N] -> [B, N]."""

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Constants of Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1)."""

_log = logging.getLogger(__name__)


class AdamTensors(NamedTuple):
    """The numbers that a step of Adam reads and changes, float32[parameters] each. step: the step's number, counted
    from 1, float32[].
    """

    vector: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor
    step: Tensor


AdamStep = Callable[[AdamTensors, float, Divisor, float], None]
"""Updates a vector and Adam's two moments in place with the gradient / divisor, float32[].

The numbers are the step size and Adam's epsilon.
"""


def choose(private: F, public: F, works: Callable[[F], bool]) -> F:
    """The private form of an operation if it works on a small example, otherwise the public form."""
    try:
        if works(private):
            return private
        reason = "it gives different numbers"
    except Exception as error:
        # torch may raise any exception when the operation is missing or has other arguments.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    name = getattr(private, "__name__", private)
    _log.warning("torch %s: %s is not used, so updates are slower: %s", torch.__version__, name, reason)
    return public


@cache
def adam_step() -> AdamStep:
    """One step of Adam: torch's fused operation, which reads and writes each number once, or the fallback."""

    def after_two_steps(step: AdamStep) -> Tensor:
        vector, mean, square = torch.linspace(-1, 1, 24).view(3, 8).unbind()
        for number, divisor in ((3.0, torch.tensor(2.0)), (4.0, None)):
            # The fused operation divides the gradient in place.
            tensors = AdamTensors(vector, torch.linspace(1, 2, 8), mean, square, torch.tensor(number))
            step(tensors, 0.1, divisor, EPSILON)
        return torch.stack([vector, mean, square])

    return choose(
        fused_adam, plain_adam, lambda step: torch.allclose(after_two_steps(step), after_two_steps(plain_adam))
    )


def fused_adam(tensors: AdamTensors, rate: float, divisor: Divisor, epsilon: float) -> None:  # noqa: D103
    vectors = ([vector] for vector in tensors[:4])
    torch._fused_adam_(
        *(*vectors, [], [tensors.step]),
        lr=rate,
        beta1=BETAS[0],
        beta2=BETAS[1],
        eps=epsilon,
        weight_decay=0.0,
        amsgrad=False,
        maximize=False,
        grad_scale=divisor,
    )
    # torch does not count this operation as a change of the vector.
    torch.autograd.graph.increment_version(tensors.vector)


def plain_adam(tensors: AdamTensors, rate: float, divisor: Divisor, epsilon: float) -> None:  # noqa: D103
    vector, gradient, mean, square, step = tensors
    gradient = gradient if divisor is None else gradient / divisor
    mean.lerp_(gradient, 1 - BETAS[0])
    square.lerp_(gradient.square(), 1 - BETAS[1])
    corrected, variance = mean / (1 - BETAS[0] ** step), square / (1 - BETAS[1] ** step)
    vector.addcdiv_(corrected, variance.sqrt_().add_(epsilon), value=-rate)


@cache
def onednn_product() -> Product:
    """The linear product of oneDNN."""

    def works(product: Product) -> bool:
        x, weight, bias = torch.linspace(-1, 1, 6).view(2, 3), torch.linspace(-2, 1, 12).view(4, 3), torch.ones(4)
        return all(
            torch.allclose(product(x, weight, *how), plain_product(x, weight, *how), atol=1e-6)
            for how in ((bias, False), (None, True))
        )

    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return choose(linear_pointwise, plain_product, works) if has_onednn else plain_product


def linear_pointwise(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:  # noqa: D103
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if relu else "none", [], "")
    return y


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:  # noqa: D103
    y = functional.linear(x, weight, bias)
    return y.relu_() if relu else y


def is_traced() -> bool:
    """Whether the calls of this thread are compiled, exported or recorded (policy/recorded_calls.py)."""
    # Without the private operation, a recorded policy has operations that no graph can be written from. It is exported.
    modes = getattr(torch._C, "_len_torch_function_stack", int)
    return torch.compiler.is_compiling() or bool(modes())
