"""Steps of recurrent cells over time, with written gradients.

autograd records each operation of each step, and multiplies once for each step to get a weight's gradient. Here the
backward pass has few operations for each step, and one product for the gradient of the weight.

Shapes: products float32[T, B, gates * U], of the features; state float32[B, S]; keeps float32[T, B, 1], 0 where an
episode begins, else 1; weight float32[gates * U, U] and bias float32[gates * U] of the recurrent layer. The results are
the outputs float32[T, B, U], and without gradient the states before each step and after the last, float32[T + 1, B, S].
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from learner_service.kernels.linear import Linear


def can_unroll(layer: nn.Module, products: Tensor) -> bool:
    """Whether the functions of this module compute the same as calls of a recurrent layer.

    They do not for a sparse layer, for a layer with products in bfloat16, for a fake-quantized layer, and while a
    compiler or exporter traces.
    """
    plain = isinstance(layer, Linear) and layer.active is None and layer.bf16_weight is None
    return plain and products.dtype == torch.float32 and "forward" not in vars(layer) and not _is_tracing()


def _is_tracing() -> bool:
    return bool(torch.compiler.is_compiling())


class GRUSteps(torch.autograd.Function):
    """All steps of `learner_service.networks.memory.GRU`."""

    @staticmethod
    def forward(
        ctx: Any, products: Tensor, state: Tensor, keeps: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Make the steps."""
        steps, rows, units = len(products), len(state), state.shape[1]
        both, transposed = 2 * units, weight.t()
        outputs, new = (products.new_empty((steps, rows, units)) for _ in range(2))
        states = products.new_empty((steps + 1, rows, units))
        gates, of_states = products.new_empty((steps, rows, both)), torch.empty_like(products)
        after = state
        for product, keep, before, of_state, gate, candidate, output in zip(
            products, keeps, states, of_states, gates, new, outputs, strict=False
        ):
            torch.mul(after, keep, out=before)
            torch.addmm(bias, before, transposed, out=of_state)
            torch.add(product[:, :both], of_state[:, :both], out=gate).sigmoid_()
            torch.addcmul(product[:, both:], gate[:, :units], of_state[:, both:], out=candidate).tanh_()
            after = torch.lerp(candidate, before, gate[:, units:], out=output)
        states[steps] = after
        ctx.save_for_backward(keeps, weight, states, gates, new, of_states[..., both:])
        ctx.mark_non_differentiable(states)
        return outputs, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_outputs: Tensor, to_states: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of products, state, weight and bias."""
        keeps, weight, states, gates, new, remembered = ctx.saved_tensors
        steps, rows, _ = new.shape
        reset, update = gates.chunk(2, dim=2)
        # The gradients of the sums inside z and n, divided by the gradient of the output.
        slopes = torch.stack(((states[:-1] - new) * update * (1 - update), (1 - update) * (1 - new.square())), 2)
        # The gradient of the sum inside r, divided by that inside n.
        reset_slopes = remembered * reset * (1 - reset)
        to_products = torch.empty_like(slopes[:, :, :1]).expand(-1, -1, 3, -1).contiguous()
        to_of_states = torch.empty_like(to_products)
        shares = torch.ones_like(to_products)
        shares[:, :, 2] = reset
        carry = torch.zeros_like(new[0])
        for t in range(steps - 1, -1, -1):
            to_output, to_product, to_of_state = carry.add_(to_outputs[t]), to_products[t], to_of_states[t]
            torch.mul(to_output.unsqueeze(1), slopes[t], out=to_product[:, 1:])
            torch.mul(to_product[:, 2], reset_slopes[t], out=to_product[:, 0])
            torch.mul(to_product, shares[t], out=to_of_state)
            carry = torch.addmm(to_output * update[t], to_of_state.view(rows, -1), weight).mul_(keeps[t])
        to_weight, to_bias = _of_layer(to_of_states, states)
        return to_products.view(steps, rows, -1), carry, None, to_weight, to_bias


class LSTMSteps(torch.autograd.Function):
    """All steps of `learner_service.networks.memory.LSTM`."""

    @staticmethod
    def forward(
        ctx: Any, products: Tensor, state: Tensor, keeps: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Make the steps."""
        steps, rows, units = len(products), len(state), state.shape[1] // 2
        transposed, three = weight.t(), 3 * units
        states = products.new_empty((steps + 1, rows, 2 * units))
        afters = products.new_empty((steps, rows, 2 * units))
        shown = products.new_empty((steps, rows, units))
        gates = products + bias
        last = state
        for gate, keep, before, after, tanh in zip(gates, keeps, states, afters, shown, strict=False):
            torch.mul(last, keep, out=before)
            gate.addmm_(before[:, :units], transposed)
            gate[:, :three].sigmoid_()
            gate[:, three:].tanh_()
            kept = torch.mul(gate[:, units : 2 * units], before[:, units:], out=after[:, units:])
            kept.addcmul_(gate[:, :units], gate[:, three:])
            torch.tanh(kept, out=tanh)
            torch.mul(gate[:, 2 * units : three], tanh, out=after[:, :units])
            last = after
        states[steps] = last
        ctx.save_for_backward(keeps, weight, states, gates, shown)
        ctx.mark_non_differentiable(states)
        return afters[..., :units].contiguous(), states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_outputs: Tensor, to_states: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of products, state, weight and bias."""
        keeps, weight, states, gates, shown = ctx.saved_tensors
        steps, rows, units = shown.shape
        opens, forgets, shows, new = gates.chunk(4, dim=2)
        # Gradients of the kept numbers and of the sum inside o, divided by the gradient of the output.
        to_kept, show_slopes = shows * (1 - shown.square()), shown * shows * (1 - shows)
        # Gradients of the sums inside i, f and g, divided by the gradient of the kept numbers.
        slopes = torch.stack(
            (
                new * opens * (1 - opens),
                states[:-1, :, units:] * forgets * (1 - forgets),
                torch.zeros_like(new),
                opens * (1 - new.square()),
            ),
            2,
        )
        to_products = torch.empty_like(slopes)
        carry, carried = torch.zeros_like(shown[0]), torch.zeros_like(shown[0])
        for t in range(steps - 1, -1, -1):
            to_output, to_product = carry.add_(to_outputs[t]), to_products[t]
            carried.addcmul_(to_output, to_kept[t])
            torch.mul(carried.unsqueeze(1), slopes[t], out=to_product)
            torch.mul(to_output, show_slopes[t], out=to_product[:, 2])
            carry = torch.mm(to_product.view(rows, -1), weight).mul_(keeps[t])
            carried.mul_(forgets[t]).mul_(keeps[t])
        to_weight, to_bias = _of_layer(to_products, states[..., :units])
        return to_products.view(steps, rows, -1), torch.cat((carry, carried), 1), None, to_weight, to_bias


def _of_layer(to_outputs: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the weight and the bias of a recurrent layer, from those of its outputs [T, B, gates, U]."""
    flat = to_outputs.flatten(2).flatten(0, 1)
    return flat.t() @ states[:-1].flatten(0, 1), flat.sum(0)
