"""Settings of a policy's memory: a recurrent cell between the hidden layers and the head."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from actorq.config.algorithms import ALGORITHMS
from actorq.config.numbers import PositiveInt, Whole
from actorq.config.settings import Settings, merged
from actorq.domain.columns import state_column
from actorq.domain.limits import MAX_STATE
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError

MemoryKind = Literal["none", "gru", "lstm"]
# Arrays of `units` numbers in a cell's state.
_PARTS = {"none": 0, "gru": 1, "lstm": 2}

# Presets for policies with memory, over the other presets. Steps of one sequence resemble each other, so a batch has
# more steps than a batch of single transitions, or short sequences.
_SHORT_SEQUENCES: dict[str, Any] = {"memory": {"burn_in": 4, "sequence_length": 16}, "actor": {"segment_length": 16}}
WITH_MEMORY: dict[str, dict[str, Any]] = {
    "dqn": {"dqn": {"batch_size": 640}, "rate_limiter": {"samples_per_insert": 64.0}},
    "sac": _SHORT_SEQUENCES,
    # The cell is trained together with the policy. With a delay it learns too slowly.
    "td3": {**_SHORT_SEQUENCES, "td3": {"policy_delay": 1}},
}
WITH_MEMORY_OF_FAMILY: dict[tuple[str, str], dict[str, Any]] = {
    ("dqn", "CartPole"): {
        "max_environment_steps": 200_000,
        "dqn": {"learning_rate": 1e-3},
        "replay": {"capacity": 50_000},
    },
    ("sac", "Pendulum"): {
        "max_environment_steps": 60_000,
        # With half the units and a step size of 1e-3, most units before the cell became 0, and the state drifted.
        "sac": {"hidden_sizes": (128, 128), "learning_rate": 5e-4},
        "memory": {"units": 64},
    },
}


def preset_with_memory(memory: object, algorithm: object, family: str) -> dict[str, Any]:
    """The settings of an algorithm with memory on a family of environments; empty without memory.

    memory: the given settings of the section.
    """
    if not isinstance(memory, Mapping) or memory.get("kind", "none") == "none" or not isinstance(algorithm, str):
        return {}
    return merged(WITH_MEMORY.get(algorithm, {}), WITH_MEMORY_OF_FAMILY.get((algorithm, family), {}))


class MemoryConfig(Settings):
    """Memory of the policy, for environments that show only a part of their state. `--memory gru` sets the kind."""

    short: ClassVar[str] = "kind"

    kind: MemoryKind = Field("none", description="recurrent cell of the policy: none, gru or lstm")
    units: Annotated[Whole, Field(ge=1, le=MAX_STATE // 2)] = Field(128, description="units of the cell")
    burn_in: Annotated[Whole, Field(ge=0, le=10_000)] = Field(
        20, description="steps at the start of each sequence that only prepare the state; algorithms with a replay"
    )
    sequence_length: Annotated[PositiveInt, Field(le=10_000)] = Field(
        40,
        description="maximum trained steps per sequence; gradients do not pass its start; not for impala",
    )

    def __bool__(self) -> bool:
        """Whether the policy has a memory."""
        return self.kind != "none"

    @property
    def state_size(self) -> int:
        """Numbers in a policy's state; 0 without memory."""
        return _PARTS[self.kind] * self.units

    def sequences(self, batch_size: int) -> int:
        """Sequences in a batch with at least `batch_size` trained steps, if none is missing."""
        return -(-batch_size // self.sequence_length)

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the states at the start of segments; none without memory."""
        return (state_column(self.state_size),) if self else ()

    def check_frames(self, spec: EnvironmentSpec) -> None:
        """Raise UserError if the policy has a memory, and the environment stacks frames."""
        if self and spec.frame_stack > 1:
            raise UserError(
                f"memory.kind {self.kind}: {spec.environment_id} stacks {spec.frame_stack} frames, and a frame stack "
                "and memory exclude each other; give --memory none, because the stack shows the motion"
            )

    def check_compiled(self, is_compiled: bool) -> None:
        """Raise ValueError if the policy has a memory, and losses are compiled."""
        if self and is_compiled:
            raise ValueError(
                f"memory.kind {self.kind} and learner.compile exclude each other: a compiled loss would contain every "
                "step of a sequence; leave learner.compile out"
            )

    def check_replay(self, capacity: int, environments: int, segment_length: int, n_step: int, agents: int = 1) -> None:
        """Raise ValueError if the policy has a memory, and the replay may never contain a whole sequence.

        capacity: rows of the replay. environments: of all actors. agents: of each environment.
        """
        steps = self.burn_in + self.sequence_length + n_step - 1
        # A sequence may begin and end within segments, and one segment is being written.
        segments = -(-steps // segment_length) + 2
        needed = environments * agents * segments * (segment_length + 1)
        if self and capacity < needed:
            raise ValueError(
                f"replay.capacity must be at least {needed} rows, for a sequence of {steps} steps (memory.burn_in "
                f"{self.burn_in}, memory.sequence_length {self.sequence_length}, n_step {n_step}) of each of "
                f"{environments} environments{f' with {agents} agents' if agents > 1 else ''}, got {capacity}"
            )

    def check_algorithm(self, name: str) -> None:
        """Raise ValueError if the policy has a memory, and this built-in algorithm does not support one."""
        if self and name in ALGORITHMS and not ALGORITHMS[name].has_memory:
            known = [each for each, settings in ALGORITHMS.items() if settings.has_memory]
            raise ValueError(
                f"memory.kind {self.kind}: expected an algorithm with memory ({', '.join(known)}), got {name}; choose "
                "one of them, or give --memory none"
            )


NO_MEMORY = MemoryConfig()
"""A policy without memory."""
