"""Runs a policy in an actor: one ONNX Runtime session on one thread, with preallocated buffers for a fixed batch."""

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.counts import ActorCounts
from actorq.arithmetic.sessions import open_session, signature_of_session
from actorq.domain.policy import Policy, PolicyDescriptor
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError


class OnnxPolicy:
    """Runs a policy on batches of exactly `batch` observations. Not thread-safe: one loop owns it.

    takes_noise: whether the policy has standard normal noise as an input.
    state_size: numbers in the state of a recurrent policy; 0 without memory.
    state, next_state: float32[batch, state_size], the input of the next call and the output of the last call. Callers
        write `state` before each call; it is zero until then.
    outputs: the last call's results by role, float32[batch, ...], for the acting output and the roles in `needs`. The
        next call overwrites them.
    on_observations: called with this policy and the observations of each call; None for no callback.
    """

    state_size = 0

    def __init__(
        self, policy: Policy, observations: ArraySpec, batch: int, actions: int = 0, needs: Collection[str] = ()
    ) -> None:
        """Load the model and run it once.

        observations: the spec of the policy's input, stacked if frames are stacked.
        actions: required number of outputs: discrete actions, or components of one action; 0 for any number.
        needs: roles or names of the outputs that the behavior policy reads; see `BehaviorPolicy`. Values and logits
            must be the acting output. Without noise, the actions are greedy.

        Raises InvalidInputError when the model is invalid or its inputs or outputs do not fit. The inputs are the
        observations, alone or with noise and a state. Other outputs are not computed.
        """
        self.descriptor: PolicyDescriptor = policy.descriptor
        self.on_observations: Callable[[OnnxPolicy, NDArray[Any]], None] | None = None
        try:
            self._session = open_session(policy.model)
            self._observations = observations
            self._inputs = np.zeros((batch, *observations.shape), observations.dtype)
            # The session's inputs: the observations themselves, or a copy of each leaf.
            leaves = observations.inputs if observations.leaves else {}
            self._parts = {name: np.zeros((batch, *each.shape), each.dtype) for name, each in leaves.items()}
            self._bind(batch)
            self._bind_further(needs)
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

        noise: float32[batch, actions], standard normal, for a policy with a noise input; None for its most likely
            action.
        """
        if self._parts:
            # Leaves that only critics see are not copied.
            for name, values in self._observations.split(observations).items():
                np.copyto(self._parts[name], values)
        else:
            np.copyto(self._inputs, observations)
        if self.on_observations is not None:
            self.on_observations(self, observations)
        if self.takes_noise:
            np.copyto(self._noise, 0.0 if noise is None else noise)
        self._session.run_with_iobinding(self._binding)
        return self._outputs

    def _bind(self, batch: int) -> None:
        """Bind the model's inputs and acting output to buffers."""
        self._signature = signature_of_session(self._session)
        ports = self._signature.inputs
        others = {port.name for port in ports if port.role not in (Role.NOISE, Role.STATE)}
        # A single input may have any name.
        if not others <= self._parts.keys() if self._parts else len(others) != 1:
            wanted, names = " and ".join(self._observations.inputs), ", ".join(port.name for port in ports)
            raise ValueError(
                f"expected the input {wanted}, alone or with {Role.NOISE} and {Role.STATE}, got {len(ports)} ({names})"
            )
        self.takes_noise = any(port.role is Role.NOISE for port in ports)
        self._binding = self._session.io_binding()
        self._batch = batch
        self._outputs = self._bound(self._signature.acting.name)
        self.outputs: dict[str, NDArray[np.float32]] = {self._signature.acting.role: self._outputs}
        self._noise = np.zeros_like(self._outputs)
        self.state = self.next_state = np.zeros((batch, 0), np.float32)
        if (state := self._signature.next_state) is not None:
            self.next_state = self._bound(state)
            self.state, self.state_size = np.zeros_like(self.next_state), self.next_state.shape[1]
        own = {Role.NOISE: self._noise, Role.STATE: self.state}
        for port in ports:
            array = own[port.role] if port.role in own else self._parts.get(port.name, self._inputs)
            self._binding.bind_input(port.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _bind_further(self, needs: Collection[str]) -> None:
        """Bind other outputs with these roles to their own buffers."""
        for role in sorted(needs):
            name = self._signature.output(role)
            if role == Role.GREEDY_ACTIONS and not self.takes_noise:
                self.outputs[role] = self._outputs
            elif role not in self.outputs:
                if name is None or role in (Role.VALUES, Role.LOGITS):
                    roles = ", ".join(port.role for port in self._signature.outputs)
                    raise InvalidInputError(
                        f"policy version {self.descriptor.version}: expected outputs with the roles "
                        f"{', '.join(sorted(needs))}, got {roles}; this environment cannot be acted in without them"
                    )
                self.outputs[role] = self._bound(name)

    def _bound(self, output: str) -> NDArray[np.float32]:
        """Bind an output to its own buffer."""
        target = next(each for each in self._session.get_outputs() if each.name == output)
        buffer = np.zeros([self._batch, *target.shape[1:]], np.float32)
        self._binding.bind_output(output, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)
        return buffer


LoadPolicy = Callable[[Policy, EnvironmentSpec, int, Collection[str]], OnnxPolicy]
"""Loads a policy, as `load_policy` does."""


def load_policy(policy: Policy, spec: EnvironmentSpec, batch: int, needs: Collection[str] = ()) -> OnnxPolicy:
    """Load a policy for `batch` environments. Raises InvalidInputError when it does not fit them, or lacks `needs`."""
    return OnnxPolicy(policy, spec.policy_observations, batch, spec.acting_size, needs_of(spec, needs))


def needs_of(spec: EnvironmentSpec, needs: Collection[str]) -> Collection[str]:
    """The outputs that actions of this environment need, in addition to those of the behavior policy."""
    # If an action has discrete and continuous components, a separate output has the continuous ones, also for greedy
    # actions.
    return {*needs, Role.ACTIONS} if spec.sizes and spec.components else needs


def check_state(policy: OnnxPolicy, size: int) -> None:
    """Raise InvalidInputError unless the policy's state has this many numbers."""
    if policy.state_size != size:
        expected, got = (f"a state of {each} numbers" if each else "no state" for each in (size, policy.state_size))
        raise InvalidInputError(
            f"policy version {policy.descriptor.version}: expected {expected}, as the run says, got {got}; resume the "
            "run with the memory that it began with"
        )


class PolicySlot:
    """Passes the newest policy from the subscription to the acting loop. Thread-safe.

    counts: the actor's counts, for the loading and the acting threads. closed: whether `close` was called.
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
        """The newest policy; None before the first. Uses no lock, so the acting loop may call it at each step."""
        return self._policy

    def wait(self, wanted: Callable[[PolicyDescriptor], bool], timeout_s: float | None = None) -> OnnxPolicy | None:
        """Wait until `wanted` accepts the newest policy, and return it; None after the timeout or `close`."""

        def found() -> bool:
            return self._policy is not None and wanted(self._policy.descriptor)

        with self._changed:
            self._changed.wait_for(lambda: self.closed or found(), timeout_s)
            return self._policy if not self.closed and found() else None

    def wake(self) -> None:
        """Make waiting threads call `wanted` again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits without a policy."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def activated(self, descriptor: PolicyDescriptor) -> None:
        """Record the time from the learner's snapshot to this policy's first action, which happens now."""
        with self._changed:
            seconds = max(0.0, self._clock() - descriptor.snapshot_at)
            self.counts.activation_seconds.observe(seconds)
            self._activations.append(seconds)
            del self._activations[:-100]

    def pop_activations(self) -> tuple[float, ...]:
        """Remove and return the recorded seconds from snapshot to first action, at most the newest 100."""
        with self._changed:
            taken, self._activations = tuple(self._activations), []
            return taken
