"""The policies of on-policy algorithms, which output a distribution of actions.

Both policies have `output_names`, the outputs of their graph. `distribution` gives what `log_probabilities` needs, as
does `of_outputs` from the outputs of a forward pass.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from actorq.domain.signature import Role
from actorq.domain.spaces import EnvironmentSpec
from learner_service.networks.actions import ActionScale
from learner_service.networks.by_group.layers import VectorByGroup
from learner_service.networks.continuous import ContinuousPolicy
from learner_service.networks.encoders import AllowedChoices, Observed
from learner_service.networks.torso import Torso

_LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


class SoftmaxPolicy(Torso):
    """A categorical distribution over discrete actions: pi(a | s) = softmax(logits(s))_a.

    An illegal action (see the mask) has a probability of 0.

    forward: observations [B, *policy_observations] of the environment's dtype -> logits float32[B, actions]. With
        memory there are the state float32[B, S] as a second input, and the next state as a further output.
    """

    output_names: ClassVar[tuple[str, ...]] = (Role.LOGITS,)

    def __init__(self, spec: EnvironmentSpec, *given: Any, **options: Any) -> None:
        super().__init__(spec, *given, **options)
        self._allowed = AllowedChoices(spec)

    def outputs(self, spec: EnvironmentSpec) -> int:
        """The number of actions."""
        return spec.acting_size

    def computed(self, observations: Observed, remembered: Any = None) -> Tensor:
        """The logits."""
        return self._allowed(super().computed(observations, remembered), observations)

    def forward(self, observations: Observed, state: Tensor | None = None) -> Any:
        """Return the logits, and the next state."""
        features, states = self.stepped(observations, state)
        logits = self.computed(observations, features)
        return (logits, *states) if states else logits

    def distribution(self, observations: Tensor, remembered: Tensor | None = None) -> tuple[Tensor, ...]:
        """log pi(. | s), float32[B, actions]. remembered: see `computed`."""
        return (torch.log_softmax(self.computed(observations, remembered), 1),)

    @staticmethod
    def of_outputs(outputs: Any) -> tuple[Tensor, ...]:
        """The distribution from the outputs of `forward`, without a state."""
        return (torch.log_softmax(outputs, 1),)

    @staticmethod
    def log_probabilities(actions: Tensor, logarithms: Tensor) -> Tensor:
        """log pi(a | s), float32[B]. actions: int64[B]."""
        values: Tensor = _Chosen.apply(actions.unsqueeze(1), logarithms)  # type: ignore[no-untyped-call]
        return values.squeeze(1)

    @staticmethod
    def entropies(logarithms: Tensor) -> Tensor:
        """-sum_a pi(a | s) log pi(a | s) in nats, float32[B]."""
        return -_sum_of_columns(logarithms.exp() * logarithms)

    @staticmethod
    def drawn(actions: Tensor) -> Tensor:
        """Actions of a rollout, [B] of any integer dtype, as int64[B]."""
        return actions.to(torch.int64)


class DiagonalGaussianPolicy(ContinuousPolicy):
    """A Gaussian of independent components. Its log standard deviation is a parameter that no observation changes.

    Values u are in units of half the range of actions, around its middle. The environment's action is the middle plus
    half the range times clip(u, -1, 1), or tanh(u) with `squash`. The ratio of two policies' densities of an action
    equals the ratio of their Gaussians at u, because the derivative of tanh cancels.

    log_std: initial value of each component.
    forward: observations [B, *policy_observations] of the environment's dtype -> actions of the mean float32[B,
        *action] within their bounds, mean float32[B, A], log_std float32[B, A]. With memory as in `SoftmaxPolicy`.
    """

    output_names: ClassVar[tuple[str, ...]] = (Role.ACTIONS, Role.MEAN, Role.LOG_STD)

    def __init__(
        self, spec: EnvironmentSpec, *given: Any, log_std: float = 0.0, squash: bool = False, **options: Any
    ) -> None:
        super().__init__(spec, *given, **options)
        self._squash = squash
        # The parameter is not named like the output, because parameters are inputs of the graph under their names.
        self.shared_log_std = _deviation(spec, self.scale.components, log_std)

    def forward(self, observations: Tensor, state: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the actions of the mean, the mean, the log standard deviation, and the next state."""
        features, states = self.stepped(observations, state)
        mean = self.computed(observations, features)
        actions = torch.tanh(mean) if self._squash else mean.clamp(-1.0, 1.0)
        # Repeats the parameter for each row with operations that every graph has.
        return self.scale(actions), mean, mean * 0.0 + _own(self.shared_log_std, features), *states

    def distribution(self, observations: Tensor, remembered: Any = None) -> tuple[Tensor, ...]:
        """The mean, float32[B, A], and the log standard deviation, float32[A]; float32[B, A] with groups."""
        if remembered is None:
            remembered = self.torso(self.observe(observations))
        return self.computed(observations, remembered), _own(self.shared_log_std, remembered)

    def of_outputs(self, outputs: Any) -> tuple[Tensor, ...]:
        """The distribution from the outputs of `forward`, without a state."""
        _, mean, log_std = outputs
        return mean, _of_rows(self.shared_log_std, log_std)

    @staticmethod
    def log_probabilities(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """log N(u; mean, exp(log_std)), float32[B]. actions: u, float32[B, A]. log_std: float32[A] or [B, A]."""
        values: Tensor = _GaussianLogDensity.apply(actions, mean, log_std)  # type: ignore[no-untyped-call]
        return values

    @staticmethod
    def entropies(mean: Tensor, log_std: Tensor) -> Tensor:
        """The entropy of u in nats, sum_components log_std + (1 + log(2 pi)) / 2, float32[B]."""
        each = log_std + (0.5 + _LOG_ROOT_2_PI)
        return torch.zeros_like(mean[:, 0]) + (each.sum() if each.ndim == 1 else _sum_of_columns(each))

    @staticmethod
    def drawn(actions: Tensor) -> Tensor:
        """Values u of a rollout, [B, *action] of any dtype, as float32[B, A]."""
        return actions.to(torch.float32).flatten(1)


class PartwisePolicy(Torso):
    """A distribution of actions with several discrete parts, each a softmax, and with continuous components.

    The parts are independent, given the observation, so logarithms of probabilities and entropies are sums. Continuous
    components are as in `DiagonalGaussianPolicy`.

    forward: observations [B, *policy_observations] of the environment's dtype -> logits float32[B, choices of all
        parts]. With continuous components, the outputs of `DiagonalGaussianPolicy` follow. With memory as in
        `SoftmaxPolicy`.
    """

    _starts: Tensor

    def __init__(
        self, spec: EnvironmentSpec, *given: Any, log_std: float = 0.0, squash: bool = False, **options: Any
    ) -> None:
        super().__init__(spec, *given, **options)
        self._sizes, self._squash = spec.sizes, squash
        self._allowed = AllowedChoices(spec)
        self.scale = ActionScale(spec.continuous_part) if spec.components else None
        if spec.components:
            self.shared_log_std = _deviation(spec, spec.components, log_std)
        # The first choice of each part within the choices of all parts.
        self.register_buffer("_starts", torch.tensor([0, *spec.sizes[:-1]]).cumsum(0), persistent=False)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs of the graph."""
        return (Role.LOGITS, *(() if self.scale is None else (Role.ACTIONS, Role.MEAN, Role.LOG_STD)))

    def outputs(self, spec: EnvironmentSpec) -> int:
        """The number of choices, and of continuous components."""
        return sum(spec.sizes) + spec.components

    def forward(self, observations: Observed, state: Tensor | None = None) -> Any:
        """Return the logits, the outputs of the continuous components, and the next state."""
        features, states = self.stepped(observations, state)
        logits, mean = self._computed_parts(observations, features)
        if self.scale is None:
            return (logits, *states) if states else logits
        actions = torch.tanh(mean) if self._squash else mean.clamp(-1.0, 1.0)
        return logits, self.scale(actions), mean, mean * 0.0 + _own(self.shared_log_std, features), *states

    def distribution(self, observations: Observed, remembered: Any = None) -> tuple[Tensor, ...]:
        """log pi of all choices, float32[B, choices], then mean and log deviation of `DiagonalGaussianPolicy`."""
        if remembered is None:
            remembered = self.torso(self.observe(observations))
        logits, mean = self._computed_parts(observations, remembered)
        gaussian = () if self.scale is None else (mean, _own(self.shared_log_std, remembered))
        return (self._logarithms(logits), *gaussian)

    def of_outputs(self, outputs: Any) -> tuple[Tensor, ...]:
        """The distribution from the outputs of `forward`, without a state."""
        if self.scale is None:
            return (self._logarithms(outputs),)
        logits, _, mean, log_std = outputs
        return self._logarithms(logits), mean, _of_rows(self.shared_log_std, log_std)

    def log_probabilities(self, actions: Tensor, logarithms: Tensor, *gaussian: Tensor) -> Tensor:
        """log pi(a | s), float32[B]. actions: what `drawn` returns."""
        count = len(self._sizes)
        chosen = actions[:, :count].to(torch.int64) + self._starts
        told = _sum_of_columns(_Chosen.apply(chosen, logarithms))  # type: ignore[no-untyped-call]
        if self.scale is None:
            return told
        density: Tensor = _GaussianLogDensity.apply(actions[:, count:], *gaussian)  # type: ignore[no-untyped-call]
        return told + density

    def entropies(self, logarithms: Tensor, *gaussian: Tensor) -> Tensor:
        """The entropy in nats, the sum over all parts, float32[B]."""
        found = SoftmaxPolicy.entropies(logarithms)
        return found if self.scale is None else found + DiagonalGaussianPolicy.entropies(*gaussian)

    def drawn(self, actions: Tensor) -> Tensor:
        """Actions of a rollout, [B, parts and components], as int64, or float32 with continuous components."""
        return actions.to(torch.int64 if self.scale is None else torch.float32)

    def _computed_parts(self, observations: Observed, remembered: Any) -> tuple[Tensor, Tensor]:
        """Logits float32[B, choices] and means float32[B, A]."""
        outputs = self.computed(observations, remembered)
        if self.scale is None:
            return self._allowed(outputs, observations), outputs
        logits, mean = torch.split(outputs, [sum(self._sizes), self.scale.components], 1)
        return self._allowed(logits, observations), mean

    def _logarithms(self, logits: Tensor) -> Tensor:
        return torch.cat([torch.log_softmax(part, 1) for part in torch.split(logits, list(self._sizes), 1)], 1)


def _deviation(spec: EnvironmentSpec, components: int, log_std: float) -> nn.Parameter | VectorByGroup:
    """The log standard deviation of each component: one vector, or one for each group."""
    values = torch.full((components,), log_std)
    return VectorByGroup(spec, values) if spec.groups else nn.Parameter(values)


def _own(log_std: Tensor | VectorByGroup, features: Any) -> Tensor:
    """The log standard deviation, float32[A]; float32[B, A] with groups. features: inputs of the head."""
    found: Tensor = log_std(features) if isinstance(log_std, VectorByGroup) else log_std
    return found


def _of_rows(log_std: Tensor | VectorByGroup, rows: Tensor) -> Tensor:
    """The log standard deviation as in `distribution`, from an output float32[B, A]."""
    return rows if isinstance(log_std, VectorByGroup) else rows[0]


def _sum_of_columns(values: Tensor) -> Tensor:
    """float32[B, N] -> float32[B]."""
    # A product, because the recorded gradient of a sum over columns works for only one number of rows.
    return values.mm(torch.ones_like(values[:1]).t()).squeeze(1)


class _Chosen(torch.autograd.Function):
    """Some columns of each row: int64[B, K], float32[B, N] -> float32[B, K].

    The recorded gradient of torch's own operation works for only one number of rows (kernels/recorded.py).
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(columns, x)
        return x.gather(1, columns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        columns, x = ctx.saved_tensors
        return None, torch.zeros_like(x).scatter_(1, columns, gradient)


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
        if inverse.ndim > 1:
            rows = gradient.unsqueeze(1)
            return None, (z * inverse).mul_(rows), (squares - 1.0).mul_(rows)
        return None, (z * inverse).mul_(gradient.unsqueeze(1)), gradient @ (squares - 1.0)
