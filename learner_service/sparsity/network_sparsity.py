"""Applies a run's sparsity settings: widths of the networks' layers, and masks of their weights."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import nn

from actorq.config.run_config import RunConfig
from actorq.config.settings import flag_text, value_text
from actorq.config.sparsity import Part, SparsityConfig, SparsityMethod
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.kernels.parameters import FlatParameters
from learner_service.kernels.sparse_products import ActiveWeights, worth_leaving_out
from learner_service.sparsity.densities import budgets
from learner_service.sparsity.evolution import Growth, Unstructured, at_random, by_gradient
from learner_service.sparsity.flops import Cost, dense_flops
from learner_service.sparsity.structured import Structured
from learner_service.sparsity.topology import CosineSchedule, Topology
from learner_service.sparsity.trace import Traced, trace
from learner_service.sparsity.weights import Weight, maskable_weights, multiply_by

Network = Part

METHODS: tuple[SparsityMethod, ...] = get_args(SparsityMethod)
"""All methods. An algorithm whose networks come from a NetworkSparsity supports all of them."""
_MASKED = ("static", "set", "rigl", "rlx2")
# Added to the seed, so that masks are independent of each other and of the initial weights.
_STREAMS: dict[Network, int] = {"actor": 1 << 40, "critic": 2 << 40}
# Number of parts of a width that the method tiny distinguishes. Hidden layers have far fewer units.
_SHARES = 2**24


class NetworkSparsity:
    """The sparsity of one run's networks.

    batch_size: of the algorithm, to compute the number of updates.
    epochs: passes of an on-policy algorithm over each transition. The critic of such an algorithm gets only
        observations. None for other algorithms.
    """

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, batch_size: int, epochs: int | None = None) -> None:
        self._settings = settings = config.sparsity
        self._seed = config.seed
        self._spec = spec
        self._critic_takes_actions = epochs is None
        self._updates = config.planned_updates(batch_size, epochs, spec.agent_count)
        self._schedule = CosineSchedule(settings.period_updates, settings.replaced, settings.until * self._updates)
        self._full: dict[Network, tuple[Weight, ...]] = {}

    def sizes(
        self, network: Network, sizes: Sequence[int], make: Callable[[Sequence[int]], nn.Module]
    ) -> tuple[int, ...]:
        """Units of each hidden layer: `sizes`, or with the method tiny smaller sizes with the number of weights of a
        sparse network.

        make: makes the network with given sizes, to read the shapes of its parameters.
        Raises UserError when no sizes make the network small enough.
        """
        if self._settings.method_of(network) != "tiny":
            return tuple(sizes)
        self._full[network] = _weights_of(make, sizes)
        return _tiny_sizes(sizes, 1.0 - self._sparsity(network), make, f"sparsity.{network}")

    def topology(
        self, network: Network, parameters: FlatParameters, *targets: FlatParameters, updates_per_step: int = 1
    ) -> Topology | None:
        """Mask a network and its targets, and return the topology; None for dense networks.

        updates_per_step: updates of the run for each step of this network.
        Raises UserError when a layer would have no weights, or when masks would change with every step or never.
        """
        settings, method = self._settings, self._settings.method_of(network)
        if method not in _MASKED:
            return None
        if settings.period_updates <= updates_per_step:
            raise UserError(
                f"sparsity.period_updates: expected more than the {updates_per_step} updates from one step of the "
                f"{network} to the next, got {settings.period_updates}; a step that changes masks trains no weights"
            )
        settings.check_changes(self._updates)
        weights, sparsity = maskable_weights(*parameters.modules), self._sparsity(network)
        counts = budgets(weights, sparsity, f"sparsity.{network}")
        structured = settings.structured and network == "actor"
        layers: Structured | Unstructured = Unstructured(weights, counts)
        if structured:
            layers = _structured(weights, counts, self._traced(network, parameters), f"sparsity.{network}")
        products = self._products(weights, counts, parameters.vector.device)
        for each in (parameters, *targets):
            multiply_by(products, *each.modules)
        generator = torch.Generator().manual_seed(self._seed + _STREAMS[network])
        growth: dict[str, Growth | None] = {"static": None, "set": at_random(generator)}
        return Topology(
            weights=weights,
            layers=layers,
            vector=parameters.vector,
            targets=[target.vector for target in targets],
            products=products,
            growth=growth.get(method, by_gradient),
            schedule=self._schedule,
            generator=generator,
            updates_per_step=updates_per_step,
            signature=(METHODS.index(method), structured, *counts),
        )

    def cost(self, network: Network, parameters: FlatParameters, topology: Topology | None) -> Callable[[], Cost]:
        """A function that returns the FLOPs of one row's forward pass, with the topology at the time of the call."""
        traced, weights = self._traced(network, parameters), maskable_weights(*parameters.modules)

        def dense(weights: Sequence[Weight]) -> list[float]:
            # The positions of a convolution's output do not depend on the number of channels.
            return [dense_flops(each, traced[each.name].positions if each.name in traced else 1) for each in weights]

        own, full = dense(weights), sum(dense(self._full.get(network, weights)))

        def now() -> Cost:
            active = topology.active if topology else [each.size for each in weights]
            return Cost(sum(n / each.size * flops for n, each, flops in zip(active, weights, own, strict=True)), full)

        return now

    def _traced(self, network: Network, parameters: FlatParameters) -> dict[str, Traced]:
        device = parameters.vector.device
        seen, acted = self._spec.policy_observations, int(torch.Size(self._spec.actions.shape).numel())
        # The batch has two rows, as in the earlier check of a user's own layers.
        examples = [torch.zeros((2, *seen.shape), dtype=getattr(torch, seen.dtype), device=device)]
        if network == "critic" and self._critic_takes_actions:
            acted = getattr(parameters.modules[0], "acted", acted)
            examples.append(torch.zeros((2, acted), device=device))
        sizes: Sequence[int] = getattr(parameters.modules[0], "further_inputs", ())
        examples += [torch.zeros((2, size), device=device) for size in sizes]
        return trace(parameters.modules[0], *examples)

    def _products(
        self, weights: Sequence[Weight], counts: Sequence[int], device: torch.device
    ) -> list[ActiveWeights | None]:
        """Sparse products for large and very sparse linear layers on CPUs with MKL; None for all other layers."""
        has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        if not self._settings.compressed_products or device.type != "cpu" or not has_mkl:
            return [None] * len(weights)
        return [
            ActiveWeights() if not weight.kernel and worth_leaving_out(count, weight.size) else None
            for weight, count in zip(weights, counts, strict=True)
        ]

    def _sparsity(self, network: Network) -> float:
        return self._settings.actor if network == "actor" else self._settings.critic


