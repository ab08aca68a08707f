"""Base class of on-policy algorithms: a stochastic policy and a value network that are updated together."""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from actorq.config.algorithms import ActionSpace, OnPolicyConfig
from actorq.config.sparsity import SparsityMethod
from actorq.domain.status import Sampling
from learner_service.algorithms.base import Learned
from learner_service.algorithms.trainable import Trainable, annealed
from learner_service.algorithms.trained import Minimizer, TrainedNetwork
from learner_service.batch import Batch
from learner_service.kernels.linear import row_limits
from learner_service.kernels.recorded import Function, Input, Recorded
from learner_service.networks import DiagonalGaussianPolicy, PartwisePolicy, SoftmaxPolicy, ValueNetwork
from learner_service.networks.encoders import Leaves
from learner_service.networks.memory import Unrolled
from learner_service.networks.observations import has_images
from learner_service.rollouts.sequences import begins_of, stored_states
from learner_service.sparsity import METHODS, NetworkSparsity

# Gains of the orthogonal initial weights of the last layers.
_POLICY_GAIN, _VALUE_GAIN = 0.01, 1.0
# Largest number of observations in one pass without gradients, to bound its memory.
_LARGEST_PASS = 2**22
# Numbers that a pass of a policy with memory keeps for each observation, as a multiple of the state's size.
_PASSED_NUMBERS = 8

T = TypeVar("T")


