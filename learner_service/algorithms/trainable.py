"""Base class of all algorithms of this project: networks in training, with their state and settings for a run."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actorq.config.algorithms import ActionSpace
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.config.sparsity import SparsityMethod
from actorq.domain.spaces import EnvironmentSpec
from actorq.statefiles.crc import crc32
from learner_service.algorithms.base import settings_of
from learner_service.algorithms.trained import TrainedNetwork, below
from learner_service.kernels.parameters import FlatParameters
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import feature_layers
from learner_service.networks.precision import use_precision
from learner_service.sparsity import METHODS, NetworkSparsity
from learner_service.sparsity.network_sparsity import Network

M = TypeVar("M", bound=nn.Module)
# With more parameters, products take nearly all of the time, and making a recording takes much memory.
_LARGEST_RECORDED = 20_000_000


class Trainable:
    """Networks with sparsity, precision, normalization and resuming. A subclass adds the updates.

    A subclass has `name`, `action_spaces` and `settings`. It makes its networks in `make_networks`.

    settings: the class of its settings, with the fields `batch_size` and `discount`.
    policy: the network with the role "actor".
    networks: all trained networks by role.
    updates: gradient updates so far; a subclass counts them.
    generator: the source of random numbers, on the device.
    """

    name: str
    action_spaces: ClassVar[tuple[ActionSpace, ...]]
    settings: ClassVar[type[Settings]]
    sparsity_methods: ClassVar[tuple[SparsityMethod, ...]] = METHODS
    state_names: ClassVar[dict[Network, tuple[str, str]]] = {
        "actor": ("policy", "target_policy"),
        "critic": ("critic", "target_critic"),
    }
    """Names of a network and its target network in checkpoints, by role."""

    has_critic: ClassVar[bool] = False
    """Whether the network with the role "critic" may see leaves that the policy does not see."""

    has_groups: ClassVar[bool] = False
    """Whether the networks have layers of their own for each group of agents."""

    policy: nn.Module
    batch_size: int
    discount: float
    _settings: Any

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._settings = settings = settings_of(config, self.settings)
        self.batch_size, self.discount = self._settings.batch_size, self._settings.discount
        self.networks: dict[Network, TrainedNetwork[Any]] = {}
        self.updates = 0
        self.generator = torch.Generator(device).manual_seed(config.seed)
        self._config, self._spec, self._device = config, spec, device
        # Copies of trained networks in another form. They have the same precision.
        self.copies: list[FlatParameters] = []
        self._specs: dict[Network, EnvironmentSpec] = {"actor": spec, "critic": spec.for_critics}
        self._normalizers = self._make_normalizers()
        self._sparsity = self.network_sparsity()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(config.seed)
            self.make_networks(settings)
        vectors = [vector for network in self.networks.values() for vector in network.parameters]
        self.precision = use_precision(config, self.batch_size, [*vectors, *self.copies])

    @abstractmethod
    def make_networks(self, settings: Any) -> None:
        """Make the networks with `network`. settings: an instance of `self.settings`."""

    def network_sparsity(self) -> NetworkSparsity:
        """The sparsity of the networks."""
        return NetworkSparsity(self._config, self._spec, self.batch_size)

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

        make: called with the environment's spec as this network sees it, the units of each hidden layer, the
            normalizer, and `feature_layers`.
        sizes: units of each hidden layer of a dense network. options: passed to TrainedNetwork.
        """
        config, spec, normalizer = self._config, self._specs[role], self._normalizers.get(role)

        def made(sizes: Sequence[int]) -> M:
            layers = feature_layers(config, spec)
            return make(spec=spec, hidden_sizes=sizes, normalizer=normalizer, layers=layers)

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

    @cached_property
    def can_record(self) -> bool:
        """Whether updates are recorded (see `Recorded`): only if all of their operations are this project's.

        A subclass of a user may read numbers that change, and a recording would keep the first ones.
        """
        learner, networks = self._config.learner, self.networks.values()
        return (
            type(self).__module__.startswith(f"{__package__}.")
            and not (learner.compile or self._config.network or self._config.encoders)
            and learner.quantization_aware_after is None
            and all(network.topology is None for network in networks)
            and sum(network.parameters[0].vector.numel() for network in networks) <= _LARGEST_RECORDED
        )

    def normalize(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Normalize observations with this mean and std, if the run asks for it and they are not images."""
        sees, critics = self._spec.sees_number, self._critics_normalizer
        if (policies := self._normalizers.get("actor")) is not None:
            policies.set(mean[sees], std[sees])
        if critics is not None:
            critics.set(mean, std)

    def state(self) -> dict[str, Tensor]:
        """Networks, target networks, Adam's moments, the number of updates, the generator and the normalizer."""
        state = {"updates": torch.tensor(self.updates), "generator": self.generator.get_state()}
        for role, network in self.networks.items():
            state |= network.named_state(*self.state_names[role])
        for prefix, normalizer in self._named_normalizers.items():
            state |= {f"{prefix}.{name}": value.clone() for name, value in normalizer.state_dict().items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned. Raises KeyError or RuntimeError when names or shapes differ."""
        for role, network in self.networks.items():
            network.load_named_state(state, *self.state_names[role])
        # Older checkpoints of some algorithms have no number of updates or no generator.
        self.updates = int(state.get("updates", 0))
        if "generator" in state:
            _restore(self.generator, state["generator"].cpu())
        for prefix, normalizer in self._named_normalizers.items():
            normalizer.load_state_dict(below(prefix, state))
        if not self._normalizers and below("normalizer", state):
            raise RuntimeError("the saved networks normalize observations, but normalize_observations is off")

    def begin_from(self, state: dict[str, Tensor]) -> None:
        """Begin a run with networks, masks and normalizer of another run's `state`. Target networks become equal.

        Optimizers, the number of updates and the generator stay new. Raises KeyError or RuntimeError when names or
        shapes differ.
        """
        for role, network in self.networks.items():
            network.begin_from(below(self.state_names[role][0], state))
        for prefix, normalizer in self._named_normalizers.items():
            normalizer.load_state_dict(below(prefix, state))

    def _make_normalizers(self) -> dict[Network, Normalizer]:
        """The normalizer of each role whose networks see numbers. Networks with the same inputs share one."""
        found: dict[Network, Normalizer] = {}
        for role, spec in self._specs.items() if self._config.normalize_observations else ():
            if spec.vector is not None:
                shared = None if self._spec.critic_leaves else found.get("actor")
                found[role] = shared or Normalizer(spec).to(self._device)
        return found

    @property
    def _critics_normalizer(self) -> Normalizer | None:
        """The normalizer of critics that see more than the policy; None if they share the policy's."""
        return self._normalizers.get("critic") if self._spec.critic_leaves else None

    @property
    def _named_normalizers(self) -> dict[str, Normalizer]:
        """The normalizers by their names in checkpoints."""
        found = {"normalizer": self._normalizers.get("actor"), "critic_normalizer": self._critics_normalizer}
        return {name: normalizer for name, normalizer in found.items() if normalizer is not None}


def annealed(start: float, end: float | None, progress: float) -> float:
    """The value that goes linearly from `start` to `end` as `progress` goes from 0 to 1; `start` without `end`."""
    return start if end is None else start + (end - start) * min(1.0, max(0.0, progress))


def _restore(generator: torch.Generator, saved: Tensor) -> None:
    """Restore a generator's state, or seed it from the bytes of a state that cannot move between CPU and GPU."""
    if saved.shape == generator.get_state().shape:
        generator.set_state(saved)
    else:
        generator.manual_seed(crc32(saved.numpy().tobytes()))
