"""Reports the progress of a run: its status, its scalars, and its summary at the end."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from actorq.domain.environments import Group, group_returns
from actorq.domain.processes import ProcessStats
from actorq.domain.status import Energy, RunState, RunStatus
from learner_service.actors.intake import IntakeStatistics
from learner_service.networks.precision import FP32
from learner_service.reporting.meters import RateMeter
from learner_service.run.run import Run
from learner_service.sparsity import Flops


class Reporter:
    """Builds the statuses of one run. Owns the meters of recent rates."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps_rate = RateMeter(time.monotonic)
        self._updates_rate = RateMeter(time.monotonic)

    def status(self) -> RunStatus:
        """The present status of the run."""
        run, records, training = self._run, self._run.records, self._run.training
        records.resources.record_self()
        steps = training.replay.total_transitions if training else 0
        updates = training.trainer.updates if training else 0
        stored = training.intake.statistics() if training else IntakeStatistics()
        return RunStatus(
            run_id=records.identity.run_id,
            state=run.lifecycle.state,
            environment_id=records.config.environment,
            algorithm=records.config.algorithm,
            elapsed_s=records.clock.elapsed_s,
            environment_steps=steps,
            environment_steps_per_s=self._steps_rate.rate(steps),
            updates=updates,
            updates_per_s=self._updates_rate.rate(updates),
            samples_per_insert=training.replay.limiter.samples_per_insert_realised if training else 0.0,
            episodes=stored.episodes,
            training_return=stored.mean_return,
            agent_returns=stored.agent_returns,
            groups=records.config.groups,
            evaluation=run.judge.evaluation,
            target_return=run.judge.target_return,
            target_success=records.config.target_success,
            max_environment_steps=records.config.max_environment_steps,
            policy_version=training.publisher.version if training else 0,
            staleness_p50=stored.staleness_p50,
            staleness_p99=stored.staleness_p99,
            emitted=records.emitted,
            quantizer_connected=training.publisher.connected if training else False,
            actors=records.members.statuses(),
            processes=records.resources.processes(),
            energy=records.resources.energy(),
            starved_s=training.replay.limiter.starved_seconds if training else 0.0,
            loss=training.trainer.loss if training else 0.0,
            figures=training.trainer.figures if training else {},
            activation_s=records.activation.median,
            quantization_aware_since=training.quantization_aware.since if training else None,
            replay_bytes=training.replay.nbytes if training else 0,
            batch_bytes=training.batches.nbytes if training else 0,
            multi_step_since=training.multi_step_since if training else None,
            dynamic_capacity=training.dynamic_capacity.status() if training and training.dynamic_capacity else None,
            problem=run.preparation.problem,
            refused_environments=run.preparation.refused,
            storage=training.storage() if training else None,
            flagged_evaluation=run.judge.flagged or run.judge.unconfirmed,
            outdated=records.outdated,
            publishing_problem=training.publisher.problem if training else "",
            precision=str(getattr(training.algorithm, "precision", FP32)) if training else "",
            rollout_queue=training.rollout_queue() if training else None,
            exported_policy=run.lifecycle.export.url,
        )

    def write_events(self) -> None:
        """Send the status to the sinks of scalars."""
        status, records = self.status(), self._run.records
        step = status.updates if records.config.offline else status.environment_steps
        records.events.status(status, time.time(), step)
        if (flops := self._flops()) is not None:
            records.events.flops(flops, status.updates, step, time.time())
        if self._run.training is not None:
            records.events.figures(self._run.training.trainer.figures, step, time.time())

    def _flops(self) -> Flops | None:
        """FLOPs of the networks; None before they are built, and for an algorithm without `flops`."""
        return getattr(self._run.training.algorithm, "flops", None) if self._run.training else None

    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        run, records, status = self._run, self._run.records, self.status()
        evaluation, emitted = status.evaluation, status.emitted
        elapsed = status.elapsed_s
        return {
            "solved": status.state is RunState.SOLVED,
            "state": status.state.value,
            "run_id": status.run_id,
            "environment": status.environment_id,
            "algorithm": status.algorithm,
            "seed": records.config.seed,
            "target_return": status.target_return,
            "target_success": status.target_success,
            "evaluation": evaluation
            and {
                "mean_return": evaluation.mean_return,
                "success_rate": evaluation.success_rate,
                "episodes": len(evaluation.returns),
                "scheme": evaluation.scheme,
                "policy_version": evaluation.policy_version,
                **({"agent_returns": evaluation.mean_agent_returns} if evaluation.agents else {}),
                **_of_groups("group_returns", status.groups, evaluation.mean_agent_returns),
            },
            "training_return": status.training_return,
            **({"training_agent_returns": dict(status.agent_returns)} if status.agent_returns else {}),
            **_of_groups("training_group_returns", status.groups, status.agent_returns),
            "exploring_returns": run.training.intake.statistics().exploring_returns if run.training else None,
            "flagged_evaluation": status.flagged_evaluation,
            "wall_clock_s": round(elapsed, 3),
            "first_transition_s": _rounded(records.clock.first_transition_s),
            "last_transition_s": _rounded(records.clock.last_transition_s),
            "environment_steps": status.environment_steps,
            "environment_steps_per_s": round(status.environment_steps / elapsed, 1),
            "updates": status.updates,
            "precision": status.precision,
            "quantization_aware_since": status.quantization_aware_since,
            "multi_step_since": status.multi_step_since,
            "dynamic_capacity": status.dynamic_capacity and asdict(status.dynamic_capacity),
            "rollout_queue": status.rollout_queue and asdict(status.rollout_queue),
            "updates_per_s": round(status.updates / elapsed, 1),
            "samples_per_insert": round(status.samples_per_insert, 3),
            "policy_versions": status.policy_version,
            "staleness": {"p50": status.staleness_p50, "p99": status.staleness_p99},
            "activation_ms": _rounded(status.activation_s, 1e3, 2),
            "emission_ms": _rounded(records.emission.median, 1e3, 2),
            "flops": _operations(self._flops(), status.updates),
            "replay_bytes": status.replay_bytes,
            "batch_bytes": status.batch_bytes,
            "policy_bytes": emitted
            and {
                "version": emitted.version,
                "scheme": emitted.scheme,
                "fp32": emitted.fp32_size_bytes,
                "emitted": emitted.size_bytes,
            },
            "fidelity": emitted and emitted.fidelity.to_json(),
            "transitions_by_scheme": run.training.intake.statistics().transitions_by_scheme if run.training else {},
            "starved_s": round(status.starved_s, 3),
            "peak_memory_mb": _peaks(status.processes),
            "energy": _energy(status.energy),
            "evaluations_taken": records.evaluations.count,
            "evaluations": list(records.evaluations.curve),
        }


