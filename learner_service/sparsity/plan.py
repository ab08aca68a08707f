"""What a run's settings make of its networks: how wide they are, and which of their weights are active."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import nn

from actorq.config import RunConfig, SparsityMethod
from actorq.errors import UserError
from learner_service.parameters import FlatParameters
from learner_service.sparsity.densities import budgets
from learner_service.sparsity.evolution import AtRandom, Growth, Unstructured, by_gradient
from learner_service.sparsity.schedule import CosineSchedule, planned_updates
from learner_service.sparsity.tiny import tiny_sizes
from learner_service.sparsity.topology import Topology
from learner_service.sparsity.weights import maskable_weights

Network = Literal["actor", "critic"]

METHODS: tuple[SparsityMethod, ...] = get_args(SparsityMethod)
"""All of them; an algorithm that trains with a plan supports them all."""
_MASKED = ("static", "set", "rigl", "rlx2")
# Added to the seed, so that masks are independent of each other and of the initial weights.
_STREAMS: dict[Network, int] = {"actor": 1 << 40, "critic": 2 << 40}


class SparsityPlan:
    """The sparsity of one run's networks; `batch_size` is the algorithm's, which tells how many updates there are."""

    def __init__(self, config: RunConfig, batch_size: int) -> None:
        self._settings = settings = config.sparsity
        self._seed = config.seed
        end = settings.until * planned_updates(config, batch_size)
        self._schedule = CosineSchedule(settings.period_updates, settings.replaced, end)

    def sizes(
        self, network: Network, sizes: Sequence[int], make: Callable[[Sequence[int]], nn.Module]
    ) -> tuple[int, ...]:
        """Units of each hidden layer: `sizes`, or with the method tiny as many as have the sparse network's weights.

        make: makes the network with such sizes; called for parameters that are never used. Raises UserError when the
        network's weights are in layers of another origin.
        """
        if self._settings.method != "tiny":
            return tuple(sizes)
        return tiny_sizes(sizes, 1.0 - self._sparsity(network), make, f"sparsity.{network}")

    def topology(
        self, network: Network, parameters: FlatParameters, *targets: FlatParameters, updates_per_step: int = 1
    ) -> Topology | None:
        """The topology of a network and its targets, which are masked at once; None for dense networks.

        updates_per_step: of the run, between two steps of this network. Raises UserError when a layer would be left
        without weights.
        """
        settings = self._settings
        if settings.method not in _MASKED:
            return None
        weights, sparsity = maskable_weights(*parameters.modules), self._sparsity(network)
        counts = budgets(weights, sparsity, f"sparsity.{network}")
        generator = torch.Generator().manual_seed(self._seed + _STREAMS[network])
        growth: Growth | None = by_gradient
        if settings.method == "static":
            growth = None
        elif settings.method == "set":
            growth = AtRandom(generator)
        return Topology(
            weights=weights,
            layers=Unstructured(weights, counts),
            vector=parameters.vector,
            targets=[target.vector for target in targets],
            growth=growth,
            schedule=self._schedule,
            generator=generator,
            updates_per_step=updates_per_step,
            signature=(METHODS.index(settings.method), *counts),
        )

    def _sparsity(self, network: Network) -> float:
        return self._settings.actor if network == "actor" else self._settings.critic


def check_supported(config: RunConfig, algorithm: str, methods: Sequence[str]) -> None:
    """Raise UserError unless an algorithm trains networks of the run's sparsity; `methods` are those that it can."""
    method = config.sparsity.method
    if method not in methods:
        raise UserError(
            f"sparsity.method: expected one that algorithm {algorithm} supports, {', '.join(methods)}, got {method}"
        )
