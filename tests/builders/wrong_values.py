"""Wrong values for every setting of a tree, and the errors that they cause."""

import datetime
from collections.abc import Iterator
from typing import Any

from actorq.config import settings
from actorq.config.settings import Leaf, Settings
from actorq.errors import UserError

TEXTS = ("", "  ", "abc", "1M", "1.5", "-1", "0", "nan", "inf", "1e400", "9" * 400, "a\nb", "2020-13-01", "[", "{a: }")
# As a YAML file may have them.
VALUES: tuple[Any, ...] = (
    *TEXTS,
    *(None, True, -1, 0, 1.5, float("nan"), float("inf"), 1e300, 10**30, datetime.date(2020, 1, 1), b"x"),
    *([], ["x"], [[1]], [-1], [None], {}, {1: 2}, {"x": datetime.date(2020, 1, 1)}, {"a": {"b": [{"c": 1}]}}),
)
# What the library says of a wrong value, in its own words.
LIBRARY_WORDS = (
    *("Input should", "value should", "valid integer", "valid string", "valid number", "valid list", "valid tuple"),
    *("valid dictionary", "value_error", "For further information", "pydantic", "unable to parse", "Value error"),
    *("should match pattern", "should have at", "Field required", "Extra inputs", "not a valid", "greater than"),
)


def sections(model: type[Settings], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all sections of a tree."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield (*path, name)
            yield from sections(field.annotation, (*path, name))


def at(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """A tree with this value at this path."""
    tree: Any = value
    for name in reversed(path):
        tree = {name: tree}
    assert isinstance(tree, dict)
    return tree


def errors_of_values(model: type[Settings], section: str = "", **required: object) -> dict[str, str]:
    """The errors of all wrong values of all settings and sections, and the setting of each."""
    found: dict[str, str] = {}
    paths = [*(leaf.path for leaf in settings.leaves(model)), *sections(model)]
    for path in paths:
        for value in VALUES:
            try:
                settings.build(model, required, at(path, value), section=section)
            except UserError as error:
                found[str(error)] = ".".join(path)
    return found


def errors_of_texts(model: type[Settings], leaf: Leaf) -> Iterator[str]:
    """The errors of all wrong texts of one setting in an environment variable."""
    for text in TEXTS:
        try:
            settings.build(model, settings.from_environment(model, {leaf.variable: text}))
        except UserError as error:
            yield str(error)


def check_words(error: str) -> None:
    """Assert that an error is one line in this project's words."""
    assert "\n" not in error, error
    assert not [word for word in LIBRARY_WORDS if word in error], error
