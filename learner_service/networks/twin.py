"""The twin critics of TD3 and SAC: two critics of the same shape, computed together.

With one thread, each product belongs to one critic. With more threads, a product covers both critics if MKL computes
it, because MKL gives each thread a critic. The threads then synchronize half as often, and no product is split.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels import bfloat16
from learner_service.kernels.bfloat16 import Bfloat16Weight
from learner_service.kernels.linear import in_columns, input_gradient, large_product, product, weight_gradient
from learner_service.kernels.sparse_products import ActiveWeights
from learner_service.kernels.torch_private import plain_product
from learner_service.kernels.written_gradient import WrittenGradient
from learner_service.networks.actions import ActionScale
from learner_service.networks.observations import FeatureNetwork

_Active = Sequence[ActiveWeights | None]
# For each layer the weights of both critics in bfloat16, [2, N, K], or None.
_Copies = Sequence[Tensor | None]


class TwinCritic(FeatureNetwork):
    """Two ReLU MLPs that value actions (arXiv 1802.09477, sec. 4.2). Their parameters are stacked, [2, ...].

    given: see `FeatureNetwork`.
    remembered: numbers of the policy's memory that the critics read. They precede the actions in the same input.
    active: for each critic, the active weights of each layer, None for a dense layer; empty for dense critics.
    bf16_weights: for each layer, the weights for bfloat16 products, None for float32; empty for float32 critics.
    forward: observations [B, *policy_observations] of the environment's dtype, actions float32[B, A] in [-1, 1]
        -> values float32[2, B].
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], remembered: int = 0, **given: Any) -> None:
        super().__init__(spec, **given)
        self.acted = remembered + ActionScale(spec).components
        sizes = (self.inputs + self.acted, *hidden_sizes, 1)
        self.stacked = nn.ParameterList()
        for inputs, units in pairwise(sizes):
            # The initial values of nn.Linear.
            bound = 1 / math.sqrt(inputs)
            self.stacked.append(torch.empty(2, units, inputs).uniform_(-bound, bound))
            self.stacked.append(torch.empty(2, units).uniform_(-bound, bound))
        self.active: tuple[_Active, ...] = ()
        self.bf16_weights: tuple[Bfloat16Weight | None, ...] = ()
        self._written: tuple[WrittenGradient | None, ...] = ()

    def write_gradients(self) -> list[WrittenGradient]:
        """Write all gradients into the present `grad` of the parameters in later backward passes.

        Returns one object for each parameter.
        """
        written = [WrittenGradient(parameter) for parameter in self.stacked]
        self._written = tuple(written)
        return written

    def wide_weights(self) -> list[Tensor]:
        """The weights [2, N, K] of dense, wide and hidden layers, whose products are faster in bfloat16."""
        return [] if self.active else [weight for weight in self.stacked[2:-2:2] if bfloat16.is_wide(weight)]

    def use_bfloat16(self, vector: Tensor) -> None:
        """Multiply the wide weights in bfloat16 in later calls. vector: the vector that the parameters are views of."""
        wide = {id(weight) for weight in self.wide_weights()}
        self.bf16_weights = tuple(
            Bfloat16Weight(vector) if id(weight) in wide else None for weight in self.stacked[::2]
        )

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both critics' values, with gradients for their parameters."""
        return self.values(torch.cat((self.seen(observations), actions), 1))

    def judge(self, observations: Tensor, actions: Tensor, critics: int = 2) -> Tensor:
        """Values of the first critic or of both, float32[critics, B], with gradients only for the actions."""
        with torch.no_grad():
            features = self.seen(observations)
        return self.values(torch.cat((features, actions), 1), critics)

    def values(self, x: Tensor, judges: int | None = None) -> Tensor:
        """The critics' values float32[critics, B] of inputs float32[B, K].

        judges: number of critics to compute, without gradients for their parameters; None for both critics, with
            gradients.
        """
        # Each attribute is looked up once, because a lookup takes a microsecond.
        stacked: list[Tensor] = list(self.stacked)
        parameters = stacked if judges is None else [parameter.detach()[:judges] for parameter in stacked]
        active = self.active[:judges]
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return batched_mlps(x, *parameters, in_bfloat16=[each is not None for each in self.bf16_weights])
        copies = [
            each.of(weight) if each is not None and bfloat16.is_large(len(x), weight) else None
            for each, weight in zip(self.bf16_weights, stacked[::2], strict=False)
        ]
        if self._are_together(parameters, copies):
            if not torch.is_grad_enabled():
                return _forward_together(x, parameters)[0]
            together: Tensor = _MLPsTogether.apply(x, self._written, *parameters)  # type: ignore[no-untyped-call]
            return together
        if not torch.is_grad_enabled():
            return _forward(x, active, copies, parameters)[0]
        values: Tensor = _MLPs.apply(x, active, copies, self._written, *parameters)  # type: ignore[no-untyped-call]
        return values

    def _are_together(self, parameters: Sequence[Tensor], copies: _Copies) -> bool:
        """Whether each product covers both critics."""
        return (
            torch.get_num_threads() > 1
            and len(parameters[0]) > 1
            and not self.active
            and not any(copy is not None for copy in copies)
            and large_product() is plain_product
        )


