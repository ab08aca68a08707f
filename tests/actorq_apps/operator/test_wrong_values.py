"""Wrong values of every TrainingRun field give errors in this project's own words."""

from actorq_apps.operator.resource.training_run import TrainingRunSpec
from tests.builders.wrong_values import check_words, errors_of_values


def test_reports_a_wrong_value_in_one_line_with_its_field() -> None:
    errors = errors_of_values(TrainingRunSpec, "spec", environment="CartPole-v1")
    assert len(errors) > 200
    for error, field in errors.items():
        check_words(error)
        assert "spec" in error or field.rpartition(".")[2] in error
