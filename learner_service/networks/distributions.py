"""The networks of on-policy algorithms: policies that output a distribution of actions, and a value network.

Both policies have `output_names`, the outputs of their graph. `distribution` gives what `log_probabilities` needs, as
does `of_outputs` from the outputs of a forward pass.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from actorq.domain.policy import LOG_STD_OUTPUT, LOGITS_OUTPUT, MEAN_OUTPUT
from actorq.domain.spaces import EnvironmentSpec
from learner_service.networks.continuous import ContinuousPolicy
from learner_service.networks.torso import Torso

_LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


class SoftmaxPolicy(Torso):
    """A categorical distribution over discrete actions: pi(a | s) = softmax(logits(s))_a.

    forward: observations [B, *policy_observations] of the environment's dtype -> logits float32[B, actions].
    """

    output_names: ClassVar[tuple[str, ...]] = (LOGITS_OUTPUT,)

    def outputs(self, spec: EnvironmentSpec) -> int:
        """The number of actions."""
        return spec.discrete_actions

    def forward(self, observations: Tensor) -> Tensor:
        """Return the logits."""
        return self.computed(observations)

    def distribution(self, observations: Tensor) -> tuple[Tensor, ...]:
        """log pi(. | s), float32[B, actions]."""
        return (torch.log_softmax(self.computed(observations), 1),)

    @staticmethod
    def of_outputs(outputs: Any) -> tuple[Tensor, ...]:
        """The distribution from the outputs of `forward`."""
        return (torch.log_softmax(outputs, 1),)

    @staticmethod
    def log_probabilities(actions: Tensor, logarithms: Tensor) -> Tensor:
        """log pi(a | s), float32[B]. actions: int64[B]."""
        values: Tensor = _Chosen.apply(actions, logarithms)  # type: ignore[no-untyped-call]
        return values

    @staticmethod
    def entropies(logarithms: Tensor) -> Tensor:
        """-sum_a pi(a | s) log pi(a | s) in nats, float32[B]."""
        # A product, because the recorded gradient of a sum over columns works for one number of rows only.
        column = torch.ones_like(logarithms[:1]).t()
        return -(logarithms.exp() * logarithms).mm(column).squeeze(1)

    @staticmethod
    def drawn(actions: Tensor) -> Tensor:
        """Actions of a rollout, [B] of any integer dtype, as int64[B]."""
        return actions.to(torch.int64)


class DiagonalGaussianPolicy(ContinuousPolicy):
    """A Gaussian of independent components. Its log standard deviation is a parameter that no observation changes.

    Values u are in units of half the range of actions, around its middle. The environment's action is the middle plus
    half the range times clip(u, -1, 1), or tanh(u) with `squash`. The ratio of two policies' densities of an action is
    that of their Gaussians at u, because the derivative of tanh cancels.

    log_std: initial value of each component.
    forward: observations [B, *policy_observations] of the environment's dtype
        -> actions of the mean float32[B, *action] within their bounds, mean float32[B, A], log_std float32[B, A].
    """

    output_names: ClassVar[tuple[str, ...]] = ("actions", MEAN_OUTPUT, LOG_STD_OUTPUT)

    def __init__(
        self, spec: EnvironmentSpec, *given: Any, log_std: float = 0.0, squash: bool = False, **options: Any
    ) -> None:
        super().__init__(spec, *given, **options)
        self._squash = squash
        # Not named like the output, because parameters are inputs of the graph under their names.
        self.shared_log_std = nn.Parameter(torch.full((self.scale.components,), log_std))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the actions of the mean, the mean, and the log standard deviation."""
        mean = self.computed(observations)
        actions = torch.tanh(mean) if self._squash else mean.clamp(-1.0, 1.0)
        # Repeats the parameter for each row with operations that every graph has.
        return self.scale(actions), mean, mean * 0.0 + self.shared_log_std

    def distribution(self, observations: Tensor) -> tuple[Tensor, ...]:
        """The mean, float32[B, A], and the log standard deviation, float32[A]."""
        return self.computed(observations), self.shared_log_std

    @staticmethod
    def of_outputs(outputs: Any) -> tuple[Tensor, ...]:
        """The distribution from the outputs of `forward`."""
        _, mean, log_std = outputs
        return mean, log_std[0]

    @staticmethod
    def log_probabilities(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """log N(u; mean, exp(log_std)), float32[B]. actions: u, float32[B, A]."""
        values: Tensor = _GaussianLogDensity.apply(actions, mean, log_std)  # type: ignore[no-untyped-call]
        return values

    @staticmethod
    def entropies(mean: Tensor, log_std: Tensor) -> Tensor:
        """The entropy of u in nats, sum_components log_std + (1 + log(2 pi)) / 2, float32[B]."""
        return torch.zeros_like(mean[:, 0]) + (log_std + (0.5 + _LOG_ROOT_2_PI)).sum()

    @staticmethod
    def drawn(actions: Tensor) -> Tensor:
        """Values u of a rollout, [B, *action] of any dtype, as float32[B, A]."""
        return actions.to(torch.float32).flatten(1)


class ValueNetwork(Torso):
    """The value of a state: observations [B, *policy_observations] of the environment's dtype -> float32[B]."""

    def forward(self, observations: Tensor) -> Tensor:
        """Return the values."""
        return self.computed(observations).squeeze(1)


class _Chosen(torch.autograd.Function):
    """One column of each row: int64[B], float32[B, N] -> float32[B].

    The recorded gradient of torch's own operation works for one number of rows only (kernels/recorded.py).
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor, x: Tensor) -> Tensor:
        columns = columns.unsqueeze(1)
        ctx.save_for_backward(columns, x)
        return x.gather(1, columns).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        columns, x = ctx.saved_tensors
        return None, torch.zeros_like(x).scatter_(1, columns, gradient.unsqueeze(1))


class _GaussianLogDensity(torch.autograd.Function):
    """One autograd node, because nodes take longer than their computation.

    log N(u) = sum_j -z_j^2 / 2 - log_std_j - log(2 pi) / 2,   z = (u - mean) / exp(log_std)
    d / d mean_j = z_j / exp(log_std_j),   d / d log_std_j = z_j^2 - 1
    """

    @staticmethod
    def forward(ctx: Any, actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        inverse = torch.exp(-log_std)
        z = (actions - mean).mul_(inverse)
        squares = z.square()
        ctx.save_for_backward(z, squares, inverse)
        return squares.mul(-0.5).sub_(log_std + _LOG_ROOT_2_PI).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, squares, inverse = ctx.saved_tensors
        return None, (z * inverse).mul_(gradient.unsqueeze(1)), gradient @ (squares - 1.0)
