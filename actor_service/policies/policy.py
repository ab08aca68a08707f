"""Runs a policy in an actor: one ONNX Runtime session on one thread, with preallocated buffers for a fixed batch."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actor_service.counts import ActorCounts
from actorq.domain.policy import (
    ACTIONS_OUTPUT,
    GREEDY_OUTPUT,
    LOG_STD_OUTPUT,
    LOGITS_OUTPUT,
    MEAN_OUTPUT,
    NOISE_INPUT,
    Policy,
    PolicyDescriptor,
)
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError
from actorq.inference import open_session


class OnnxPolicy:
    """Runs a policy on batches of exactly `batch` observations. Not thread-safe: one loop owns it.

    stochastic: whether the policy takes standard normal noise as an input.
    greedy: float32[batch, ...], the last call's result without noise. The next call overwrites it.
    mean, log_std: float32[batch, actions], the last call's distribution of continuous actions, if the policy was loaded
        with it. The next call overwrites them.
    actions: float32[batch, components], the most likely continuous components of the last call, if the policy was
        loaded with them beside discrete parts.
    on_observations: called with this policy and the observations of each call; None for no callback.
    """

    mean: NDArray[np.float32]
    log_std: NDArray[np.float32]
    actions: NDArray[np.float32]

    def __init__(
        self,
        policy: Policy,
        observations: ArraySpec,
        batch: int,
        actions: int = 0,
        greedy: bool = False,
        distribution: Sequence[str] = (),
    ) -> None:
        """Load the model and run it once.

        observations: the spec of the policy's input, stacked if frames are stacked.
        actions: required number of outputs: discrete actions, or components of one action; 0 for any number.
        greedy: whether a stochastic policy also returns its actions without noise.
        distribution: names of the outputs that tell the policy's distribution; empty where no actions are drawn.

        Raises InvalidInputError when the model is invalid or its inputs or outputs do not fit. The inputs are the
        observations, alone or with noise. Other outputs are not computed.
        """
        self.descriptor: PolicyDescriptor = policy.descriptor
        self.on_observations: Callable[[OnnxPolicy, NDArray[Any]], None] | None = None
        try:
            self._session = open_session(policy.model)
            self._observations = observations
            self._inputs = np.zeros((batch, *observations.shape), observations.dtype)
            # What the session reads: the observations themselves, or a copy of each leaf.
            self._parts = (
                {name: np.zeros((batch, *each.shape), each.dtype) for name, each in observations.inputs.items()}
                if observations.leaves
                else {}
            )
            self.stochastic = self._bind(batch)
            self.greedy = self._bind_greedy() if greedy and self.stochastic else self._outputs
            if distribution:
                self._bind_distribution(distribution)
            self._session.run_with_iobinding(self._binding)
            if actions and self._outputs.shape != (batch, actions):
                raise ValueError(f"expected outputs [{batch}, {actions}], got {list(self._outputs.shape)}")
        except InvalidInputError:
            raise
        except Exception as error:
            raise InvalidInputError(
                f"policy version {policy.descriptor.version}: ONNX Runtime cannot run the model on observations "
                f"{observations.dtype}[{batch}, {', '.join(map(str, observations.shape))}]: {error}"
            ) from error

    def __call__(self, observations: NDArray[Any], noise: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the first output, float32[batch, ...]. The next call overwrites the array.

        noise: float32[batch, actions], standard normal, for a stochastic policy; None for its most likely action.
        """
        np.copyto(self._inputs, observations)
        if self._parts:
            for name, values in self._observations.split(self._inputs).items():
                np.copyto(self._parts[name], values)
        if self.on_observations is not None:
            self.on_observations(self, self._inputs)
        if self.stochastic:
            np.copyto(self._noise, 0.0 if noise is None else noise)
        self._session.run_with_iobinding(self._binding)
        return self._outputs

    def _bind(self, batch: int) -> bool:
        """Bind the model's inputs and first output to buffers. Returns whether the model takes noise."""
        names = [source.name for source in self._session.get_inputs()]
        stochastic = len(names) > 1 and NOISE_INPUT in names
        others = [name for name in names if not (stochastic and name == NOISE_INPUT)]
        # A single input may have any name.
        if not {*others} <= self._parts.keys() if self._parts else len(others) != 1:
            wanted = " and ".join(self._observations.inputs)
            raise ValueError(
                f"expected the input {wanted}, alone or with {NOISE_INPUT}, got {len(names)} ({', '.join(names)})"
            )
        target = self._session.get_outputs()[0]
        self._outputs = np.zeros([batch, *target.shape[1:]], np.float32)
        self._noise = np.zeros_like(self._outputs)
        self._binding = self._session.io_binding()
        buffers = [(self._binding.bind_output, target.name, self._outputs)]
        for name in names:
            array = self._noise if stochastic and name == NOISE_INPUT else self._parts.get(name, self._inputs)
            buffers.append((self._binding.bind_input, name, array))
        for bind, name, array in buffers:
            bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return stochastic

    def _bind_greedy(self) -> NDArray[np.float32]:
        """Bind the output without noise to its own buffer."""
        names = [target.name for target in self._session.get_outputs()]
        if GREEDY_OUTPUT not in names:
            raise ValueError(f"expected an output {GREEDY_OUTPUT} (actions without noise), got {', '.join(names)}")
        return self._bound(GREEDY_OUTPUT)

    def _bind_distribution(self, names: Sequence[str]) -> None:
        """Bind the outputs that tell the distribution. Logits are the first output, which is bound already."""
        first, *others = (target.name for target in self._session.get_outputs())
        if not {*names} - {LOGITS_OUTPUT} <= {*others} or (LOGITS_OUTPUT in names and first != LOGITS_OUTPUT):
            raise InvalidInputError(
                f"policy version {self.descriptor.version}: no actions can be drawn from it, because it tells no "
                f"distribution: expected {' and '.join(names)} among its outputs, got {', '.join((first, *others))}"
            )
        if MEAN_OUTPUT in names:
            self.mean, self.log_std = map(self._bound, (MEAN_OUTPUT, LOG_STD_OUTPUT))
        if ACTIONS_OUTPUT in names:
            self.actions = self._bound(ACTIONS_OUTPUT)

    def _bound(self, output: str) -> NDArray[np.float32]:
        """Bind an output to its own buffer."""
        target = next(each for each in self._session.get_outputs() if each.name == output)
        buffer = np.zeros([len(self._outputs), *target.shape[1:]], np.float32)
        self._binding.bind_output(output, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)
        return buffer


