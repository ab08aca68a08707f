"""A trained policy of benchmarks.policy.fidelity: weights, observations for calibration and for the test."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.domain.spaces import EnvironmentSpec
from actorq.quantization.signatures import read_graph

# Maps a batch of observations [N, *observation] to the first output [N, M].
Act = Callable[[NDArray[Any]], NDArray[Any]]
Progress = Callable[[str], None]
INSTALL = "pip install dm_control 'mujoco<4' ale-py; or pass --quick"
"""How to get the packages that only these policies need."""
_PARAMETER, _CALIBRATION = "parameter:", "calibration:"


@dataclass(frozen=True)
class TrainedPolicy:
    """A policy after training.

    checkpoint: its calibration batch has recent training observations.
    held_out: [R, *observation], from episodes in which the FP32 policy acts alone; not used for training.
    """

    graph: PolicyGraph
    checkpoint: Checkpoint
    held_out: NDArray[Any]

    def save(self, file: Path) -> None:
        """Write the policy to a file for later runs of the benchmark."""
        arrays = {_PARAMETER + name: array for name, array in self.checkpoint.parameters.items()}
        arrays |= {_CALIBRATION + name: array for name, array in self.checkpoint.calibration.items()}
        arrays["graph"] = np.frombuffer(self.graph.model, np.uint8)
        arrays["held_out"] = self.held_out
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **arrays, allow_pickle=False)

    @classmethod
    def load(cls, file: Path) -> "TrainedPolicy":
        """Read a policy that `save` wrote."""
        with np.load(file, allow_pickle=False) as arrays:
            parameters, calibration = (
                {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}
                for prefix in (_PARAMETER, _CALIBRATION)
            )
            graph = read_graph(arrays["graph"].tobytes())
            return cls(graph, Checkpoint(1, 1, graph.digest, parameters, calibration, 0.0), arrays["held_out"])


class Task(Protocol):
    """A policy to train and its environment."""

    name: str
    trained_by: str
    spec: EnvironmentSpec
    episodes: int

    def train(self, progress: Progress) -> TrainedPolicy:
        """Train the policy. Equal seeds give equal policies as far as torch is deterministic."""
        ...

    def returns(self, act: Act) -> list[float]:
        """Returns of `episodes` episodes with fixed first states, stepped as one batch of that size."""
        ...
