"""Networks of TD3 and SAC whose parameters are only the active weights, in compressed sparse rows (CSR).

They show the largest possible gain. Adam and the target copies do less work too, but masks cannot change as they can
with whole matrices (learner_service/kernels/sparse_products.py). Activations are [units, B] throughout, as torch's
sparse products require. A network is one node of the gradient's graph, like the learner's critics.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from actorq.domain.spaces import EnvironmentSpec
from learner_service.networks import DeterministicPolicy, GaussianPolicy
from learner_service.networks.observations import Observations

# Smaller and denser matrices are faster as dense matrices with zeros.
_MIN_WEIGHTS, _MAX_DENSITY = 2**14, 0.3


PolicyKind = type[DeterministicPolicy] | type[GaussianPolicy]
PolicyMaker = Callable[[PolicyKind, EnvironmentSpec], nn.Module]
CriticMaker = Callable[[EnvironmentSpec], nn.Module]


class Pattern:
    """The positions of the values of a matrix [N, K], in both orders, for products from either side."""

    def __init__(self, mask: Tensor) -> None:
        self._forward, self._size = _indices(mask), (mask.shape[0], mask.shape[1])
        self._positions = mask.flatten().nonzero().squeeze(1)
        rows, columns = mask.nonzero(as_tuple=True)
        self._order = torch.argsort(columns, stable=True)
        self._backward = _indices(mask.t())
        self.count = len(rows)

    def matrix(self, values: Tensor) -> Tensor:
        """W, [N, K], from its values in row order."""
        return torch.sparse_csr_tensor(*self._forward, values, self._size, check_invariants=False)

    def transposed(self, values: Tensor) -> Tensor:
        """W^T, [K, N]."""
        size = self._size[::-1]
        return torch.sparse_csr_tensor(*self._backward, values[self._order], size, check_invariants=False)

    def gathered(self, weight: Tensor) -> Tensor:
        """The values, [count], from a dense matrix."""
        return weight.flatten()[self._positions]

    def gradient(self, values: Tensor, to_y: Tensor, x: Tensor) -> Tensor:
        """dL/dW at the positions of W's values, [count]. Only these entries of dL/dy x^T are computed."""
        sampled = torch.sparse.sampled_addmm(self.matrix(values), to_y, x.t(), beta=0.0)
        return sampled.values()  # type: ignore[no-any-return]


