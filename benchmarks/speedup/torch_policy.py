"""A policy that runs in PyTorch instead of ONNX Runtime: the baseline of the ActorQ paper.

It is built from the fp32 model of the quantizer, so that nothing else differs.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy, load_policy
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import FP32, Policy, PolicyDescriptor
from actorq.domain.signature import Role
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import InvalidInputError
from benchmarks.speedup.torch_network import TorchNetwork

TOLERANCE = 1e-5
"""Largest difference from ONNX Runtime's outputs. Relative to the largest output if that is above 1."""

_log = logging.getLogger(__name__)


class TorchPolicy:
    """Runs a policy without memory in eager PyTorch, with the interface of `OnnxPolicy`. One loop owns it."""

    state_size = 0

    def __init__(self, policy: Policy, spec: EnvironmentSpec, batch: int, needs: Collection[str] = ()) -> None:
        """Build the network and run it once.

        Raises InvalidInputError if the policy is not in fp32, or has an operator that is not supported here.
        """
        if policy.descriptor.effective_scheme != FP32:
            raise InvalidInputError(f"a policy in PyTorch must be in fp32, got {policy.descriptor.effective_scheme}")
        self.descriptor: PolicyDescriptor = policy.descriptor
        self.on_observations: Callable[[Any, NDArray[Any]], None] | None = None
        self._network = TorchNetwork(onnx.load_from_string(policy.model)).eval()
        expected = [OBSERVATIONS, Role.NOISE]
        if self._network.inputs not in (expected, expected[:1]):
            raise InvalidInputError(f"expected the inputs {' and '.join(expected)}, got {self._network.inputs}")
        self.takes_noise = len(self._network.inputs) == 2
        acting = () if self.takes_noise else (Role.GREEDY_ACTIONS,)
        self._further = {role: 0 if role in acting else self._network.outputs.index(role) for role in needs}
        self._quiet = torch.zeros(batch, *spec.actions.shape)
        seen = spec.policy_observations
        self(np.zeros((batch, *seen.shape), seen.dtype))

    def __call__(self, observations: NDArray[Any], noise: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the first output, float32[batch, ...]; noise as for `OnnxPolicy`."""
        if self.on_observations is not None:
            self.on_observations(self, observations)
        with torch.inference_mode():
            inputs = [torch.from_numpy(observations)]
            if self.takes_noise:
                inputs.append(self._quiet if noise is None else torch.from_numpy(noise))
            outputs = self._network(*inputs)
        first: NDArray[np.float32] = outputs[0].numpy()
        self.outputs = {role: outputs[index].numpy() for role, index in self._further.items()}
        return first


def difference(policy: TorchPolicy, reference: OnnxPolicy, observations: NDArray[Any]) -> float:
    """Largest difference of the outputs. Relative to the largest output of `reference` if that is above 1."""
    expected = reference(observations).copy()
    return float(np.abs(policy(observations) - expected).max() / max(1.0, np.abs(expected).max()))


class TorchLoader:
    """Loads policies for acting, like `load_policy`. Checks the first policy of each graph against ONNX Runtime.

    Later versions differ only in their weights. A second session for each would slow down the baseline for no reason.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._checked: set[bytes] = set()

    def __call__(self, policy: Policy, spec: EnvironmentSpec, batch: int, needs: Collection[str] = ()) -> TorchPolicy:
        """The policy in PyTorch. Raises InvalidInputError if its outputs differ from ONNX Runtime's."""
        loaded = TorchPolicy(policy, spec, batch, needs)
        if policy.descriptor.graph_digest not in self._checked:
            seen = spec.policy_observations
            drawn = self._rng.standard_normal((batch, *seen.shape))
            observations = (np.abs(drawn) * 64 if seen.dtype == "uint8" else drawn).astype(seen.dtype)
            found = difference(loaded, load_policy(policy, spec, batch, needs), observations)
            if not found <= TOLERANCE:
                raise InvalidInputError(
                    f"policy version {policy.descriptor.version}: PyTorch must give ONNX Runtime's outputs within "
                    f"{TOLERANCE:g}, got a difference of {found:.2g}"
                )
            _log.info("acting in PyTorch %s; outputs differ from ONNX Runtime's by %.1e", torch.__version__, found)
            self._checked.add(policy.descriptor.graph_digest)
        return loaded
