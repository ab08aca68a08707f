"""A network in training, together with its target network, optimizer, masks and FLOPs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from learner_service.kernels.parameters import Adam, FlatParameters, clipping_divisor, load_vector
from learner_service.kernels.torch_private import EPSILON
from learner_service.sparsity.flops import Cost
from learner_service.sparsity.network_sparsity import Network, NetworkSparsity
from learner_service.sparsity.topology import Topology

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class Minimizer:
    """Adam on flat parameters. All changes of a network's parameters and masks go through it.

    max_gradient_norm: global norm to which gradients of active weights are clipped; None for no clipping.
    topology: the masks of a sparse network; None for a dense one.
    epsilon: of Adam.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        learning_rate: float,
        topology: Topology | None = None,
        max_gradient_norm: float | None = None,
        epsilon: float = EPSILON,
    ) -> None:
        self._online = parameters
        self.topology = topology
        self._max_gradient_norm = max_gradient_norm
        self._adam = Adam(parameters, learning_rate, epsilon)

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate for the next steps."""
        self._adam.learning_rate = learning_rate

    def minimize(self, loss: Tensor) -> None:
        """Make one gradient step, or use the gradient to change the topology."""
        self.step_with(lambda: self.differentiate(loss))

    def differentiate(self, loss: Tensor) -> Tensor:
        """Compute and return the gradient of the parameters, float32[parameters]: `FlatParameters.gradient`."""
        with self._online.new_gradient():
            torch.autograd.backward(loss)
        return self._online.gradient

    def step_with(self, differentiate: Callable[[], T]) -> T:
        """Make one step with the gradient that a function writes to `parameters.gradient`.

        Returns the function's result.
        """
        return self.step_together((self,), differentiate, self._max_gradient_norm)

    @staticmethod
    def step_together(minimizers: Sequence["Minimizer"], differentiate: Callable[[], T], largest: float | None) -> T:
        """Make one step of several networks, and clip their global gradient norm to `largest`; None for no clipping.

        differentiate: writes the gradients of their parameters, as `Minimizer.differentiate`. Returns its result.
        """
        for each in minimizers:
            if each.topology:
                each.topology.begin()
        told = differentiate()
        moving = [
            each
            for each in minimizers
            if each.topology is None or each.topology.prepare(each._online.gradient, each._adam.moments)
        ]
        divisor = clipping_divisor([each._online for each in moving], largest) if moving and largest else None
        for each in moving:
            each._adam.step(divisor)
        return told

    def state(self) -> dict[str, Tensor]:
        """Copies of the parameters, the topology, and Adam's moments and number of steps (after the first step)."""
        topology = {} if self.topology is None else self.topology.state()
        state = {"parameters": self._online.vector.clone(), **self._adam.state()}
        return state | {f"topology.{name}": value for name, value in topology.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names, shapes or topologies differ."""
        load_vector(self._online, state["parameters"])
        topology = below("topology", state)
        if bool(topology) != (self.topology is not None):
            saved, configured = ("sparse", "dense") if topology else ("dense", "sparse")
            raise RuntimeError(f"the saved networks are {saved}, but those of sparsity.method are {configured}")
        if self.topology is not None:
            self.topology.load_state(topology)
        self._adam.load_state(state)

    def begin_from(self, state: Mapping[str, Tensor]) -> None:
        """Take parameters and masks of another run's `state`, and begin with a new optimizer.

        Raises KeyError or RuntimeError when names, shapes or densities differ.
        """
        load_vector(self._online, state["parameters"])
        topology = below("topology", state)
        if self.topology is not None:
            self.topology.begin_from(topology)
        elif topology:
            raise RuntimeError("its networks are sparse, and the networks of this run are dense")


class TrainedNetwork(Minimizer, Generic[M]):
    """A network with its minimizer, its target network, and FLOPs.

    network: computes with the online parameters. Calling this object calls it.
    target: computes with the target parameters. It is `network` itself for an algorithm without target network.
    parameters: the vectors of online and target parameters.
    """

    def __init__(
        self,
        network: M,
        target: M,
        role: Network,
        sparsity: NetworkSparsity,
        learning_rate: float,
        max_gradient_norm: float | None = None,
        updates_per_step: int = 1,
        besides: tuple[nn.Module, ...] = (),
        epsilon: float = EPSILON,
    ) -> None:
        """updates_per_step: of the run for each step of this network. besides: modules that are optimized with it."""
        self.network, self.target = network, target
        online = FlatParameters(network, *besides)
        self.parameters: tuple[FlatParameters, ...] = (online,)
        if target is not network:
            # This also copies buffers, which never change later.
            target.requires_grad_(False).load_state_dict(network.state_dict())
            self.parameters = (online, FlatParameters(target))
        topology = sparsity.topology(role, *self.parameters, updates_per_step=updates_per_step)
        super().__init__(online, learning_rate, topology, max_gradient_norm, epsilon)
        self._cost = sparsity.cost(role, online, topology)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the network's output for a batch."""
        output: Tensor = self.network(*inputs)
        return output

    @property
    def cost(self) -> Cost:
        """FLOPs of one row's forward pass with the present masks."""
        return self._cost()

    def copy_to_target(self) -> None:
        """theta^- <- theta."""
        online, target = self.parameters
        target.vector.copy_(online.vector)

    def move_target(self, rate: float) -> None:
        """theta^- <- rate theta + (1 - rate) theta^-."""
        online, target = self.parameters
        target.vector.lerp_(online.vector, rate)

    def named_state(self, name: str, target_name: str) -> dict[str, Tensor]:
        """Copies of parameters, moments and masks under names that begin with `name`, and of the target parameters."""
        state = {f"{name}.{key}": value for key, value in self.state().items()}
        for target in self.parameters[1:]:
            state[target_name] = target.vector.clone()
        return state

    def begin_from(self, state: Mapping[str, Tensor]) -> None:
        """As in `Minimizer`. The target network becomes equal to the network."""
        super().begin_from(state)
        if self.parameters[1:]:
            self.copy_to_target()

    def load_named_state(self, state: Mapping[str, Tensor], name: str, target_name: str) -> None:
        """Restore what `named_state` returned; raises the errors of `load_state`."""
        self.load_state(below(name, state))
        for target in self.parameters[1:]:
            load_vector(target, state[target_name])


def below(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a state whose names begin with "`name`.", without this prefix."""
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
