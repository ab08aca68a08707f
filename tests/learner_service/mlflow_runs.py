"""What MLflow holds of the runs of a test."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run


def mlflow_runs(target: str) -> "list[Run]":
    client = _client(target)
    experiment = client.get_experiment_by_name("actorq")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def mlflow_scalars(target: str, run: "Run", name: str) -> "list[Metric]":
    return list(_client(target).get_metric_history(run.info.run_id, name))


def _client(target: str) -> "MlflowClient":
    # The import lasts a second, for which each process that collects the tests would wait.
    from mlflow import MlflowClient

    return MlflowClient(target)
