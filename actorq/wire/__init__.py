"""Domain objects to messages and back: the only place that knows both.

Each pair of functions is `NAME_to_proto` and `NAME_from_proto`. Decoding checks what arrays and enums claim and
raises InvalidInputError; whether a value makes sense is for the domain object that receives it.
"""

from actorq.wire.policies import (
    descriptor_from_proto,
    descriptor_to_proto,
    receipt_from_proto,
    receipt_to_proto,
    retained_from_proto,
    retained_to_proto,
)
from actorq.wire.processes import (
    node_energy_from_proto,
    node_energy_to_proto,
    process_from_proto,
    process_to_proto,
)
from actorq.wire.runs import (
    actor_report_from_proto,
    actor_report_to_proto,
    actor_self_status_from_proto,
    actor_self_status_to_proto,
    membership_from_proto,
    membership_to_proto,
    role_from_proto,
    role_to_proto,
    run_state_from_proto,
    run_state_to_proto,
    run_status_from_proto,
    run_status_to_proto,
)
from actorq.wire.tensors import (
    tensor_from_proto,
    tensor_to_proto,
    timestamp_from_proto,
    timestamp_to_proto,
)
from actorq.wire.trajectories import (
    environment_from_proto,
    environment_to_proto,
    episode_from_proto,
    episode_to_proto,
    evaluation_from_proto,
    evaluation_to_proto,
    segment_from_proto,
    segment_to_proto,
)

__all__ = [
    "actor_report_from_proto",
    "actor_report_to_proto",
    "actor_self_status_from_proto",
    "actor_self_status_to_proto",
    "descriptor_from_proto",
    "descriptor_to_proto",
    "environment_from_proto",
    "environment_to_proto",
    "episode_from_proto",
    "episode_to_proto",
    "evaluation_from_proto",
    "evaluation_to_proto",
    "membership_from_proto",
    "membership_to_proto",
    "node_energy_from_proto",
    "node_energy_to_proto",
    "process_from_proto",
    "process_to_proto",
    "receipt_from_proto",
    "receipt_to_proto",
    "retained_from_proto",
    "retained_to_proto",
    "role_from_proto",
    "role_to_proto",
    "run_state_from_proto",
    "run_state_to_proto",
    "run_status_from_proto",
    "run_status_to_proto",
    "segment_from_proto",
    "segment_to_proto",
    "tensor_from_proto",
    "tensor_to_proto",
    "timestamp_from_proto",
    "timestamp_to_proto",
]
