"""Base class of algorithms that train by gradient descent. An algorithm adds its networks, losses and update."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actorq.config.algorithms import ActionSpace
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.config.sparsity import SparsityMethod
from actorq.domain.trajectory import EnvironmentSpec
from actorq.statefiles.crc import crc32
from learner_service.algorithms.base import Losses, Minibatch, minibatches, settings_of
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import are_frames, feature_layers
from learner_service.networks.precision import use_precision
from learner_service.networks.trained import TrainedNetwork, below
from learner_service.replay import NStepBatch
from learner_service.sparsity import METHODS, SparsityPlan
from learner_service.sparsity.plan import Network

M = TypeVar("M", bound=nn.Module)


class GradientAlgorithm:
    """An `Algorithm` without settings, networks and update.

    A subclass has `name`, `action_spaces` and `settings`. It makes its networks in `make_networks`, and one update in
    `step`, or all updates of a batch in `update`. This class adds sparsity, precision, normalization and resuming.

    settings: the class of its settings, with the fields `batch_size`, `n_step` and `discount`.
    policy: the network with the role "actor".
    networks: all trained networks by role.
    updates: gradient updates so far; `step` counts them.
    generator: the source of noise, on the device.
    """

    name: str
    action_spaces: ClassVar[tuple[ActionSpace, ...]]
    stochastic: bool = False
    settings: ClassVar[type[Settings]]
    sparsity_methods: ClassVar[tuple[SparsityMethod, ...]] = METHODS
    state_names: ClassVar[dict[Network, tuple[str, str]]] = {
        "actor": ("policy", "target_policy"),
        "critic": ("critic", "target_critic"),
    }
    """Names of a network and its target network in checkpoints, by role."""

    policy: nn.Module
    batch_size: int
    n_step: int
    discount: float

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        settings: Any = settings_of(config, self.settings)
        self.batch_size, self.n_step, self.discount = settings.batch_size, settings.n_step, settings.discount
        self.networks: dict[Network, TrainedNetwork[Any]] = {}
        self.updates = 0
        self.generator = torch.Generator(device).manual_seed(config.seed)
        self._config, self._spec, self._device = config, spec, device
        # All networks share one normalizer, so that their inputs always agree.
        self._normalizer = (
            Normalizer(spec).to(device) if config.normalize_observations and not are_frames(spec) else None
        )
        self._sparsity = SparsityPlan(config, spec, self.batch_size)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(config.seed)
            self.make_networks(settings)
        vectors = [vector for network in self.networks.values() for vector in network.parameters]
        self.precision = use_precision(config, self.batch_size, vectors)

    @abstractmethod
    def make_networks(self, settings: Any) -> None:
        """Make the networks with `network`. settings: an instance of `self.settings`."""

    def step(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Make one update; returns the loss float32[] and the |TD errors| float32[B], both without gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no step, and no update of its own")

    def network(
        self,
        role: Network,
        make: Callable[..., M],
        sizes: Sequence[int],
        learning_rate: float,
        has_target: bool = True,
        **options: Any,
    ) -> TrainedNetwork[M]:
        """Make a network with the sparsity, the normalizer and the user's own layers of the configuration.

        make: called with the environment's spec, the units of each hidden layer, the normalizer, and `feature_layers`.
        sizes: units of each hidden layer of a dense network. options: passed to TrainedNetwork.
        """
        config, spec = self._config, self._spec

        def made(sizes: Sequence[int]) -> M:
            layers = feature_layers(config, spec)
            return make(spec=spec, hidden_sizes=sizes, normalizer=self._normalizer, layers=layers)

        sizes = self._sparsity.sizes(role, sizes, made)
        network = made(sizes).to(self._device)
        target = made(sizes).to(self._device) if has_target else network
        trained = TrainedNetwork(network, target, role, self._sparsity, learning_rate, **options)
        self.networks[role] = trained
        if role == "actor":
            self.policy = network
        return trained

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled if `learner.compile` is set."""
        return torch.compile(function) if self._config.learner.compile else function

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        losses, errors = zip(*(self.step(minibatch) for minibatch in self.minibatches(batch, weights)), strict=True)
        return Losses(float(torch.stack(losses).mean()), torch.cat(errors).cpu().numpy())

    def minibatches(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Iterator[Minibatch]:
        """The minibatches of a batch on the device."""
        return minibatches(batch, weights, self.batch_size, self._device)

    def between_copies(self, cut: Sequence[Minibatch], period: int) -> Iterator[Sequence[Minibatch]]:
        """Group the minibatches between two copies of the target networks, which are `period` updates apart.

        One call of a target network then serves a group. With frames on the CPU each group has one minibatch, because
        more do not fit into its caches and take longer. When masks change within a group, its later minibatches have
        targets from before the change.
        """
        alone = self._device.type == "cpu" and are_frames(self._spec)
        while cut:
            together = 1 if alone else period - self.updates % period
            yield cut[:together]
            cut = cut[together:]

    def noise(self, rows: int, components: int) -> Tensor:
        """Standard normal numbers, float32[rows, components]."""
        return torch.randn((rows, components), generator=self.generator, device=self._device)

    def normalize(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Normalize observations with this mean and std, if the run asks for it and they are not frames."""
        if self._normalizer is not None:
            self._normalizer.set(mean, std)

    def state(self) -> dict[str, Tensor]:
        """Networks, target networks, Adam's moments, the number of updates, the generator and the normalizer."""
        state = {"updates": torch.tensor(self.updates), "generator": self.generator.get_state()}
        for role, network in self.networks.items():
            state |= network.state(*self.state_names[role])
        if self._normalizer is not None:
            state |= {f"normalizer.{name}": value.clone() for name, value in self._normalizer.state_dict().items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names or shapes differ."""
        for role, network in self.networks.items():
            network.load_state(state, *self.state_names[role])
        # Older checkpoints of some algorithms have no number of updates or no generator.
        self.updates = int(state.get("updates", 0))
        if "generator" in state:
            _restore(self.generator, state["generator"].cpu())
        if self._normalizer is not None:
            self._normalizer.load_state_dict(below("normalizer", state))


def _restore(generator: torch.Generator, saved: Tensor) -> None:
    """Restore a generator's state.

    A generator's state cannot move between CPU and GPU. In that case the generator is seeded from the saved bytes.
    """
    if saved.shape == generator.get_state().shape:
        generator.set_state(saved)
    else:
        generator.manual_seed(crc32(saved.numpy().tobytes()))
