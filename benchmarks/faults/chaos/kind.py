"""The kinds of runs that faults are injected into, and their settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorq.config.algorithms import ON_POLICY
from actorq.config.memory import NO_MEMORY, MemoryConfig
from benchmarks.faults.chaos.states import FROZEN
from benchmarks.faults.chaos.team import GROUPS

ENVIRONMENT = "benchmarks.faults.chaos.environment:Coded-v0"
TEAM = "benchmarks.faults.chaos.team:CodedTeam"
CAPACITY = 6_000_000

_COMMON: dict[str, Any] = {
    "environment": ENVIRONMENT,
    "environments_per_actor": 4,
    "max_environment_steps": 10**9,
    "target_return": 1e9,
    "replay": {"capacity": CAPACITY},
    "checkpoint": {"period_s": 5.0},
    "evaluation": {"episodes": 2, "period_updates": 500},
    "energy": {"enabled": False},
}
OF_ALGORITHM: dict[str, dict[str, Any]] = {
    "dqn": {
        "dqn": {"hidden_sizes": [32, 32], "batch_size": 32},
        "replay": {"capacity": CAPACITY, "min_size": 1_000},
        "rate_limiter": {"samples_per_insert": 8.0, "error_buffer": 2_000.0},
        "publication": {"period_updates": 50},
    },
    # A rollout has one segment of each of two actors, so that the third may be missing.
    "ppo": {
        "actor": {"segment_length": 32},
        "ppo": {"hidden_sizes": [32, 32], "rollout_size": 256, "batch_size": 64, "epochs": 2},
    },
}


@dataclass(frozen=True)
class RunKind:
    """What a run has.

    algorithm: a key of `OF_ALGORITHM`. memory: of the policy, which then keeps its first weights.
    relay: actors get their policies from a relay. storage: the run is copied to object storage, including the replay.
    agents: the environment has several agents. groups: `GROUPS` of them have policies of their own.
    """

    algorithm: str = "dqn"
    memory: MemoryConfig = NO_MEMORY
    relay: bool = False
    storage: bool = False
    agents: bool = False
    groups: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of its replay that not all replays have."""
        return (*(("log_probabilities",) if self.algorithm in ON_POLICY else ()), *self.memory.columns)

    def settings(self, storage: Path) -> dict[str, Any]:
        """The content of its configuration file. storage: the folder for copies."""
        values = _COMMON | OF_ALGORITHM[self.algorithm] | {"algorithm": self.algorithm}
        if self.agents:
            values["environment"] = TEAM
        if self.groups:
            values["policies"] = GROUPS
        if self.memory:
            values["memory"] = {"kind": self.memory.kind, "units": self.memory.units}
            values[self.algorithm] = values[self.algorithm] | {"learning_rate": FROZEN}
        if self.storage:
            copied = {"object_storage": f"file://{storage}", "object_storage_replay": True}
            values["checkpoint"] = _COMMON["checkpoint"] | copied
        return values
