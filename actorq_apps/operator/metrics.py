"""The operator's Prometheus metrics, computed for each scrape."""

from collections.abc import Iterator

from prometheus_client import Metric

from actorq.telemetry.metrics import gauge, histogram, labelled_counter, labelled_gauge
from actorq_apps.operator.controller import Controller, DueQueue
from actorq_apps.operator.leader import Leader
from actorq_apps.operator.reconcile import Key


def operator_metrics(leader: Leader, controller: Controller, queue: DueQueue[Key]) -> Iterator[Metric]:
    """The metric families of one replica. A replica that does not lead manages no runs."""
    yield gauge("actorq_operator_leading", "1 if this replica leads, otherwise 0.", float(leader.leads))
    yield labelled_gauge(
        "actorq_operator_runs",
        "TrainingRuns by the state in their status; only the leading replica counts them.",
        ("state",),
        {(state,): count for state, count in controller.reconciler.runs_by_state().items()},
    )
    yield labelled_counter(
        "actorq_operator_reconciles",
        "Reconciliations of a run: done, conflict (the object changed meanwhile) or failed. The last two are repeated.",
        ("result",),
        {(result,): count for result, count in controller.reconciles.items()},
    )
    yield histogram("actorq_operator_reconcile_seconds", "Duration of a reconciliation.", controller.reconcile_seconds)
    yield gauge("actorq_operator_due_runs", "Runs that wait for a reconciliation now.", queue.due())