class SparseMLP(nn.Module):
    """A ReLU MLP with weights only where the masks, bool[N, K] of each layer, are true.

    forward: float32[B, K] -> float32[B, outputs]. `fixed` computes no gradients for the parameters.
    """

    def __init__(self, masks: Sequence[Tensor]) -> None:
        super().__init__()
        self.patterns = [_pattern(mask) for mask in masks]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for mask, pattern in zip(masks, self.patterns, strict=True):
            bound = mask.shape[1] ** -0.5
            weight = torch.empty(mask.shape).uniform_(-bound, bound).mul_(mask)
            self.weights.append(weight if pattern is None else pattern.gathered(weight))
            self.biases.append(torch.empty(len(mask)).uniform_(-bound, bound))
            if pattern is None:
                self.weights[-1].register_hook(partial(torch.mul, mask))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self._run(x, [*self.weights, *self.biases])

    def fixed(self, x: Tensor) -> Tensor:
        """Return the outputs. Gradients flow only to the inputs."""
        return self._run(x, [parameter.detach() for parameter in (*self.weights, *self.biases)])

    def _run(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        outputs: Tensor = _Network.apply(x.t().contiguous(), self.patterns, *parameters)  # type: ignore[no-untyped-call]
        return outputs.t()


def _pattern(mask: Tensor) -> Pattern | None:
    """The pattern, or None if a dense matrix is faster."""
    sparse = mask.numel() >= _MIN_WEIGHTS and float(mask.float().mean()) <= _MAX_DENSITY
    return Pattern(mask) if sparse else None


def _indices(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The start of each row, and the columns, in int32 as MKL requires."""
    csr = mask.float().to_sparse_csr()
    return csr.crow_indices().to(torch.int32), csr.col_indices().to(torch.int32)


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, patterns: Sequence[Pattern | None], *parameters: Tensor) -> Tensor:
        layers = len(patterns)
        weights, biases = parameters[:layers], parameters[layers:]
        inputs = []
        for number, (pattern, weight, bias) in enumerate(zip(patterns, weights, biases, strict=True)):
            x = x.relu_() if number else x
            inputs.append(x)
            if pattern is None:
                x = torch.addmm(bias.unsqueeze(1), weight, x)
            else:
                x = torch.addmm(bias.unsqueeze(1), pattern.matrix(weight), x)
        ctx.save_for_backward(*weights, *inputs)
        ctx.patterns = patterns
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        patterns, layers = ctx.patterns, len(ctx.patterns)
        weights, inputs = ctx.saved_tensors[:layers], ctx.saved_tensors[layers:]
        needs_x, _, *needed = ctx.needs_input_grad
        to_weights: list[Tensor | None] = [None] * layers
        to_biases: list[Tensor | None] = [None] * layers
        to_y = gradient.contiguous()
        for layer in reversed(range(layers)):
            pattern, weight, x = patterns[layer], weights[layer], inputs[layer]
            if any(needed):
                to_biases[layer] = to_y.sum(1)
                if pattern is None:
                    to_weights[layer] = to_y @ x.t()
                else:
                    to_weights[layer] = pattern.gradient(weight, to_y, x)
            if layer or needs_x:
                to_y = (weight.t() if pattern is None else pattern.transposed(weight)) @ to_y
            if layer:
                to_y = torch.ops.aten.threshold_backward(to_y, x, 0)
        return (to_y if needs_x else None), None, *to_weights, *to_biases


class SparseTwinCritic(nn.Module):
    """Two critics like TwinCritic's, each with its own masks."""

    def __init__(self, masks: tuple[Sequence[Tensor], Sequence[Tensor]], spec: EnvironmentSpec) -> None:
        super().__init__()
        self.observe = Observations(spec)
        self.critics = nn.ModuleList(SparseMLP(own) for own in masks)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both critics' values."""
        x = torch.cat((self.observe(observations), actions), 1)
        return torch.cat([critic(x) for critic in self.critics], 1).t()

    def judge(self, observations: Tensor, actions: Tensor, critics: int = 2) -> Tensor:
        """Values of the first critic or of both. Gradients flow only to the actions."""
        x = torch.cat((self.observe(observations), actions), 1)
        chosen = [critic for critic in self.critics if isinstance(critic, SparseMLP)][:critics]
        return torch.cat([critic.fixed(x) for critic in chosen], 1).t()


@contextmanager
def networks_with(policy: PolicyMaker, critic: CriticMaker) -> Iterator[None]:
    """Within this context, new TD3 and SAC algorithms get their networks from these makers."""

    def make_policy(kind: PolicyKind) -> Callable[..., nn.Module]:
        return lambda spec, **_: policy(kind, spec)

    algorithms = "learner_service.algorithms"
    with (
        patch(f"{algorithms}.td3.TwinCritic", lambda spec, **_: critic(spec)),
        patch(f"{algorithms}.sac.TwinCritic", lambda spec, **_: critic(spec)),
        patch(f"{algorithms}.td3.DeterministicPolicy", make_policy(DeterministicPolicy)),
        patch(f"{algorithms}.sac.GaussianPolicy", make_policy(GaussianPolicy)),
    ):
        yield


def sparse_networks(
    actor: Sequence[Tensor], critics: tuple[Sequence[Tensor], Sequence[Tensor]]
) -> tuple[PolicyMaker, CriticMaker]:
    """Policies and critics with these masks, bool[N, K] of each layer."""

    def make(kind: PolicyKind, spec: EnvironmentSpec) -> nn.Module:
        made = kind(spec, (1,))
        made.torso, made.head = nn.Identity(), SparseMLP(actor)
        return made

    return make, lambda spec: SparseTwinCritic(critics, spec)
