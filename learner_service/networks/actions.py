"""Scales a network's actions in [-1, 1] to the environment's bounds, and back."""

import torch
from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec


class ActionScale(nn.Module):
    """The last step of a policy for continuous actions: middle + half_range * action.

    forward: float32[B, components] in [-1, 1] -> float32[B, *action] within the environment's bounds.

    The bounds never change, so they are constants of the policy graph, not parameters.
    """

    middle: Tensor
    half_range: Tensor

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__()
        low, high = (torch.from_numpy(bound.copy()) for bound in spec.actions.bounds())
        self.shape = spec.actions.shape
        self.components = low.numel()
        self.register_buffer("middle", ((high + low) / 2).flatten(), persistent=False)
        self.register_buffer("half_range", ((high - low) / 2).flatten(), persistent=False)
        # Bounds of [-1, 1] need no scaling operation in the graph.
        self._unit = not bool(self.middle.any()) and bool((self.half_range == 1).all())

    def forward(self, actions: Tensor) -> Tensor:
        """Return the environment's actions."""
        if not self._unit:
            actions = self.middle + self.half_range * actions
        return actions if len(self.shape) == 1 else actions.view(-1, *self.shape)

    def normalize(self, actions: Tensor) -> Tensor:
        """Scale actions for the critics: [B, *action] of any dtype -> float32[B, components] in [-1, 1]."""
        actions = actions.to(torch.float32).flatten(1)
        return actions if self._unit else (actions - self.middle) / self.half_range
