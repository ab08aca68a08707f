"""Writes a run to MLflow: `python -m learner_service.reporting.sinks.mlflow_sink`, with rows on standard input."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from actorq.start import fast_imports

with fast_imports():
    import mlflow
    from mlflow.entities import Metric, Param, RunStatus

from learner_service.reporting.sinks.serving import Start, finished, flat, serve

_RUN_TAG = "actorq.run_id"
# MLflow accepts at most 100 parameters and 1000 metrics in a request.
_PARAMETERS = 100


class MLflow:
    """The MLflow run with the run's id as a tag, so that a resumed run continues it."""

    def __init__(self, start: Start) -> None:
        mlflow.set_tracking_uri(start.target)
        self._client = mlflow.MlflowClient(start.target)
        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "actorq")).experiment_id
        earlier = self._client.search_runs([experiment], f"tags.`{_RUN_TAG}` = '{start.run_id}'", max_results=1)
        if earlier:
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, RunStatus.to_string(RunStatus.RUNNING))
            return
        tags = {_RUN_TAG: start.run_id}
        self._id = self._client.create_run(experiment, tags=tags, run_name=start.name).info.run_id
        # MLflow refuses to change a parameter, so a resumed run keeps the parameters of its start.
        parameters = [Param(name, str(value)) for name, value in start.parameters.items()]
        for first in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._id, params=parameters[first : first + _PARAMETERS])

    def add(self, scalars: Mapping[str, float], step: int, wall_time: float) -> None:
        """Log metrics."""
        at = round(wall_time * 1e3)
        self._client.log_batch(self._id, [Metric(name, value, at, step) for name, value in scalars.items()])

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Log the summary's numbers as metrics `summary/...`, and end the run."""
        if summary is None:
            self._client.set_terminated(self._id, RunStatus.to_string(RunStatus.FAILED))
            return
        for name, value in flat(summary, "/", "summary/"):
            if isinstance(value, int | float):
                self._client.log_metric(self._id, name, float(value), step=summary["environment_steps"])
        self._client.set_tag(self._id, "actorq.state", summary["state"])
        ended = RunStatus.FINISHED if finished(summary) else RunStatus.KILLED
        self._client.set_terminated(self._id, RunStatus.to_string(ended))


if __name__ == "__main__":
    sys.exit(serve(MLflow))
