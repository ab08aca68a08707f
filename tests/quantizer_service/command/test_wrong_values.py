"""Wrong values of the settings of `actorq export` and `actorq quantize`, in this project's own words."""

import re

import pytest

from actorq.config.settings import Settings
from quantizer_service.command.command import QuantizeSettings
from quantizer_service.command.export import ExportSettings
from quantizer_service.process import QuantizerProcessSettings
from tests.builders.wrong_values import check_words, errors_of_values


@pytest.mark.parametrize("model", [ExportSettings, QuantizeSettings, QuantizerProcessSettings])
def test_a_wrong_value_names_the_setting_and_the_expected_values(model: type[Settings]) -> None:
    errors = errors_of_values(model)
    assert errors
    for error in errors:
        check_words(error)
        assert re.search("^unknown setting|setting '.*expected .+, got ", error), error
