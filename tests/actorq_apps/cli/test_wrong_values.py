"""Wrong values of each command's settings give errors in this project's own words."""

import re

import pytest

from actorq.config.settings import Settings
from actorq_apps.cli.certificates import CertificatesSettings
from actorq_apps.cli.evaluate import EvaluateSettings
from actorq_apps.cli.reset_environment import ResetSettings
from actorq_apps.cli.status import StatusSettings
from actorq_apps.cli.train import TrainSettings
from actorq_apps.meter.__main__ import MeterProcessSettings
from actorq_apps.sweep.space import Dimension
from tests.builders.wrong_values import check_words, errors_of_values

COMMANDS = (TrainSettings, EvaluateSettings, StatusSettings, ResetSettings, CertificatesSettings, MeterProcessSettings)


@pytest.mark.parametrize("model", COMMANDS)
def test_a_wrong_value_names_the_setting_and_the_expected_values(model: type[Settings]) -> None:
    errors = errors_of_values(model)
    assert errors
    for error in errors:
        check_words(error)
        assert re.search("setting '.*expected .+, got ", error), error


def test_a_wrong_search_file_names_the_expected_values() -> None:
    errors = errors_of_values(Dimension, type="float", low=1.0, high=2.0)
    assert len(errors) > 20
    for error in errors:
        check_words(error)
        assert "expected" in error
