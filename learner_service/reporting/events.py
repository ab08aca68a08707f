"""Writes the TensorBoard events of a run."""

import io
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from actorq.domain.status import RunStatus
from actorq.domain.trajectory import Evaluation
from actorq.statefiles.files import append_whole
from actorq.statefiles.tolerance import Tolerated
from learner_service.sparsity import Flops


class EventLog:
    """Writes scalars to an event file in `directory`. The step of each scalar is the number of environment steps.

    On a full disk events are lost, but the file stays whole.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: io.FileIO | None = None
        self._writes = Tolerated(f"{directory.name}: the event file")

    def status(self, status: RunStatus, wall_time: float) -> None:
        """Write the scalars of a status. wall_time: unix seconds."""
        scalars = {
            "training/updates": status.updates,
            "training/loss": status.loss,
            "training/updates_per_s": status.updates_per_s,
            "training/samples_per_insert": status.samples_per_insert,
            "training/starved_s": status.starved_s,
            "actors/environment_steps_per_s": status.environment_steps_per_s,
            "actors/staleness_p50_versions": status.staleness_p50,
            "actors/staleness_p99_versions": status.staleness_p99,
            "policy/version": status.policy_version,
            "energy/wh": status.energy.kwh * 1e3,
            "energy/co2_g": status.energy.co2_kg * 1e3,
        }
        if status.training_return is not None:
            scalars["return/training"] = status.training_return
        if status.quantization_aware_since is not None:
            scalars["training/quantization_aware_since_update"] = status.quantization_aware_since
        if status.multi_step_since is not None:
            scalars["training/multi_step_since_environment_step"] = status.multi_step_since
        if (dynamic := status.dynamic_capacity) is not None:
            scalars["replay/transitions"] = dynamic.transitions
            scalars["replay/drops"] = dynamic.drops
            scalars["replay/dropped_transitions"] = dynamic.dropped_transitions
            if dynamic.distance is not None:
                scalars["replay/policy_distance"] = dynamic.distance
        if (queue := status.rollout_queue) is not None:
            scalars["queue/waiting_transitions"] = queue.waiting_transitions
            scalars["queue/dropped_transitions"] = queue.dropped_transitions
            means = {"mismatch": queue.mismatch, "divergence": queue.divergence, "policy_lag": queue.policy_lag}
            scalars |= {f"queue/{name}": mean for name, mean in means.items() if mean is not None}
        if status.activation_s is not None:
            scalars["policy/activation_ms"] = status.activation_s * 1e3
        if status.emitted is not None:
            fidelity = status.emitted.fidelity
            scalars["policy/bytes"] = status.emitted.size_bytes
            scalars["fidelity/relative_mean_error"] = fidelity.relative_mean_error
            scalars["fidelity/relative_max_error"] = fidelity.relative_max_error
            scalars["fidelity/float_layers"] = len(fidelity.float_layers)
            scalars["fidelity/refused_rungs"] = len(fidelity.refused)
            if fidelity.argmax_agreement is not None:
                scalars["fidelity/argmax_agreement"] = fidelity.argmax_agreement
            if fidelity.mean_kl is not None and fidelity.max_kl is not None:
                scalars["fidelity/mean_kl"] = fidelity.mean_kl
                scalars["fidelity/max_kl"] = fidelity.max_kl
        for service, kwh in status.energy.kwh_per_service.items():
            scalars[f"energy/{service}_wh"] = kwh * 1e3
        self._add(scalars, status.environment_steps, wall_time)

    def flops(self, flops: Flops, updates: int, environment_steps: int, wall_time: float) -> None:
        """Write the FLOPs of the present networks, and of all updates so far at this cost."""
        scalars = {
            "flops/action": flops.action.now,
            "flops/action_to_dense": flops.action.ratio,
            "flops/update": flops.update.now,
            "flops/update_to_dense": flops.update.ratio,
            "flops/training": updates * flops.update.now,
        }
        self._add(scalars, environment_steps, wall_time)

    def figures(self, figures: Mapping[str, float], environment_steps: int, wall_time: float) -> None:
        """Write an on-policy algorithm's figures of a rollout, such as its entropy."""
        if figures:
            self._add({f"training/{name}": value for name, value in figures.items()}, environment_steps, wall_time)

    def evaluation(self, evaluation: Evaluation, environment_steps: int, wall_time: float) -> None:
        """Write the return of an evaluation."""
        self._add({"return/evaluation": evaluation.mean_return}, environment_steps, wall_time)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _add(self, scalars: dict[str, float], step: int, wall_time: float) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = Event(wall_time=wall_time, step=step, summary=Summary(value=values))
        self._writes.attempt(lambda: self._append(event))

    def _append(self, event: Event) -> None:
        if self._file is None:
            self._file = self._begin(event.wall_time)
        append_whole(self._file, _record(event))

    def _begin(self, wall_time: float) -> io.FileIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        host, number = socket.gethostname(), uuid.uuid4().hex[:8]
        path = self._directory / f"events.out.tfevents.{int(wall_time):010d}.{host}.{os.getpid()}.{number}"
        file = io.FileIO(path, "ab")
        try:
            append_whole(file, _record(Event(wall_time=wall_time, file_version="brain.Event:2")))
        except OSError:
            file.close()
            path.unlink()
            raise
        return file


def _record(event: Event) -> bytes:
    """The event in the framing of TensorBoard's files: length, content, and checksums of both."""
    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()
