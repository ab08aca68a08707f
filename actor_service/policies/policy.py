"""A policy as an actor runs it: one ONNX Runtime session on one thread, with buffers bound once for its batch."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actor_service.counts import ActorCounts
from actorq.domain.policy import GREEDY_OUTPUT, NOISE_INPUT, Policy, PolicyDescriptor
from actorq.domain.trajectory import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError
from actorq.inference import open_session


class OnnxPolicy:
    """Runs a policy on batches of exactly `batch` observations. Not thread-safe: one loop owns it.

    stochastic: the policy turns standard normal noise into exploration.
    greedy: float32[batch, ...], what the last call would have returned without noise; overwritten by the next.
    on_observations: called with this policy and the observations of each call; None when nobody asks for them.
    """

    def __init__(
        self, policy: Policy, observations: ArraySpec, batch: int, actions: int = 0, greedy: bool = False
    ) -> None:
        """Load the model and run it once.

        observations: what a policy sees, stacked where frames are stacked.
        actions: for how many discrete actions it must give values, or how many components an action must have; 0 for
        any output.
        greedy: whether a stochastic policy is asked for its actions without noise too.

        Raises InvalidInputError when it is no model, does not take these observations, alone or with noise, or does not
        give these outputs. Other outputs than these are not computed for anyone.
        """
        self.descriptor: PolicyDescriptor = policy.descriptor
        self.on_observations: Callable[[OnnxPolicy, NDArray[Any]], None] | None = None
        try:
            self._session = open_session(policy.model)
            self._inputs = np.zeros((batch, *observations.shape), observations.dtype)
            self.stochastic = self._bind(batch)
            self.greedy = self._bind_greedy(batch) if greedy and self.stochastic else self._outputs
            self._session.run_with_iobinding(self._binding)
            if actions and self._outputs.shape != (batch, actions):
                raise ValueError(f"expected outputs [{batch}, {actions}], got {list(self._outputs.shape)}")
        except Exception as error:
            raise InvalidInputError(
                f"policy version {policy.descriptor.version}: ONNX Runtime cannot run the model on observations "
                f"{observations.dtype}[{batch}, {', '.join(map(str, observations.shape))}]: {error}"
            ) from error

    def __call__(self, observations: NDArray[Any], noise: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the first output, float32[batch, ...]; the array is overwritten by the next call.

        noise: float32[batch, actions], standard normal, for a stochastic policy; without it, the policy's most likely
        action.
        """
        np.copyto(self._inputs, observations)
        if self.on_observations is not None:
            self.on_observations(self, self._inputs)
        if self.stochastic:
            np.copyto(self._noise, 0.0 if noise is None else noise)
        self._session.run_with_iobinding(self._binding)
        return self._outputs

    def _bind(self, batch: int) -> bool:
        """Tie the model to buffers; returns whether it takes noise."""
        names = [source.name for source in self._session.get_inputs()]
        stochastic = len(names) == 2 and NOISE_INPUT in names
        if len(names) != 1 and not stochastic:
            raise ValueError(
                f"expected one input, the observations, or {NOISE_INPUT} besides, got {len(names)} ({', '.join(names)})"
            )
        target = self._session.get_outputs()[0]
        self._outputs = np.zeros([batch, *target.shape[1:]], np.float32)
        self._noise = np.zeros_like(self._outputs)
        self._binding = self._session.io_binding()
        buffers = [(self._binding.bind_output, target.name, self._outputs)]
        for name in names:
            array = self._noise if stochastic and name == NOISE_INPUT else self._inputs
            buffers.append((self._binding.bind_input, name, array))
        for bind, name, array in buffers:
            bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return stochastic

    def _bind_greedy(self, batch: int) -> NDArray[np.float32]:
        """Tie the output without noise to a buffer of its own."""
        names = [target.name for target in self._session.get_outputs()]
        if GREEDY_OUTPUT not in names:
            raise ValueError(f"expected an output {GREEDY_OUTPUT}, its actions without noise, got {', '.join(names)}")
        greedy = np.zeros_like(self._outputs)
        self._binding.bind_output(GREEDY_OUTPUT, "cpu", 0, greedy.dtype, greedy.shape, greedy.ctypes.data)
        return greedy


class LoadPolicy(Protocol):
    """Makes a policy ready to act, as `load_policy` does."""

    def __call__(self, policy: Policy, spec: EnvironmentSpec, batch: int, greedy: bool = False) -> OnnxPolicy:
        """For `batch` environments of `spec`."""
        ...


def load_policy(policy: Policy, spec: EnvironmentSpec, batch: int, greedy: bool = False) -> OnnxPolicy:
    """Make a policy ready to act in `batch` environments; raises InvalidInputError when it does not fit them.

    greedy: whether it is asked what it does without noise, too.
    """
    return OnnxPolicy(policy, spec.policy_observations, batch, policy_outputs(spec), greedy)


def policy_outputs(spec: EnvironmentSpec) -> int:
    """How many values a policy gives for each observation: of the discrete actions, or the components of one."""
    return spec.discrete_actions or int(np.prod(spec.actions.shape))


class PolicySlot:
    """Where the subscription puts the newest policy and the acting loop takes it from, between two steps."""

    def __init__(self, counts: ActorCounts | None = None, clock: Callable[[], float] = time.time) -> None:
        self._counts = counts or ActorCounts()
        self._clock = clock
        self._changed = threading.Condition()
        self._policy: OnnxPolicy | None = None
        self._closed = False
        self._activations: list[float] = []

    @property
    def closed(self) -> bool:
        """Whether nobody is to wait for a policy any more."""
        return self._closed

    def put(self, policy: OnnxPolicy) -> None:
        """Make this the newest policy."""
        with self._changed:
            self._policy = policy
            self._changed.notify_all()

    def peek(self) -> OnnxPolicy | None:
        """The newest policy, None before the first; costs nothing, for the acting loop."""
        return self._policy

    def wait(self, wanted: Callable[[PolicyDescriptor], bool], timeout_s: float) -> OnnxPolicy | None:
        """The newest policy as soon as it is `wanted`; None when that takes too long or the slot was closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._policy is not None and wanted(self._policy.descriptor)), timeout_s
            )
            found = not self._closed and self._policy is not None and wanted(self._policy.descriptor)
            return self._policy if found else None

    def wake(self) -> None:
        """Let waiting threads look again whether they want the newest policy."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Let all waiting threads go on without a policy."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def activated(self, descriptor: PolicyDescriptor) -> None:
        """The policy has acted for the first time: note how long that took since the learner's snapshot."""
        with self._changed:
            seconds = max(0.0, self._clock() - descriptor.snapshot_at)
            self._counts.activation_seconds.observe(seconds)
            self._activations.append(seconds)
            del self._activations[:-100]

    def take_activations(self) -> tuple[float, ...]:
        """Seconds from snapshot to first action of the swaps since the last call."""
        with self._changed:
            taken, self._activations = tuple(self._activations), []
            return taken
