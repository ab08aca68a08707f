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
        outputs, new = products.new_empty((2, steps, rows, units)).unbind()
        gates, of_states = products.new_empty((steps, rows, both)), torch.empty_like(products)
        befores, after = [], state
        # Views of all steps at once, because a view takes as long as a small operation.
        views = [products[..., :both], products[..., both:], of_states, of_states[..., :both], of_states[..., both:]]
        views += [gates, *gates.chunk(2, dim=2), new, outputs]
        columns = zip(_masks(keeps), *(each.unbind() for each in views), strict=True)
        for keep, of_gates, of_new, of_state, state_gates, state_new, gate, reset, update, candidate, output in columns:
            before = after if keep is None else after * keep
            befores.append(before)
            torch.addmm(bias, before, transposed, out=of_state)
            torch.add(of_gates, state_gates, out=gate).sigmoid_()
            torch.addcmul(of_new, reset, state_new, out=candidate).tanh_()
            after = torch.lerp(candidate, before, update, out=output)
        states = torch.stack((*befores, after))
        ctx.save_for_backward(keeps, weight, states, gates, new, of_states[..., both:])
        ctx.mark_non_differentiable(states)
        return outputs, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_outputs: Tensor, to_states: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of products, state, weight and bias."""
        keeps, weight, states, gates, new, remembered = ctx.saved_tensors
        reset, update = gates.chunk(2, dim=2)
        # The gradients of the sums inside z and n, divided by the gradient of the output.
        slopes = torch.stack(((states[:-1] - new) * update * (1 - update), (1 - update) * (1 - new.square())), 2)
        # The gradient of the sum inside r, divided by that inside n.
        reset_slopes = remembered * reset * (1 - reset)
        to_products, to_of_states = new.new_empty((2, *new.shape[:2], 3, new.shape[2])).unbind()
        shares = torch.ones_like(to_products)
        shares[:, :, 2] = reset
        of_steps = zip(*(each.unbind() for each in (to_outputs, update, slopes, reset_slopes, shares)), strict=True)
        written = [to_products, to_products[:, :, 0], to_products[:, :, 1:], to_products[:, :, 2]]
        written += [to_of_states, to_of_states.flatten(2)]
        places = zip(*(each.unbind() for each in written), strict=True)
        carry = torch.zeros_like(new[0])
        for keep, given, place in reversed(list(zip(_masks(keeps), of_steps, places, strict=True))):
            to_output, kept, slope, reset_slope, share = given
            to_product, to_reset, to_others, to_new, to_of_state, flat = place
            carry.add_(to_output)
            torch.mul(carry.unsqueeze(1), slope, out=to_others)
            torch.mul(to_new, reset_slope, out=to_reset)
            torch.mul(to_product, share, out=to_of_state)
            carry = carry.mul_(kept).addmm_(flat, weight)
            if keep is not None:
                carry.mul_(keep)
        to_weight, to_bias = _of_layer(to_of_states, states)
        return to_products.flatten(2), carry, None, to_weight, to_bias


class LSTMSteps(torch.autograd.Function):
    """All steps of `learner_service.networks.memory.LSTM`."""

    @staticmethod
    def forward(
        ctx: Any, products: Tensor, state: Tensor, keeps: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Make the steps."""
        steps, rows, units = len(products), len(state), state.shape[1] // 2
        transposed, three = weight.t(), 3 * units
        afters = products.new_empty((steps, rows, 2 * units))
        outputs, shown = products.new_empty((2, steps, rows, units)).unbind()
        gates = products + bias
        befores, after = [], state
        views = [gates, gates[..., :three], *gates.chunk(4, dim=2), shown, afters, *afters.chunk(2, dim=2)]
        columns = zip(_masks(keeps), *(each.unbind() for each in views), strict=True)
        for keep, gate, sigmoids, opens, forgets, shows, new, tanh, following, hidden, kept in columns:
            before = after if keep is None else after * keep
            befores.append(before)
            gate.addmm_(before[:, :units], transposed)
            sigmoids.sigmoid_()
            new.tanh_()
            torch.mul(forgets, before[:, units:], out=kept).addcmul_(opens, new)
            torch.tanh(kept, out=tanh)
            torch.mul(shows, tanh, out=hidden)
            after = following
        states = torch.stack((*befores, after))
        outputs.copy_(afters[..., :units])
        ctx.save_for_backward(keeps, weight, states, gates, shown)
        ctx.mark_non_differentiable(states)
        return outputs, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_outputs: Tensor, to_states: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of products, state, weight and bias."""
        keeps, weight, states, gates, shown = ctx.saved_tensors
        units = shown.shape[2]
        opens, forgets, shows, new = gates.chunk(4, dim=2)
        # Gradients of the kept numbers and of the sum inside o, divided by the gradient of the output.
        to_kept, show_slopes = shows * (1 - shown.square()), shown * shows * (1 - shows)
        # Gradients of the sums inside i, f and g, divided by the gradient of the kept numbers.
        of_forgets = states[:-1, :, units:] * forgets * (1 - forgets)
        of_kept = (new * opens * (1 - opens), of_forgets, torch.zeros_like(new), opens * (1 - new.square()))
        slopes = torch.stack(of_kept, 2)
        to_products = torch.empty_like(slopes)
        carry, carried = torch.zeros_like(shown[0]), torch.zeros_like(shown[0])
        views = (to_outputs, to_kept, slopes, show_slopes, forgets, to_products, to_products[:, :, 2])
        columns = [_masks(keeps), *(each.unbind() for each in (*views, to_products.flatten(2)))]
        for keep, to_output, kept, slope, show_slope, forget, to_product, to_shows, flat in zip(
            *map(reversed, columns), strict=True
        ):
            carry.add_(to_output)
            carried.addcmul_(carry, kept)
            torch.mul(carried.unsqueeze(1), slope, out=to_product)
            torch.mul(carry, show_slope, out=to_shows)
            torch.mm(flat, weight, out=carry)
            carried.mul_(forget)
            if keep is not None:
                carry.mul_(keep)
                carried.mul_(keep)
        to_weight, to_bias = _of_layer(to_products, states[..., :units])
        return to_products.flatten(2), torch.cat((carry, carried), 1), None, to_weight, to_bias


def _masks(keeps: Tensor) -> list[Tensor | None]:
    """The mask of each step; None on the CPU for a step where no episode begins."""
    steps = list(keeps.unbind())
    if keeps.device.type != "cpu":
        return [*steps]
    return [None if whole else keep for keep, whole in zip(steps, (keeps != 0).all(1).flatten().tolist(), strict=True)]


def _of_layer(to_outputs: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the weight and the bias of a recurrent layer, from those of its outputs [T, B, gates, U]."""
    flat = to_outputs.flatten(2).flatten(0, 1)
    return flat.t() @ states[:-1].flatten(0, 1), flat.sum(0)
