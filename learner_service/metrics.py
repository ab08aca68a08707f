"""The learner's Prometheus metrics, built from the run's status at each scrape."""

from collections.abc import Iterator

from prometheus_client import Metric

from actorq.domain.status import RunState, RunStatus
from actorq.domain.trajectory import Role
from actorq.telemetry.metrics import counter, gauge, labelled_counter, labelled_gauge
from learner_service.actors.intake import IntakeStatistics
from learner_service.report import Reporter
from learner_service.run.run import Run

_JOULES_PER_KWH = 3.6e6
_GRAMS_PER_KG = 1e3
# Processes name their own service. Unknown names share one label, so that the number of time series stays bounded.
_SERVICES = ("learner", "quantizer", "actor", "evaluator", "meter")
_OTHER = "other"


def learner_metrics(run: Run, reporter: Reporter) -> Iterator[Metric]:
    """The metric families of one run; none until the run is restored. Call on the event loop."""
    if not run.lifecycle.restored.is_set():
        # The counters would fall to 0 and return, and a rate would count all of them again.
        return
    status = reporter.status()
    yield from _progress(run, status)
    yield from _policies(status)
    yield from _data(run, status)
    yield from _uploads(run)
    yield from _scaling(run)
    yield from _energy(run)


def _progress(run: Run, status: RunStatus) -> Iterator[Metric]:
    evaluation = status.evaluation
    yield labelled_gauge(
        "actorq_learner_run_info",
        "Always 1; the labels identify the run.",
        ("run_id", "environment", "algorithm", "scheme"),
        {(status.run_id, status.environment_id, status.algorithm, run.records.config.scheme): 1},
    )
    yield labelled_gauge(
        "actorq_learner_state",
        "1 for the state of the run, 0 for all others.",
        ("state",),
        {(state.value,): float(state is status.state) for state in RunState},
    )
    yield gauge("actorq_learner_elapsed_seconds", "Duration of the run, over restarts.", status.elapsed_s)
    yield gauge(
        "actorq_learner_evaluation_return",
        "Mean return of the newest evaluation: greedy episodes of the served policy.",
        evaluation.mean_return if evaluation else None,
    )
    yield gauge(
        "actorq_learner_training_return", "Mean return of the last 100 exploring episodes.", status.training_return
    )
    yield gauge("actorq_learner_target_return", "Evaluation return that ends the run.", status.target_return)
    yield gauge(
        "actorq_learner_evaluation_success_rate",
        "Success rate of the newest evaluation, in environments that report success.",
        evaluation.success_rate if evaluation else None,
    )
    yield gauge("actorq_learner_target_success_rate", "Success rate that ends the run.", status.target_success)
    yield counter("actorq_learner_episodes", "Exploring episodes that have ended.", status.episodes)
    yield counter("actorq_learner_environment_steps", "Transitions stored.", status.environment_steps)
    yield gauge("actorq_learner_environment_steps_limit", "Transitions that end the run.", status.max_environment_steps)
    yield counter(
        "actorq_learner_updates",
        "Gradient updates; falls back to the checkpoint when a killed learner restarts.",
        status.updates,
    )
    yield gauge("actorq_learner_loss", "Loss of a recent update.", status.loss)


def _policies(status: RunStatus) -> Iterator[Metric]:
    emitted = status.emitted
    yield gauge("actorq_learner_policy_version", "Newest version that the learner published.", status.policy_version)
    yield gauge(
        "actorq_learner_outdated",
        "1 if an actor knew a higher version or epoch of the run than this learner, else 0.",
        float(bool(status.outdated)),
    )
    yield gauge(
        "actorq_learner_emitted_policy_version",
        "Newest version whose receipt came back from the quantizer.",
        emitted.version if emitted else None,
    )
    yield gauge(
        "actorq_learner_quantizer_connected",
        "1 while the stream to the quantizer is open, else 0.",
        float(status.quantizer_connected),
    )
    yield labelled_gauge(
        "actorq_learner_staleness_versions",
        "Versions by which the acting policies were behind the newest one, over all stored transitions.",
        ("percentile",),
        {("50",): status.staleness_p50, ("99",): status.staleness_p99},
    )
    yield gauge(
        "actorq_learner_activation_seconds",
        "Median time from a snapshot of the policy to its first action, over the last 1000.",
        status.activation_s,
    )


def _data(run: Run, status: RunStatus) -> Iterator[Metric]:
    training = run.training
    stored = training.intake.statistics() if training else IntakeStatistics()
    yield gauge(
        "actorq_learner_samples_per_insert", "Mean number of samples of a transition.", status.samples_per_insert
    )
    yield counter("actorq_learner_starved_seconds", "Time in which the trainer waited for data.", status.starved_s)
    yield gauge(
        "actorq_learner_replay_transitions",
        "Transitions that can be sampled now.",
        training.replay.transitions if training else None,
    )
    yield gauge(
        "actorq_learner_replay_bytes",
        "Size of the replay's files when full.",
        training.replay.nbytes if training else None,
    )
    yield from _storage(status)
    dynamic = status.dynamic_capacity
    yield gauge(
        "actorq_learner_replay_policy_distance",
        "With dynamic_capacity.enabled: distance between the policy's and the oldest stored actions at the last check.",
        dynamic.distance if dynamic else None,
    )
    yield counter(
        "actorq_learner_replay_dropped_transitions",
        "With dynamic_capacity.enabled: transitions dropped because they were too far from the policy.",
        dynamic.dropped_transitions if dynamic else None,
    )
    yield from _queue(status)
    # With a value for actors, the alert about missing actors would fire in an offline run.
    roles: tuple[Role, ...] = ("evaluator",) if run.records.config.offline else ("actor", "evaluator")
    yield labelled_gauge(
        "actorq_learner_actors",
        "Actors and evaluators with an open stream; only evaluators in an offline run.",
        ("role",),
        {(role,): run.records.members.connected(role) for role in roles},
    )
    yield counter(
        "actorq_learner_calibration_rows_left_out",
        "Observations left out of a version's fidelity, because they are far outside those of most actors.",
        stored.left_out,
    )
    yield labelled_counter(
        "actorq_learner_segments",
        "Received segments. The result is stored, duplicate or refused.",
        ("result",),
        {
            ("stored",): stored.stored_segments,
            ("duplicate",): stored.duplicate_segments,
            ("refused",): run.streams.refused_segments,
        },
    )


