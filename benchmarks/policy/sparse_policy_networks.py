"""Sparse policies for benchmarks. The learner's own code makes and changes their masks.

Training is regression on the actions of a dense teacher, with a run's network, topologies and optimizer. It takes
seconds instead of hours. Masks depend on the task; the policies of a real run are in its store.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.config.run_config import RunConfig
from actorq.domain.policy import Checkpoint, PolicyGraph
from benchmarks.policies import environment_spec
from learner_service.algorithms.trained import Minimizer
from learner_service.kernels.parameters import FlatParameters
from learner_service.networks.continuous import DeterministicPolicy
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.sparsity.network_sparsity import NetworkSparsity

WIDTH = 256
BATCH = 256
# 100 changes of masks; RLx2 makes about 200 in a run of 3 million steps.
_UPDATES, _PERIOD = 4000, 40
# Robots have fewer degrees of freedom than sensors.
_LATENT = 6
# Updates of a run between two publications; number of versions for figures that depend on the previous version.
PUBLICATION_UPDATES, VERSIONS = 50, 10


@dataclass(frozen=True)
class Task:
    """An environment's sizes of observations and actions, and RLx2's sparsity of its TD3 policy."""

    name: str
    observations: int
    actions: int
    sparsity: float


# arXiv 2205.15043, table 2, for Gymnasium's environments of version 5.
TASKS = (
    Task("HalfCheetah", 17, 6, 0.90),
    Task("Hopper", 11, 3, 0.98),
    Task("Walker2d", 17, 6, 0.97),
    Task("Ant", 105, 8, 0.96),
)
# The method that makes the masks, and whether they are structured.
MASKS = {"random": ("static", False), "trained": ("rlx2", False), "structured": ("rlx2", True)}


def versions(task: Task, masks: str, count: int = 1, seed: int = 0) -> tuple[PolicyGraph, list[Checkpoint]]:
    """Versions of a policy in training order. masks: a name in MASKS, or "dense"."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    spec = environment_spec((task.observations,), "float32", task.actions, discrete=False)
    teacher = nn.Sequential(
        nn.Linear(task.observations, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, task.actions),
    )
    observe = _Observer(task.observations)
    policy = DeterministicPolicy(spec, (WIDTH, WIDTH))
    parameters = FlatParameters(policy)
    topology = None
    if masks != "dense":
        method, structured = MASKS[masks]
        config = RunConfig.model_validate(
            {
                "algorithm": "td3",
                "max_environment_steps": _UPDATES,
                "rate_limiter": {"samples_per_insert": BATCH},
                "sparsity": {
                    "method": method,
                    "actor": task.sparsity,
                    "period_updates": _PERIOD,
                    "structured": structured,
                },
            }
        )
        topology = NetworkSparsity(config, spec, BATCH).topology("actor", parameters)
    minimizer = Minimizer(parameters, 1e-3, topology)
    generator = torch.Generator().manual_seed(seed)

    def train(updates: int) -> None:
        for _ in range(updates):
            rows = observe(BATCH, generator)
            with torch.no_grad():
                actions = torch.tanh(4 * teacher(rows))
            minimizer.minimize(torch.mean((policy(rows) - actions) ** 2))

    # Static masks need no long training.
    train(_PERIOD if masks in ("dense", "random") else _UPDATES)
    graph = export_policy_graph(policy, spec)
    calibration = observe(BATCH, torch.Generator().manual_seed(seed + 1)).numpy()
    found = []
    minimizer.set_learning_rate(3e-4)
    for version in range(1, count + 1):
        found.append(_checkpoint(graph, version, snapshot_parameters(policy), calibration))
        if version < count:
            train(PUBLICATION_UPDATES)
    return graph, found


def _checkpoint(
    graph: PolicyGraph, version: int, parameters: dict[str, NDArray[np.float32]], calibration: NDArray[np.float32]
) -> Checkpoint:
    step = _UPDATES + version * PUBLICATION_UPDATES
    return Checkpoint(
        version, step, graph.digest, parameters, {graph.signature.inputs[0].name: calibration}, 1_700_000_000.0
    )


class _Observer:
    """Observations of a body with few degrees of freedom: smooth functions of these, with different scales."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(size)
        self._mixing = torch.randn((_LATENT, size), generator=generator)
        self._scale = torch.exp(torch.randn(size, generator=generator))

    def __call__(self, rows: int, generator: torch.Generator) -> torch.Tensor:
        latent = torch.randn((rows, _LATENT), generator=generator)
        noise = 0.1 * torch.randn((rows, self._mixing.shape[1]), generator=generator)
        return (torch.sin(latent @ self._mixing) + noise) * self._scale
