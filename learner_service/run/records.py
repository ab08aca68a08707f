"""The records of a run: members, evaluations, resources, times, training. Reports and checkpoints read them."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.domain.policy import PolicyDescriptor
from actorq.domain.status import ActorReport, Receipt
from actorq.errors import InvalidInputError
from actorq.telemetry.process_stats import measure_process
from learner_service.actors.members import Member, Members
from learner_service.actors.schemes import policy_of
from learner_service.energy.ledger import EnergyLedger
from learner_service.reporting.events import EventFile, EventLog
from learner_service.reporting.fallbacks import Fallbacks
from learner_service.reporting.meters import Samples
from learner_service.reporting.resources import Resources
from learner_service.reporting.sinks.process_sink import process_sinks
from learner_service.run.evaluations import EvaluationLog
from learner_service.run.identity import RunClock, RunIdentity
from learner_service.run.scaling import ScalingSignal
from learner_service.training.training import Training


class Records:
    """The records of one run. Lives on the event loop; `values`, `sync`, `clock` and `events` are thread-safe.

    training: the parts that depend on the environment; None before they are built, and after a reset.
    activation: seconds from a snapshot to its first action. emission: the quantizer's seconds per version.
    outdated: a version or epoch of the run that an actor knew and this learner did not; empty if there was none.
    """

    def __init__(self, config: RunConfig, identity: RunIdentity, restored: Mapping[str, Any], node: str) -> None:
        """restored: the result of `values` in the checkpoint that the run resumes from; empty without one."""
        directory = identity.directory
        self.config = config
        self.identity = identity
        self.members = Members(identity.process, time.monotonic)
        self.evaluations = EvaluationLog(directory / "evaluations.jsonl")
        self.evaluations.sequences.is_member = self.members.has_key
        self.resources = Resources(EnergyLedger.from_state(restored["energy"]) if restored else None, node)
        evaluated_s = next((point["wall_clock_s"] for point in reversed(self.evaluations.curve)), 0.0)
        known_s = max(evaluated_s, restored.get("elapsed_s", 0.0))
        self.clock = RunClock(directory, measure_process("learner", "learner").started_at, known_s=known_s)
        if self.clock.first_transition_s is None:
            self.clock.first_transition_s = restored.get("first_transition_s")
        trackers = process_sinks(config, identity.run_id, directory)
        self.events = EventLog((EventFile(directory / "events"), *trackers), config.groups)
        self.activation = Samples()
        self.emission = Samples()
        self.outdated = ""
        self._fallbacks = Fallbacks(lambda: self.training.intake.widest() if self.training else "")
        self.forget_training()

    @property
    def emitted(self) -> PolicyDescriptor | None:
        """The newest policy in the run's scheme, or with "auto" in the scheme of most actors; None before the first."""
        policies = self._receipt.policies if self._receipt else ()
        return policy_of(self.config.scheme, policies, self.members.statuses())

    def record_report(self, member: Member, report: ActorReport) -> None:
        """Record an actor's report. Raises InvalidInputError when it describes another process."""
        name, role = report.process.name, report.process.role
        if (name, role) != (member.name, member.role):
            raise InvalidInputError(
                f"report.process: expected {member.role} {member.name!r} itself, got {role} {name!r}"
            )
        # Members keep the report without activations, because a status has up to a thousand reports in one message.
        self.members.record_report(member, replace(report, activation_seconds=()))
        self.activation.add(report.activation_seconds)
        self.resources.record(report.process)
        if member.role == "actor":
            self.scaling.record_report(member.name, member.incarnation, report.waited_seconds)

    def record_receipt(self, receipt: Receipt) -> None:
        """Record the quantizer's receipt for a version. Quantization-aware training follows its policy."""
        self._receipt: Receipt | None = receipt
        self.emission.add((receipt.emit_seconds,))
        self.resources.record(receipt.process)
        self._fallbacks.record(receipt.policies)
        if self.training is not None and (emitted := self.emitted) is not None:
            self.training.quantization_aware.follow(emitted)

    def forget_training(self) -> None:
        """Forget the training, its receipt and its scaling measurements."""
        self.training: Training | None = None
        self._receipt = None
        self.scaling = ScalingSignal(self.config.rate_limiter.samples_per_insert, time.monotonic)

    def values(self) -> dict[str, object]:
        """The values for a checkpoint."""
        return {
            "resets": self.identity.resets,
            "epoch": self.identity.lineage.epoch,
            "energy": self.resources.ledger.state(),
            "elapsed_s": self.clock.elapsed_s,
            "first_transition_s": self.clock.first_transition_s,
        }

    def sync(self) -> None:
        """Block until the time and the evaluations are on the disk."""
        self.clock.beat()
        self.evaluations.sync()

    def close(self) -> None:
        """Close the files."""
        self.events.close()
        self.evaluations.close()