def _queue(status: RunStatus) -> Iterator[Metric]:
    queue = status.rollout_queue
    yield gauge(
        "actorq_learner_queue_waiting_transitions",
        "With an on-policy algorithm: transitions that are stored and not yet used.",
        queue.waiting_transitions if queue else None,
    )
    yield counter(
        "actorq_learner_queue_dropped_transitions",
        "With an on-policy algorithm: transitions dropped because their policy was too old.",
        queue.dropped_transitions if queue else None,
    )
    yield gauge(
        "actorq_learner_mismatch",
        "With an on-policy algorithm: mean |log pi - log mu| over the run, with pi the FP32 policy and mu the "
        "quantized policy of the acting version.",
        queue.mismatch if queue else None,
    )
    yield gauge(
        "actorq_learner_divergence",
        "With an on-policy algorithm: the same mean with pi the newest FP32 policy.",
        queue.divergence if queue else None,
    )
    yield gauge(
        "actorq_learner_policy_lag_versions",
        "With an on-policy algorithm: mean staleness of the used transitions, in versions.",
        queue.policy_lag if queue else None,
    )


def _storage(status: RunStatus) -> Iterator[Metric]:
    storage = status.storage
    yield gauge(
        "actorq_learner_disk_free_bytes",
        "Bytes that may still be written to the disk of the run.",
        storage.disk_free_bytes if storage else None,
    )
    yield gauge(
        "actorq_learner_disk_low",
        "1 while actors wait because the disk of the run is full, else 0.",
        float(storage.disk_low) if storage else None,
    )
    yield gauge(
        "actorq_learner_replay_unflushed_transitions",
        "Transitions that a power cut would lose now.",
        storage.unflushed_transitions if storage else None,
    )
    yield labelled_counter(
        "actorq_learner_replay_missing_segments",
        "Stored segments that the replay has lost. The reason is damaged (wrong checksum), dropped (after a power "
        "failure) or lost (also lost by the actors).",
        ("reason",),
        {}
        if storage is None
        else {
            ("damaged",): storage.damaged_segments,
            ("dropped",): storage.dropped_segments,
            ("lost",): storage.lost_segments,
        },
    )


def _uploads(run: Run) -> Iterator[Metric]:
    uploader = run.uploader
    yield gauge(
        "actorq_learner_object_storage_age_seconds",
        "Age of the newest checkpoint in object storage; before the first upload, time since the learner's start.",
        uploader.age_s if uploader else None,
    )
    yield gauge(
        "actorq_learner_object_storage_period_seconds",
        "Setting checkpoint.period_s: time between two copies of checkpoints.",
        run.records.config.checkpoint.period_s if uploader else None,
    )
    yield counter(
        "actorq_learner_object_storage_failures",
        "Failed uploads to object storage. The learner tries again.",
        uploader.failures if uploader else None,
    )


def _scaling(run: Run) -> Iterator[Metric]:
    scaling = run.records.scaling
    yield gauge(
        "actorq_learner_starved_ratio",
        "Share of the last minute in which the trainer waited for data.",
        scaling.starved_fraction,
    )
    yield gauge(
        "actorq_learner_blocked_ratio",
        "Share of the actors' time, in the last minute, in which they waited for credit.",
        scaling.blocked_fraction,
    )
    yield gauge(
        "actorq_learner_demand_steps_per_second",
        "Environment steps per second that the learner uses while it does not wait.",
        scaling.demand,
    )
    yield gauge(
        "actorq_learner_actor_supply_steps_per_second",
        "Environment steps per second that one actor makes while it does not wait.",
        scaling.supply_per_actor,
    )
    yield gauge(
        "actorq_learner_desired_actors",
        "Actors that the run can use; the connected actors until that is measured; 0 when the run is over.",
        scaling.desired_actors if run.lifecycle.wants_actors else 0,
    )


def _energy(run: Run) -> Iterator[Metric]:
    joules: dict[tuple[str, ...], float] = {}
    grams: dict[tuple[str, ...], float] = {}
    for service, share in run.records.resources.ledger.services().items():
        labels = (service if service in _SERVICES else _OTHER,)
        joules[labels] = joules.get(labels, 0.0) + share.kwh * _JOULES_PER_KWH
        grams[labels] = grams.get(labels, 0.0) + share.co2_kg * _GRAMS_PER_KG
    yield labelled_counter(
        "actorq_learner_energy_joules",
        "Energy used by the run's processes, as measured by its meters.",
        ("service",),
        joules,
    )
    yield labelled_counter(
        "actorq_learner_co2_grams", "Emissions of that energy in CO2 equivalents.", ("service",), grams
    )
