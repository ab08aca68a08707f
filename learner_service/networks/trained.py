"""A network in training, with its target network and everything that belongs to the two."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from learner_service.kernels.parameters import FlatParameters, Minimizer, load_vector
from learner_service.sparsity.flops import Cost
from learner_service.sparsity.plan import Network, SparsityPlan

M = TypeVar("M", bound=nn.Module)


class TrainedNetwork(Generic[M]):
    """A network, the target network that follows it, Adam's moments, the mask of a sparse network, and FLOPs.

    network: computes with the online parameters; a call of this object calls it.
    target: computes with the target parameters; it is `network` itself where an algorithm needs no target network.
    parameters: the vectors of online and target parameters.
    """

    def __init__(
        self,
        network: M,
        target: M,
        role: Network,
        sparsity: SparsityPlan,
        learning_rate: float,
        max_gradient_norm: float | None = None,
        updates_per_step: int = 1,
        besides: tuple[nn.Module, ...] = (),
    ) -> None:
        """Copy the network to its target and mask both.

        max_gradient_norm: global norm to which gradients are clipped; None for no clipping.
        updates_per_step: updates of the run for each step of this network.
        besides: modules whose parameters take their steps together with the network's.
        """
        self.network, self.target = network, target
        online = FlatParameters(network, *besides)
        self.parameters: tuple[FlatParameters, ...] = (online,)
        if target is not network:
            # Buffers are copied too: nothing changes these later.
            target.requires_grad_(False).load_state_dict(network.state_dict())
            self.parameters = (online, FlatParameters(target))
        topology = sparsity.topology(role, *self.parameters, updates_per_step=updates_per_step)
        self._minimizer = Minimizer(online, learning_rate, topology, max_gradient_norm)
        self._cost = sparsity.cost(role, online, topology)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return what the network computes of a batch."""
        output: Tensor = self.network(*inputs)
        return output

    @property
    def cost(self) -> Cost:
        """FLOPs of one row's forward pass, as the masks are now."""
        return self._cost()

    def minimize(self, loss: Tensor, slopes: Tensor | None = None) -> None:
        """Take one step of Adam down the gradient of a loss, as `Minimizer.step` does."""
        self._minimizer.step(loss, slopes)

    def set_learning_rate(self, learning_rate: float) -> None:
        """The step size from the next step on."""
        self._minimizer.set_learning_rate(learning_rate)

    def copy_to_target(self) -> None:
        """theta^- <- theta."""
        online, target = self.parameters
        target.copy_from(online)

    def move_target(self, rate: float) -> None:
        """theta^- <- rate theta + (1 - rate) theta^-."""
        online, target = self.parameters
        target.move_towards(online, rate)

    def state(self, name: str, target_name: str) -> dict[str, Tensor]:
        """Copies of the parameters, the moments and the mask, under names that begin with `name`; and of the target."""
        state = {f"{name}.{key}": value for key, value in self._minimizer.state().items()}
        for target in self.parameters[1:]:
            state[target_name] = target.vector.clone()
        return state

    def load_state(self, state: Mapping[str, Tensor], name: str, target_name: str) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names or shapes differ."""
        self._minimizer.load_state(below(name, state))
        for target in self.parameters[1:]:
            load_vector(target, state[target_name])


def below(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a state whose names begin with `name` and a dot, without these."""
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
