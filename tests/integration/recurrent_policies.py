"""Small policies with memory, as the learner publishes and the quantizer emits them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.config.memory import MemoryConfig
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import FidelityReport, Policy, PolicyGraph
from actorq.domain.signature import Role
from actorq.domain.spaces import EnvironmentSpec
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import scheme_named
from actorq.quantization.schemes.base import Emission, Plan
from learner_service.networks import DiagonalGaussianPolicy, SoftmaxPolicy
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from quantizer_service.emission.fidelity import measure
from quantizer_service.emission.reference import Reference
from tests.actor_service.actor_policies import as_policy

HIDDEN, ROWS = 32, 64


@dataclass
class Recurrent:
    """A policy with random weights, its graph, and calibration rows."""

    spec: EnvironmentSpec
    kind: Any = "gru"
    units: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        made: type[Any] = SoftmaxPolicy if self.spec.sizes else DiagonalGaussianPolicy
        memory = MemoryConfig(kind=self.kind, units=self.units)
        self.policy = made(self.spec, (HIDDEN,), activation="tanh", memory=memory)
        with torch.no_grad():
            self.policy.head.weight.mul_(4.0)
        self.graph: PolicyGraph = export_policy_graph(self.policy, self.spec)

    @property
    def size(self) -> int:
        """Numbers in its state."""
        return int(self.policy.state_size)

    def calibration(self) -> dict[str, NDArray[Any]]:
        """Observations, and the states that they lead to."""
        rng = np.random.default_rng(1)
        observations = rng.standard_normal((ROWS, *self.spec.observations.shape)).astype(np.float32)
        begins = torch.zeros((ROWS, 1), dtype=torch.bool)
        with torch.no_grad():
            states = self.policy.unrolled(
                torch.from_numpy(observations).unsqueeze(1), torch.zeros(1, self.size), begins
            ).states
        return {OBSERVATIONS: observations, Role.STATE: states[:-1, 0].numpy()}

    def emission(self, scheme: str) -> tuple[Emission, FidelityReport]:
        """The emitted policy in a scheme, with the report on it."""
        plan, parameters = Plan(Graph.parse(self.graph), scheme_named(scheme)), snapshot_parameters(self.policy)
        expected, statistics = Reference(plan.graph).observe(parameters, self.calibration(), plan.observed)
        emitted = plan.emit(parameters, statistics, "run", 1)
        return emitted, measure(emitted, expected, self.calibration(), self.graph.signature)

    def emitted(self, scheme: str = "fp32", version: int = 1) -> Policy:
        """The policy for actors."""
        return as_policy(self.emission(scheme)[0].model, version, scheme)
