"""Converts between domain objects and messages. No other module uses both.

Each pair of functions is `NAME_to_proto` and `NAME_from_proto`. A `Pair` (`actorq.wire.fields`) creates both from one
declaration of all fields and their bounds. Segments and tensors have their own functions, for speed. Decoding checks
every field against `actorq.wire.bounds` and raises InvalidInputError. The receiving domain object checks whether a
value fits. Other packages use only the names below, and `bounds`.
"""

from actorq.wire.external import (
    PROTOCOL,
    PlayAnswer,
    PlayOpening,
    PlayReady,
    PlayStep,
    play_answer_to_proto,
    play_opening_from_proto,
    play_opening_to_proto,
    play_ready_to_proto,
    play_step_from_proto,
    play_step_to_proto,
)
from actorq.wire.policies import (
    MAX_POLICY_MESSAGES,
    PolicyAssembler,
    descriptor_from_proto,
    descriptor_to_proto,
    fidelity_request_from_proto,
    hold_request_from_proto,
    page_request_from_proto,
    policy_request_from_proto,
    receipt_from_proto,
    receipt_to_proto,
    retained_from_proto,
    retained_to_proto,
    variant_to_proto,
    watch_request_from_proto,
)
from actorq.wire.processes import (
    node_energy_from_proto,
    node_energy_to_proto,
    process_from_proto,
    process_to_proto,
    processes_from_proto,
)
from actorq.wire.runs import (
    EvaluateRequest,
    Joining,
    StreamOpening,
    actor_report_from_proto,
    actor_report_to_proto,
    actor_self_status_from_proto,
    actor_self_status_to_proto,
    environment_reset_from_proto,
    environment_reset_to_proto,
    evaluate_request_from_proto,
    joining_from_proto,
    joining_to_proto,
    membership_from_proto,
    membership_to_proto,
    role_from_proto,
    role_to_proto,
    run_state_from_proto,
    run_state_to_proto,
    run_status_from_proto,
    run_status_to_proto,
    stream_opening_from_proto,
    stream_opening_to_proto,
    watch_period_from_proto,
)
from actorq.wire.streams import (
    CheckpointHeader,
    Opening,
    Ready,
    Reported,
    StreamAnswer,
    checkpoint_header_from_proto,
    checkpoint_header_to_proto,
    checkpoint_to_protos,
    graph_to_protos,
    opening_from_proto,
    opening_to_proto,
    publication_to_proto,
    ready_from_proto,
    ready_to_proto,
    stream_answer_from_proto,
    stream_answer_to_proto,
    upload_to_proto,
)
from actorq.wire.tensors import tensor_from_proto, tensor_to_proto, timestamp_to_proto
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