def _operations(flops: Flops | None, updates: int) -> dict[str, Any] | None:
    """FLOPs of an action and of an update, now and for dense networks, and of all updates at the present cost."""
    if flops is None:
        return None
    costs = {
        name: {"flops": round(cost.now), "dense": round(cost.dense), "ratio": round(cost.ratio, 4)}
        for name, cost in (("action", flops.action), ("update", flops.update))
    }
    return {**costs, "training": round(updates * flops.update.now)}


def _peaks(processes: Sequence[ProcessStats]) -> dict[str, float]:
    """The highest resident memory of each process by its name, or by "role/name" if two roles share a name."""
    names = Counter(process.name for process in processes)
    keys = (each.name if names[each.name] == 1 else f"{each.role}/{each.name}" for each in processes)
    return {key: round(each.peak_resident_bytes / 1e6, 1) for key, each in zip(keys, processes, strict=True)}


def _energy(energy: Energy) -> dict[str, Any]:
    """The measured energy.

    Its values are None without a measurement, for example in a run shorter than the meter's period.
    """
    if energy.kwh <= 0:
        method = f"not measured ({energy.method.removeprefix('unavailable: ')})"
        return {"kwh": None, "co2_kg": None, "method": method, "per_service": {}}
    services = {name: {"kwh": kwh} for name, kwh in energy.kwh_per_service.items()}
    return {"kwh": energy.kwh, "co2_kg": energy.co2_kg, "method": energy.method, "per_service": services}


def _rounded(seconds: float | None, per_second: float = 1.0, digits: int = 3) -> float | None:
    return None if seconds is None else round(seconds * per_second, digits)


def _of_groups(name: str, groups: Sequence[Group], returns: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """An entry with the return of each group; none without groups."""
    found = group_returns(groups, returns)
    return {name: found} if found else {}