class PolicyGradient(Trainable):
    """An `OnPolicyAlgorithm` without its update. A subclass has `name`, `settings` and `learn`.

    The global gradient norm covers both the policy and the value network.

    heads: the class of the policy for each kind of actions: discrete, continuous, or of several parts.
    settings: a subclass of OnPolicyConfig.
    epochs: number of passes over each rollout.
    """

    action_spaces: ClassVar[tuple[ActionSpace, ...]] = OnPolicyConfig.actions
    # RLx2 is made for temporal-difference learning from a replay.
    sparsity_methods: ClassVar[tuple[SparsityMethod, ...]] = tuple(method for method in METHODS if method != "rlx2")
    heads: ClassVar[Mapping[str, Any]] = {
        "discrete": SoftmaxPolicy,
        "continuous": DiagonalGaussianPolicy,
        "parts": PartwisePolicy,
    }
    epochs: int = 1
    has_memory: ClassVar[bool] = True
    has_critic: ClassVar[bool] = True
    has_groups: ClassVar[bool] = True
    policy: Any
    _settings: OnPolicyConfig

    def make_networks(self, settings: OnPolicyConfig) -> None:
        """Make pi and V."""
        self.rollout_size = settings.rollout_size
        # Images stay bytes. Their updates are not recorded, and a rollout of them as floats would be large.
        self._has_images, spec = has_images(self._spec.for_critics), self._spec
        self._leaves = Leaves(spec) if spec.leaves and not self._has_images else None
        kind = self.heads["parts" if spec.has_parts else "discrete" if spec.sizes else "continuous"]
        gaussian = {"log_std": settings.log_std, "squash": settings.squash} if spec.components else {}

        pi = partial(self._made, kind, _POLICY_GAIN, **gaussian)
        value = partial(self._made, ValueNetwork, _VALUE_GAIN)
        rate, value_rate = settings.learning_rate, settings.value_learning_rate or settings.learning_rate
        adam: dict[str, Any] = {"has_target": False, "epsilon": settings.adam_epsilon}
        self._pi: TrainedNetwork[Any] = self.network("actor", pi, settings.hidden_sizes, rate, **adam)
        self._v: TrainedNetwork[Any] = self.network("critic", value, settings.value_sizes, value_rate, **adam)

    def _made(self, kind: Callable[..., Any], gain: float, **given: Any) -> Any:
        memory = self._config.memory
        network = kind(activation=self._settings.activation, **given, **({"memory": memory} if memory else {}))
        if self._settings.orthogonal:
            # A user's function has chosen the initial weights of its layers.
            network.make_orthogonal(gain, hidden=self._config.network is None)
        return network

    @abstractmethod
    def learn(self, rollout: Sequence[Batch], progress: float) -> Learned:
        """All updates on one rollout. progress: share of the run's environment steps that is used up, in [0, 1]."""

    def network_sparsity(self) -> NetworkSparsity:
        """The sparsity of the networks. The number of updates counts all `epochs` passes."""
        return NetworkSparsity(self._config, self._spec, self.batch_size, getattr(self._settings, "epochs", 1))

    @property
    def sampling(self) -> Sampling:
        """How actors draw actions."""
        return "squashed" if self._settings.squash else "clipped"

    def log_probabilities(
        self,
        observations: NDArray[np.generic],
        actions: NDArray[np.generic],
        parameters: Mapping[str, Tensor],
        states: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """log pi(a | s), float32[B], of the policy with these parameters; see `OnPolicyAlgorithm`."""
        own = {name: tensor.to(self._device) for name, tensor in parameters.items()}

        def judged(actions: Tensor, *inputs: Tensor) -> Tensor:
            outputs = functional_call(self.policy, own, inputs) if own else self.policy(*inputs)
            if states is not None:
                first, *further = outputs[:-1]
                outputs = (first, *further) if further else first
            logarithms: Tensor = self.policy.log_probabilities(actions, *self.policy.of_outputs(outputs))
            return logarithms

        inputs = [self._seen(observations), *(() if states is None else (self._tensor(states),))]
        return self._without_gradient(judged, self.policy.drawn(self._tensor(actions)), *inputs).cpu().numpy()

    def set_progress(self, progress: float) -> None:
        """Set the learning rate for this share of the run's environment steps."""
        settings = self._settings
        rate = annealed(settings.learning_rate, settings.learning_rate_end, progress)
        self._pi.set_learning_rate(rate)
        value_rate = settings.value_learning_rate or settings.learning_rate
        self._v.set_learning_rate(rate * value_rate / settings.learning_rate)

    @cached_property
    def can_record(self) -> bool:
        """Whether updates of `descent` are recorded: only on the CPU and with vectors.

        Otherwise each number of rows would need its own recording.
        """
        are_vectors = len(self._spec.policy_observations.shape) == 1 and not self._has_images
        return self._device.type == "cpu" and are_vectors and not self._memory and super().can_record

    def descent(self, loss: Function) -> Function:
        """A function that makes one gradient step of both networks on a loss.

        loss: has batches and tensors as arguments, which may have another number of rows in each call. It returns the
            loss, float32[], and other tensors without gradient. See `GradientAlgorithm.descent`.

        The result has the same arguments, and returns the other tensors.
        """

        def gradients(*inputs: Input) -> tuple[Tensor, ...]:
            output, *others = loss(*inputs)
            return *self.differentiate(output), *others

        recorded = Recorded(gradients, kind=partial(bisect_right, row_limits(self._pi.network, self._v.network)))

        def step(*inputs: Input) -> tuple[Tensor, ...]:
            _, _, *others = self.minimize(lambda: (recorded if self.can_record else gradients)(*inputs))
            return tuple(others)

        return step

    def differentiate(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradients of pi and V, float32[parameters] each, into their `parameters[0].gradient`."""
        to_policy, to_values = self._pi.parameters[0], self._v.parameters[0]
        with to_policy.new_gradient(), to_values.new_gradient():
            torch.autograd.backward(loss)
        return to_policy.gradient, to_values.gradient

    def minimize(self, differentiate: Callable[[], T]) -> T:
        """Make one step of both networks with the gradients of `differentiate`. Returns its result."""
        told = Minimizer.step_together((self._pi, self._v), differentiate, self._settings.max_gradient_norm)
        self.updates += 1
        return told

    def present_values(self, steps: Batch, remembered: Sequence[Tensor] = ()) -> NDArray[np.float32]:
        """V of all observations, float32[T + 1, N].

        remembered: outputs of the policy's cell for these observations, if it has one.
        """
        values = self._without_gradient(self._v, self._seen(flat(steps.observations)), *remembered)
        return values.view(steps.observations.shape[:2]).cpu().numpy()

    def states(self, steps: Batch) -> NDArray[np.float32]:
        """The present policy's states before each step of trajectories, float32[T, N, S]."""
        return self._present(steps).states[: len(steps.valid)].cpu().numpy()

    @property
    def _memory(self) -> int:
        """Numbers in the policy's state; 0 without memory."""
        return self._config.memory.state_size

    def _unrolled(self, steps: Batch, observations: Tensor) -> Unrolled:
        """The policy's cell on all observations of trajectories. observations: [(T + 1) * N, ...], of `_seen`."""
        begins, states = self._tensor(begins_of(steps)), self._tensor(stored_states(steps, self._memory))
        shaped = observations.reshape(*begins.shape, *observations.shape[1:])
        unrolled: Unrolled = self.policy.unrolled(shaped, states, begins)
        return unrolled

    def _present(self, steps: Batch) -> Unrolled:
        """`_unrolled` without gradient, on a bounded number of observations at once."""
        observations = steps.observations
        numbers = observations.size + _PASSED_NUMBERS * self._memory * observations.shape[0] * observations.shape[1]
        parts = max(1, -(-numbers // _LARGEST_PASS))
        with torch.no_grad():
            found = [
                self._unrolled(part, self._seen(flat(part.observations)))
                for part in (steps[:, each] for each in np.array_split(np.arange(observations.shape[1]), parts))
                if part.valid.size
            ]
        return found[0] if len(found) == 1 else Unrolled(*(torch.cat(each, 1) for each in zip(*found, strict=True)))

    def _without_gradient(self, function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
        """A function of rows, evaluated on a bounded number of rows at once."""
        size = max(1, _LARGEST_PASS * len(columns[0]) // max(1, columns[0].numel()))
        with torch.no_grad():
            parts = zip(*(torch.split(each, size) for each in columns), strict=True)
            return torch.cat([function(*part) for part in parts])

    def _seen(self, observations: NDArray[Any]) -> Tensor:
        """Observations [B, *policy_observation] on the device, unpacked."""
        found = self._tensor(observations)
        return found if self._leaves is None else self._leaves.unpacked(found)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        # torch requires writable memory, even if it does not write.
        return torch.from_numpy(np.require(array, requirements=("C", "W"))).to(self._device)


def flat(array: NDArray[Any]) -> NDArray[Any]:
    """[T, N, ...] as [T * N, ...]."""
    return array.reshape(-1, *array.shape[2:])


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(R - V) / Var(R); 0 for constant returns."""
    variance = float(returns.var(correction=0))
    return 1.0 - float((returns - values).var(correction=0)) / variance if variance else 0.0


def by_length(rollout: Sequence[Batch]) -> list[Batch]:
    """The trajectories of a rollout, the shortest first."""
    return sorted(rollout, key=lambda steps: len(steps.rewards))