def batched_mlps(x: Tensor, *parameters: Tensor, in_bfloat16: Sequence[bool] = ()) -> Tensor:
    """Both MLPs with one batched product per layer, for GPUs and compiled code, where launch overhead dominates."""
    y = x.expand(len(parameters[0]), *x.shape)
    for layer, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        y = y.relu() if layer else y
        if in_bfloat16 and in_bfloat16[layer]:
            y = torch.bmm(y.to(torch.bfloat16), weight.to(torch.bfloat16).transpose(1, 2)).float() + bias.unsqueeze(1)
        else:
            y = torch.baddbmm(bias.unsqueeze(1), y, weight.transpose(1, 2))
    return y.squeeze(2)


def _forward(
    x: Tensor, active: Sequence[_Active], copies: _Copies, parameters: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """Values, float32[critics, B], and the tensors for the backward pass, first of critic 1, then of critic 2.

    These are the outputs of each hidden layer, float32[B, units], and its inputs in bfloat16; None in float32.
    """
    values, activations = [], []
    rounded: list[Tensor | None] = []
    x = in_columns(x) if active else x
    for number, critic in enumerate(zip(*(parameter.unbind() for parameter in parameters), strict=True)):
        y, weights, biases = x, critic[::2], critic[1::2]
        own = active[number] if active else (None,) * len(weights)
        for layer, (weight, bias) in enumerate(zip(weights[:-1], biases[:-1], strict=True)):
            copy = _of(copies, layer, number)
            low = None if copy is None else y.to(torch.bfloat16)
            factor, weight = (y if low is None else low), (weight if copy is None else copy)
            y = product(factor, weight, bias, relu=True, active=own[layer])
            activations.append(y)
            rounded.append(low)
        values.append(product(y, weights[-1], biases[-1], active=own[-1]).squeeze(1))
    return torch.stack(values), activations, rounded


def _of(copies: _Copies, layer: int, critic: int) -> Tensor | None:
    """The weights of a critic's layer in bfloat16, [N, K], or None."""
    both = copies[layer] if copies else None
    return None if both is None else both[critic]


class _MLPs(torch.autograd.Function):
    """Both MLPs as one autograd node, because on the CPU a node's overhead is longer than its computation."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        active: Sequence[_Active],
        copies: _Copies,
        written: Sequence[WrittenGradient | None],
        *parameters: Tensor,
    ) -> Tensor:
        values, activations, rounded = _forward(x, active, copies, parameters)
        ctx.save_for_backward(x, *parameters[::2], *activations)
        ctx.layers, ctx.active, ctx.copies, ctx.written = len(parameters) // 2, active, copies, written
        ctx.rounded = rounded
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        weights, activations = saved[: ctx.layers], saved[ctx.layers :]
        need_x, need_parameters = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        to_x: Tensor | None = None
        written = [None if each is None else each.acquire() for each in ctx.written] if need_parameters else []
        places = [place for place in written if place is not None]
        to_parameters = places or [
            torch.empty_like(part) for weight in weights for part in (weight, weight[:, :, 0]) if need_parameters
        ]
        for critic, to_values in enumerate(gradient.contiguous()):
            own = slice(critic * (ctx.layers - 1), (critic + 1) * (ctx.layers - 1))
            inputs, rounded = [x, *activations[own]], [*ctx.rounded[own], None]
            active = ctx.active[critic] if ctx.active else (None,) * ctx.layers
            # A single column. For sparse critics, its strides mark it as column-major for the next products.
            to_y = to_values.unsqueeze(0).t() if ctx.active else to_values.unsqueeze(1)
            for layer in reversed(range(ctx.layers)):
                copy = _of(ctx.copies, layer, critic)
                slopes, factor = (to_y, inputs[layer]) if copy is None else (to_y.to(torch.bfloat16), rounded[layer])
                if need_parameters:
                    to_parameters[2 * layer][critic] = weight_gradient(slopes, factor, active[layer])
                    torch.sum(to_y, 0, out=to_parameters[2 * layer + 1][critic])
                if layer or need_x:
                    weight = weights[layer][critic] if copy is None else copy
                    to_input = input_gradient(slopes, weight, active[layer])
                    if layer:
                        to_y = torch.ops.aten.threshold_backward(to_input, inputs[layer], 0)
                    else:
                        to_x = to_input if to_x is None else to_x.add_(to_input)
        returned = to_parameters if need_parameters and not places else [None] * 2 * ctx.layers
        return to_x, None, None, None, *returned


def _forward_together(x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The values float32[2, B], and the inputs of each layer, float32[2, B, units]."""
    inputs, layers = [x.expand(2, *x.shape)], len(parameters) // 2
    for layer, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        y = torch.baddbmm(bias.unsqueeze(1), inputs[-1], weight.transpose(1, 2))
        inputs.append(y.relu_() if layer < layers - 1 else y)
    return inputs.pop().squeeze(2), inputs


class _MLPsTogether(torch.autograd.Function):
    """As `_MLPs`, but each product covers both critics. Dense, in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, written: Sequence[WrittenGradient | None], *parameters: Tensor) -> Tensor:
        values, inputs = _forward_together(x, parameters)
        ctx.save_for_backward(*parameters[::2], *inputs)
        ctx.layers, ctx.written = len(parameters) // 2, written
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, inputs = ctx.saved_tensors[: ctx.layers], ctx.saved_tensors[ctx.layers :]
        need_x, need_parameters = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2:])
        taken = [None if each is None else each.acquire() for each in ctx.written] if need_parameters else []
        places = [place for place in taken if place is not None]
        to_parameters = places or [
            torch.empty_like(part) for weight in weights for part in (weight, weight[:, :, 0]) if need_parameters
        ]
        to_x: Tensor | None = None
        to_y = gradient.contiguous().unsqueeze(2)
        for layer in reversed(range(ctx.layers)):
            if need_parameters:
                torch.bmm(to_y.transpose(1, 2), inputs[layer], out=to_parameters[2 * layer])
                torch.sum(to_y, 1, out=to_parameters[2 * layer + 1])
            if layer:
                to_y = torch.ops.aten.threshold_backward(torch.bmm(to_y, weights[layer]), inputs[layer], 0)
            elif need_x:
                to_x = torch.bmm(to_y, weights[0]).sum(0)
        returned = to_parameters if need_parameters and not places else [None] * 2 * ctx.layers
        return to_x, None, *returned
