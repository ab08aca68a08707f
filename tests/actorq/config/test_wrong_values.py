"""Wrong values of every setting, from a file or the environment, give errors in this project's own words."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, JsonValue

from actorq.config import settings
from actorq.config.messages.expected import Expected, expectation
from actorq.config.numbers import (
    CountOrAuto,
    Fraction,
    LayerSizes,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Seed,
    whole_number,
)
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq.process import ProcessSettings
from tests.builders.wrong_values import check_words, errors_of_texts, errors_of_values


@pytest.mark.parametrize("model", [RunConfig, ProcessSettings])
def test_a_wrong_value_of_a_file_names_the_setting_and_the_expected_values(model: type[settings.Settings]) -> None:
    errors = errors_of_values(model)
    assert len(errors) > 5 * len(list(settings.leaves(model)))
    for error, setting in errors.items():
        check_words(error)
        assert setting.rpartition(".")[2] in error
        if error.startswith("setting "):
            assert re.search("expected .+, got ", error), error


@pytest.mark.parametrize("model", [RunConfig, ProcessSettings])
def test_a_wrong_text_of_the_environment_names_the_setting_and_the_expected_values(
    model: type[settings.Settings],
) -> None:
    found = [error for leaf in settings.leaves(model) for error in errors_of_texts(model, leaf)]
    assert len(found) > len(list(settings.leaves(model)))
    for error in found:
        check_words(error)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (bool, "true or false"),
        (PositiveInt, "a whole number of at least 1"),
        (Seed, "a whole number from 0 to 9,223,372,036,854,775,807"),
        (Fraction, "a number from 0 to 1"),
        (PositiveFloat | None, "a number above 0, or none"),
        (NonNegativeFloat, "a number of at least 0"),
        (Annotated[float, Field(ge=0, lt=1)], "a number of at least 0 and below 1"),
        (Annotated[int, Field(ge=0, lt=5)], "a whole number from 0 to 4"),
        (Annotated[float, Field(le=2)], "a number of at most 2"),
        (LayerSizes, "a list of one item or more, each a whole number of at least 1"),
        (CountOrAuto, "a whole number of at least 1, or auto"),
        (Literal["tanh", "relu"], "one of tanh, relu"),
        (Annotated[str, Field(max_length=1024)], "text of at most 1,024 characters"),
        (Annotated[str, Expected("a color")] | None, "a color, or none"),
        (Path | None, "a path, or none"),
        (dict[str, JsonValue], "a mapping of names to values"),
        (JsonValue, "text, a number, true, false, null, or a list or mapping of such values"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_type_of_a_setting_in_words(annotation: Any, text: str) -> None:
    assert expectation(annotation) == text


@pytest.mark.parametrize(
    ("tree", "error"),
    [
        ({"dqn": {"hidden_sizes": [64, "x"]}}, "setting 'dqn.hidden_sizes.1': expected a whole number of at least 1"),
        ({"environment_args": {1: 2}}, "setting 'environment_args.1': expected text as a name, got 1"),
        ({"learner": {"device": "gpu"}}, "setting 'learner.device': expected one of auto, cpu, cuda, cuda:N, got"),
        ({"target_return": float("nan")}, "setting 'target_return': expected a finite number from -1e30 to 1e30"),
        (
            {"scheme": "int7"},
            "setting 'scheme': expected one of fp32, int8-weights, .*auto, or a scheme of .*, got 'int7'",
        ),
        ({"seed": True}, "setting 'seed': expected a whole number from 0 to 9,.*, got 'True'"),
        ({"replay": 4}, "setting 'replay': expected a section of settings, got 4"),
    ],
    ids=str,
)
def test_the_error_of_a_value_says_what_it_should_be(tree: dict[str, Any], error: str) -> None:
    with pytest.raises(UserError, match=error):
        settings.build(RunConfig, tree)


def test_a_long_value_is_cut_in_an_error() -> None:
    with pytest.raises(UserError) as caught:
        settings.build(RunConfig, {"seed": "9" * 5_000})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["1000000", "1_000_000", "1e6", "1E6", "+1e6", " 1.0e6 ", "10e5"])
def test_accepts_common_notations_of_large_numbers(text: str) -> None:
    assert whole_number(text) == 1_000_000
    tree = settings.from_environment(RunConfig, {"ACTORQ_MAX_ENVIRONMENT_STEPS": text})
    assert settings.build(RunConfig, tree).max_environment_steps == 1_000_000
    assert settings.build(RunConfig, {"dqn": {"hidden_sizes": ["6_4", "1e2"]}}).dqn.hidden_sizes == (64, 100)


def test_a_large_count_is_exact() -> None:
    assert settings.build(RunConfig, {"max_environment_steps": "1e18"}).max_environment_steps == 10**18
    assert settings.build(RunConfig, {"seed": "9007199254740993"}).seed == 9_007_199_254_740_993


@pytest.mark.parametrize("text", ["1.5", "1e-1", "1M", "0x10", "1e9999", "1e", "_1", "", "٣"])
def test_refuses_a_text_that_is_not_a_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number"):
        whole_number(text)
    with pytest.raises(UserError, match="'max_environment_steps': expected a whole number from 1 to 1e18, got"):
        settings.build(RunConfig, {"max_environment_steps": text})
