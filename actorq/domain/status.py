"""The status of a run and its processes. The learner reports it. The display, the summary and clients read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments, Group
from actorq.domain.policy import PolicyDescriptor
from actorq.domain.processes import ProcessStats
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Evaluation, Role


class RunState(Enum):
    """State of a run.

    Solved, budget ended and stopped are final. The next learner continues an interrupted run.
    """

    WAITING_FOR_ACTORS = "waiting for actors"
    COLLECTING = "collecting"
    TRAINING = "training"
    PAUSED = "paused"
    STOPPING = "stopping"
    SOLVED = "solved"
    BUDGET_ENDED = "budget ended"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"

    @property
    def final(self) -> bool:
        """Whether the run is over."""
        return self in (RunState.SOLVED, RunState.BUDGET_ENDED, RunState.STOPPED)


Sampling = str
"""The name of the actors' sampler, which draws actions from a policy's distribution. "clipped" clips continuous actions
to their bounds, "squashed" squashes them with tanh. Empty if actions are not drawn."""


@dataclass(frozen=True)
class RunSpec:
    """Settings that all actors of a run share: `RunSpec` in protos/actorq/v1/learner.proto."""

    run_id: str
    environment_id: str
    environments_per_actor: int
    segment_length: int
    max_segment_bytes: int
    queue_segments: int
    scheme: str
    evaluation_episodes: int
    evaluation_period_updates: int
    report_period_s: float
    max_steps_per_policy: int
    evaluation_share: float = 1.0
    target_return: float | None = None
    environment_arguments: EnvironmentArguments = NO_ARGUMENTS
    evaluation_sampling: Sampling = ""
    policy_patience_s: float = 1.0
    columns: tuple[str, ...] = ()
    target_success: float | None = None


@dataclass(frozen=True)
class Exploration:
    """How each of an actor's environments explores: `Exploration` in protos/actorq/v1/learner.proto."""

    epsilons: tuple[float, ...]
    noise: tuple[float, ...]
    random_steps: int = 0
    correlation: float = 0.0
    sampling: Sampling = ""

    def by_agent(self, agents: int) -> "Exploration":
        """The exploration with a rate for each agent of each environment, instead of one for each environment."""
        epsilons, noise = (
            tuple(each for each in rates for _ in range(agents)) for rates in (self.epsilons, self.noise)
        )
        return self if agents == 1 else replace(self, epsilons=epsilons, noise=noise)


@dataclass(frozen=True)
class Membership:
    """A learner's answer to an actor that joins: `JoinResponse` in protos/actorq/v1/learner.proto."""

    run: RunSpec
    actor_index: int
    exploration: Exploration | None
    resume_after_sequence: int
    seed: int
    incarnation: int
    epoch: int = 0


@dataclass(frozen=True)
class ActorReport:
    """An actor's measurements of itself: `ActorReport` in protos/actorq/v1/learner.proto."""

    policy_version: int
    scheme: str
    environment_steps: int
    steps_per_second: float
    queued_segments: int
    activation_seconds: tuple[float, ...]
    process: ProcessStats
    waited_seconds: float = 0.0
    avoided_scheme: str = ""
    scheme_error: float = 0.0
    served_version: int = 0


@dataclass(frozen=True)
class ActorStatus:
    """The learner's view of an actor."""

    name: str
    role: Role
    index: int
    connected: bool
    report: ActorReport | None


@dataclass(frozen=True)
class ActorSelfStatus:
    """An actor's view of itself."""

    name: str
    activity: str
    report: ActorReport
    environment: EnvironmentSpec | None


@dataclass(frozen=True)
class Energy:
    """Energy of the run in kWh, the method of measurement, and the share of each service in kWh."""

    kwh: float
    co2_kg: float
    method: str
    kwh_per_service: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Receipt:
    """A quantizer's answer to a checkpoint: the emitted policies, the number of watchers, the time it took."""

    version: int
    policies: tuple[PolicyDescriptor, ...]
    emit_seconds: float
    watchers: int
    process: ProcessStats


@dataclass(frozen=True)
class DynamicCapacityStatus:
    """The state of a replay of dynamic capacity: `DynamicCapacity` in protos/actorq/v1/learner.proto."""

    transitions: int
    distance: float | None
    drops: int
    dropped_transitions: int


@dataclass(frozen=True)
class StorageStatus:
    """The integrity and durability of the replay: `ReplayStorage` in protos/actorq/v1/learner.proto."""

    disk_free_bytes: int
    disk_low: bool
    damaged_segments: int
    dropped_segments: int
    lost_segments: int
    unflushed_transitions: int


@dataclass(frozen=True)
class RolloutQueueStatus:
    """The state of an on-policy algorithm's queue: `RolloutQueue` in protos/actorq/v1/learner.proto."""

    waiting_transitions: int
    dropped_transitions: int
    mismatch: float | None = None
    divergence: float | None = None
    policy_lag: float | None = None


@dataclass(frozen=True)
class RunStatus:
    """The status of a run. The message of the same name in protos/actorq/v1/learner.proto explains the fields."""

    run_id: str
    state: RunState
    environment_id: str
    algorithm: str
    elapsed_s: float
    environment_steps: int
    environment_steps_per_s: float
    updates: int
    updates_per_s: float
    samples_per_insert: float
    episodes: int
    training_return: float | None
    evaluation: Evaluation | None
    target_return: float | None
    max_environment_steps: int
    policy_version: int
    staleness_p50: float
    staleness_p99: float
    emitted: PolicyDescriptor | None
    quantizer_connected: bool
    actors: tuple[ActorStatus, ...]
    processes: tuple[ProcessStats, ...]
    energy: Energy
    starved_s: float
    loss: float
    activation_s: float | None
    quantization_aware_since: int | None = None
    replay_bytes: int = 0
    batch_bytes: int = 0
    multi_step_since: int | None = None
    dynamic_capacity: DynamicCapacityStatus | None = None
    storage: StorageStatus | None = None
    problem: str = ""
    refused_environments: int = 0
    flagged_evaluation: str = ""
    precision: str = ""
    rollout_queue: RolloutQueueStatus | None = None
    exported_policy: str = ""
    outdated: str = ""
    publishing_problem: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    target_success: float | None = None
    agent_returns: Mapping[str, float] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class EnvironmentReset:
    """Result of an environment reset: the folder with the earlier files, and the earlier spec, if any."""

    set_aside: Path | None
    spec: EnvironmentSpec | None