class LoadPolicy(Protocol):
    """Loads a policy, as `load_policy` does."""

    def __call__(
        self, policy: Policy, spec: EnvironmentSpec, batch: int, greedy: bool = False, sampled: bool = False
    ) -> OnnxPolicy:
        """Load a policy for `batch` environments of `spec`."""
        ...


def load_policy(
    policy: Policy, spec: EnvironmentSpec, batch: int, greedy: bool = False, sampled: bool = False
) -> OnnxPolicy:
    """Load a policy for `batch` environments. Raises InvalidInputError when it does not fit them.

    greedy: whether a stochastic policy also returns its actions without noise.
    sampled: whether actions are drawn from the policy's distribution, which it then must tell.
    """
    told = (*(LOGITS_OUTPUT,) * bool(spec.sizes), *(MEAN_OUTPUT, LOG_STD_OUTPUT) * bool(spec.components))
    mixed = spec.sizes and spec.components
    names = (*told, ACTIONS_OUTPUT) if mixed else told if sampled else ()
    return OnnxPolicy(policy, spec.policy_observations, batch, policy_outputs(spec), greedy, names)


def policy_outputs(spec: EnvironmentSpec) -> int:
    """Number of a policy's outputs per observation: discrete actions, or components of one action."""
    return spec.discrete_actions or spec.components


class PolicySlot:
    """Hands the newest policy from the subscription to the acting loop. Thread-safe.

    counts: the actor's counts, for all who load policies or act with them. closed: whether `close` was called.
    served_version: the newest version that a quantizer has sent; 0 before the first.
    """

    def __init__(self, counts: ActorCounts | None = None, clock: Callable[[], float] = time.time) -> None:
        self.counts = counts or ActorCounts()
        self._clock = clock
        self._changed = threading.Condition()
        self._policy: OnnxPolicy | None = None
        self.closed = False
        self.served_version = 0
        self._activations: list[float] = []

    def put(self, policy: OnnxPolicy) -> None:
        """Make this the newest policy."""
        with self._changed:
            self._policy = policy
            self._changed.notify_all()

    def peek(self) -> OnnxPolicy | None:
        """The newest policy, None before the first. Takes no lock, so the acting loop may call it at each step."""
        return self._policy

    def wait(self, wanted: Callable[[PolicyDescriptor], bool], timeout_s: float | None = None) -> OnnxPolicy | None:
        """Wait until the newest policy is `wanted` and return it; None when time is up or the slot is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.closed or (self._policy is not None and wanted(self._policy.descriptor)), timeout_s
            )
            found = not self.closed and self._policy is not None and wanted(self._policy.descriptor)
            return self._policy if found else None

    def wake(self) -> None:
        """Make waiting threads ask `wanted` again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits without a policy."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def activated(self, descriptor: PolicyDescriptor) -> None:
        """Record the time from the learner's snapshot to this policy's first action, which is now."""
        with self._changed:
            seconds = max(0.0, self._clock() - descriptor.snapshot_at)
            self.counts.activation_seconds.observe(seconds)
            self._activations.append(seconds)
            del self._activations[:-100]

    def take_activations(self) -> tuple[float, ...]:
        """Remove and return the recorded seconds from snapshot to first action, at most the newest 100."""
        with self._changed:
            taken, self._activations = tuple(self._activations), []
            return taken
