"""Sends a run's scalars to its sinks: TensorBoard's event file and experiment trackers."""

import io
import os
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from actorq.domain.environments import Group, group_returns
from actorq.domain.status import RunStatus
from actorq.domain.trajectory import Evaluation
from actorq.statefiles.files import append_whole
from actorq.statefiles.tolerance import Tolerated
from learner_service.sparsity import Flops


class Sink(Protocol):
    """Receives the scalars of a run. `add` returns at once. No method raises an exception."""

    def add(self, scalars: Mapping[str, float], step: int, wall_time: float) -> None:
        """Add the scalars of an environment step. wall_time: unix seconds."""

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Write everything; may block for seconds. summary: content of summary.json; None when the run has failed."""


class EventFile:
    """The file that TensorBoard reads. On a full disk events are lost, but the file stays whole. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: io.FileIO | None = None
        self._lock = threading.Lock()
        self._writes = Tolerated(f"{directory.name}: the event file")

    def add(self, scalars: Mapping[str, float], step: int, wall_time: float) -> None:
        """Write the scalars of an environment step. wall_time: unix seconds."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = Event(wall_time=wall_time, step=step, summary=Summary(value=values))
        with self._lock:
            self._writes.attempt(lambda: self._append(event))

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Close the file. Further scalars would create another file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

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


class EventLog:
    """Sends scalars to sinks. Thread-safe.

    The step of each scalar is the number of environment steps. In a run without actors, it is the number of updates.
    groups: the groups of agents whose returns it sends.
    """

    def __init__(self, sinks: Sequence[Sink], groups: Sequence[Group] = ()) -> None:
        self._sinks, self._groups = sinks, groups

    def status(self, status: RunStatus, wall_time: float, step: int | None = None) -> None:
        """Write the scalars of a status. wall_time: unix seconds. step: by default the environment steps."""
        scalars: dict[str, float | None] = {
            "training/updates": status.updates,
            "training/loss": status.loss,
            "training/updates_per_s": status.updates_per_s,
            "training/samples_per_insert": status.samples_per_insert,
            "training/starved_s": status.starved_s,
            "training/quantization_aware_since_update": status.quantization_aware_since,
            "training/multi_step_since_environment_step": status.multi_step_since,
            "actors/environment_steps_per_s": status.environment_steps_per_s,
            "actors/staleness_p50_versions": status.staleness_p50,
            "actors/staleness_p99_versions": status.staleness_p99,
            "return/training": status.training_return,
            **self._returns("training", status.agent_returns),
            "policy/version": status.policy_version,
            "policy/activation_ms": None if status.activation_s is None else status.activation_s * 1e3,
            "energy/wh": status.energy.kwh * 1e3,
            "energy/co2_g": status.energy.co2_kg * 1e3,
            **{f"energy/{service}_wh": kwh * 1e3 for service, kwh in status.energy.kwh_per_service.items()},
        }
        if (dynamic := status.dynamic_capacity) is not None:
            scalars |= {
                "replay/transitions": dynamic.transitions,
                "replay/drops": dynamic.drops,
                "replay/dropped_transitions": dynamic.dropped_transitions,
                "replay/policy_distance": dynamic.distance,
            }
        if status.rollout_queue is not None:
            scalars |= {f"queue/{name}": value for name, value in asdict(status.rollout_queue).items()}
        if status.emitted is not None:
            fidelity = status.emitted.fidelity
            scalars |= {
                "policy/bytes": status.emitted.size_bytes,
                "fidelity/relative_mean_error": fidelity.relative_mean_error,
                "fidelity/relative_max_error": fidelity.relative_max_error,
                "fidelity/float_layers": len(fidelity.float_layers),
                "fidelity/refused_rungs": len(fidelity.refused),
                "fidelity/argmax_agreement": fidelity.argmax_agreement,
                "fidelity/mean_kl": fidelity.mean_kl,
                "fidelity/max_kl": fidelity.max_kl,
                "fidelity/state_drift": fidelity.state_drift,
            }
        self._add(scalars, status.environment_steps if step is None else step, wall_time)

    def flops(self, flops: Flops, updates: int, step: int, wall_time: float) -> None:
        """Write the FLOPs of the present networks, and of all updates so far at this cost."""
        scalars = {
            "flops/action": flops.action.now,
            "flops/action_to_dense": flops.action.ratio,
            "flops/update": flops.update.now,
            "flops/update_to_dense": flops.update.ratio,
            "flops/training": updates * flops.update.now,
        }
        self._add(scalars, step, wall_time)

    def figures(self, figures: Mapping[str, float], step: int, wall_time: float) -> None:
        """Write an algorithm's figures of a batch or rollout, such as its entropy."""
        if figures:
            self._add({f"training/{name}": value for name, value in figures.items()}, step, wall_time)

    def evaluation(self, evaluation: Evaluation, step: int, wall_time: float) -> None:
        """Write the return of an evaluation, those of its agents, and its success rate if there is one."""
        scalars = {
            "return/evaluation": evaluation.mean_return,
            "success/evaluation": evaluation.success_rate,
            **self._returns("evaluation", evaluation.mean_agent_returns),
        }
        self._add(scalars, step, wall_time)

    def _returns(self, source: str, returns: Mapping[str, float]) -> dict[str, float]:
        """The returns of agents, by name, and of groups."""
        of_groups = group_returns(self._groups, returns)
        return {
            **{f"return/{source}/{agent}": value for agent, value in returns.items()},
            **{f"return/{source}/group {name}": value for name, value in of_groups.items()},
        }

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Close the sinks. May block for seconds. summary: content of summary.json; None when the run has failed."""
        # The sinks close in parallel, because each may wait for its tracker.
        with ThreadPoolExecutor(len(self._sinks)) as closing:
            list(closing.map(lambda sink: sink.close(summary), self._sinks))

    def _add(self, scalars: Mapping[str, float | None], step: int, wall_time: float) -> None:
        known = {name: value for name, value in scalars.items() if value is not None}
        for sink in self._sinks:
            sink.add(known, step, wall_time)