def check_same_topology(config: RunConfig, checkpoint: Mapping[str, Any]) -> None:
    """Raise UserError when a checkpoint's networks have another sparsity than `config`.

    checkpoint: its values. A missing setting had its default. Without any of these settings, the networks are dense.
    """
    saved = SparsityConfig().model_dump() | checkpoint.get("sparsity", {})
    for name, configured in config.sparsity.topology.items():
        if (had := saved[name]) != configured:
            setting = f"sparsity.{name}"
            raise UserError(
                f"the run's checkpoint has {setting} {value_text(had)}, but the configuration has "
                f"{value_text(configured)}; resume with {flag_text(setting, had)}, or start a new run in another "
                "--run-directory"
            )


def _tiny_sizes(
    sizes: Sequence[int], density: float, make: Callable[[Sequence[int]], nn.Module], setting: str
) -> tuple[int, ...]:
    """Units of hidden layers, all shrunk by the same factor, for a network with at most `density` of its weights.

    Raises UserError when even one unit in each hidden layer is too much, or when the sizes have no effect.
    """

    def weights(units: Sequence[int]) -> int:
        return sum(weight.size for weight in _weights_of(make, units))

    def shrunk(share: float) -> tuple[int, ...]:
        return tuple(max(1, round(share * units)) for units in sizes)

    allowed = density * weights(sizes)
    if weights(shrunk(0.0)) > allowed:
        raise UserError(
            f"{setting}: method tiny cannot make a network of {allowed:.0f} weights from hidden layers of "
            f"{', '.join(map(str, sizes))} units; use a lower sparsity or another sparsity.method"
        )
    too_large = bisect_right(range(_SHARES), allowed, key=lambda share: weights(shrunk(share / _SHARES)))
    return shrunk((too_large - 1) / _SHARES)


def _weights_of(make: Callable[[Sequence[int]], nn.Module], sizes: Sequence[int]) -> tuple[Weight, ...]:
    """The weights of a network with these hidden layers. Creates only their shapes."""
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        return maskable_weights(make(sizes))


def _structured(
    weights: Sequence[Weight], counts: Sequence[int], traced: Mapping[str, Traced], setting: str
) -> Structured:
    """Masks of constant fan-in for the trained layers. Units that other layers read are never ablated."""
    trained = {weight.name: index for index, weight in enumerate(weights) if weight.trained}
    read_by = {name: each.source for name, each in traced.items()}
    fixed = {source for name, source in read_by.items() if name not in trained or source not in trained}
    sources = [None if (source := read_by.get(name)) in fixed else source for name in trained]
    layers = Structured(
        tuple(weights[index] for index in trained.values()),
        tuple(counts[index] for index in trained.values()),
        tuple(None if source is None else list(trained).index(source) for source in sources),
    )
    layers.check(setting)
    return layers
