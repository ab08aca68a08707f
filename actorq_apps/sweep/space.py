"""The search space: settings of a run, each with a range or a list of values."""

import math
import re
import typing
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import PrivateAttr, model_validator

from actorq.config import settings
from actorq.config.messages.suggestions import suggestion
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings, value_text
from actorq.config.unread import unread
from actorq.errors import UserError

Value = float | int | str | bool | None
# These settings define the task. Trials that differ in them cannot be compared.
_OF_THE_TASK = (
    *("environment", "environment_args", "environment_wrappers", "image_layout", "critic_leaves"),
    *("agents.identity", "agents.critic", "policies", "target_return", "max_environment_steps"),
)
_RANGE = re.compile(r"(log:)?(.+?)\.\.(.+?)(?:\.\.(.+))?")
_MOST_CELLS = 10_000
_FORMS = "NAME=LOW..HIGH, NAME=LOW..HIGH..STEP, NAME=log:LOW..HIGH or NAME=VALUE|VALUE"


class Dimension(Settings):
    """One searched setting: a range from `low` to `high`, or `values`.

    type: float; log, a range on a logarithmic scale; int; or categorical.
    step: distance between the values of a range.
    """

    type: Literal["float", "log", "int", "categorical"]
    low: float | None = None
    high: float | None = None
    step: float | None = None
    values: tuple[Any, ...] = ()
    # Whether the range contains only whole numbers.
    _is_int: bool = PrivateAttr(False)

    @model_validator(mode="after")
    def _is_whole(self) -> "Dimension":
        if self.type == "categorical":
            if len(set(self.choices)) < 2 or (self.low, self.high, self.step) != (None, None, None):
                raise ValueError(f"expected at least two different values and no range, got {list(self.values)}")
            return self
        if self.low is None or self.high is None or self.values:
            raise ValueError(f"expected low and high for type {self.type}, and no values")
        if not self.low < self.high:
            raise ValueError(f"expected low below high, got {self.low:g} to {self.high:g}")
        if self.type == "log" and (self.low <= 0 or self.step is not None):
            raise ValueError(f"expected low above 0 and no step for type log, got low {self.low:g}")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(f"expected a step above 0 and at most high - low, got {self.step:g}")
        return self

    @property
    def choices(self) -> tuple[Value, ...]:
        """The values for Optuna: plain values; lists and mappings as flag texts."""
        return tuple(
            value_text(tuple(value) if isinstance(value, list) else value) if isinstance(value, list | dict) else value
            for value in self.values
        )


@dataclass(frozen=True)
class Space:
    """All searched settings by their names, such as "dqn.learning_rate"."""

    dimensions: Mapping[str, Dimension]

    def distributions(self) -> dict[str, BaseDistribution]:
        """The space in Optuna's form."""
        return {name: _distribution(dimension) for name, dimension in self.dimensions.items()}

    def grid(self) -> dict[str, tuple[Value, ...]]:
        """All values of each setting. Raises UserError for a range without steps, and for too many cells."""
        grid = {name: _cells(name, dimension) for name, dimension in self.dimensions.items()}
        if (cells := math.prod(map(len, grid.values()))) > _MOST_CELLS:
            raise UserError(f"--sampler grid: expected at most {_MOST_CELLS} cells, got {cells}; give larger steps")
        return grid

    def check(
        self, config_of: Callable[[Mapping[str, Value]], RunConfig], given: Mapping[str, Any], algorithm: str | None
    ) -> None:
        """Raise UserError for a setting that cannot be searched, and for a value that the settings refuse.

        config_of: returns the settings of a run with these changes. given: the tree of the user's settings.
        algorithm: algorithm of all trials; None if unknown.
        """
        if "algorithm" in self.dimensions:
            algorithm = None
        for name, dimension in self.dimensions.items():
            if settings.has(given, name.split(".")):
                raise UserError(f"--search {name}: the setting is also given; leave one of them out")
            if algorithm and {name, name.partition(".")[0]}.intersection(unread(algorithm)):
                raise UserError(f"--search {name}: it has no effect, because the algorithm is {algorithm}")
            for value in dimension.choices or _ends(dimension):
                try:
                    config_of({name: value})
                except UserError as error:
                    raise UserError(f"--search {name}: {value} does not fit: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """The space as JSON values."""
        return {name: dimension.model_dump(mode="json") for name, dimension in self.dimensions.items()}


def changes_tree(changes: Mapping[str, Value]) -> dict[str, Any]:
    """The tree of these settings. Text is parsed as a flag's text."""
    return settings.from_flags(RunConfig, Namespace(**dict(changes)))


def read_space(texts: Iterable[str], file: Path | None) -> Space:
    """The space from --search and --search-file. Raises UserError with the name of a wrong setting."""
    trees: dict[str, Any] = {}
    if file is not None:
        trees |= {str(name): tree for name, tree in settings.from_file(file, "--search-file: ").items()}
    for text in texts:
        name, tree = _parsed(text)
        if _plain(name) in map(_plain, trees):
            raise UserError(f"--search {name}: the setting is given twice")
        trees[name] = tree
    if not trees:
        raise UserError(f"--search: expected at least one setting to search, as {_FORMS}")
    return Space(dict(_dimension(name, tree) for name, tree in trees.items()))


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    name, equals, spec = text.partition("=")
    if not name or not equals or not spec:
        raise UserError(f"--search: expected {_FORMS}, got {text!r}")
    found = None if "|" in spec else _RANGE.fullmatch(spec)
    if found is None:
        return name, {"type": "categorical", "values": spec.split("|")}
    log, low, high, step = found.groups()
    kind = settings.plain_type(_leaf(name).field.annotation)
    tree = {"type": "log" if log else "int" if kind is int else "float", "low": low, "high": high}
    return name, tree if step is None else {**tree, "step": step}


def _dimension(name: str, tree: Any) -> tuple[str, Dimension]:
    leaf = _leaf(name)
    found = ".".join(leaf.path)
    if leaf.path[0] in _OF_THE_TASK:
        raise UserError(f"--search {found}: trials that differ in it cannot be compared; make a sweep for each value")
    if not isinstance(tree, dict):
        raise UserError(f"--search {found}: expected type with low and high, or with values, got {tree!r}")
    try:
        dimension = settings.build(Dimension, tree)
    except UserError as error:
        raise UserError(f"--search {found}: {error}") from None
    kind = settings.plain_type(leaf.field.annotation)
    if dimension.type == "categorical":
        return found, dimension
    if kind not in (int, float):
        raise UserError(f"--search {found}: expected values, such as A|B, because the setting is no number")
    ends = (dimension.low, dimension.high, dimension.step)
    if kind is int and dimension.type == "float":
        raise UserError(f"--search {found}: expected type int or log, because the setting is a whole number")
    dimension._is_int = dimension.type == "int" or (dimension.type == "log" and kind is int)
    if dimension._is_int and not all(end is None or float(end).is_integer() for end in ends):
        raise UserError(f"--search {found}: expected whole numbers, got {dimension.low:g} to {dimension.high:g}")
    return found, dimension


def _leaf(name: str) -> settings.Leaf:
    known = {_plain(".".join(leaf.path)): leaf for leaf in settings.leaves(RunConfig)}
    if (leaf := known.get(_plain(name))) is None:
        raise UserError(f"--search: unknown setting {name!r}{suggestion(_plain(name), known)}")
    return leaf


def _plain(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _ends(dimension: Dimension) -> tuple[float, float]:
    low, high = typing.cast(float, dimension.low), typing.cast(float, dimension.high)
    return (int(low), int(high)) if dimension._is_int else (low, high)


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    low, high = typing.cast(Any, _ends(dimension))
    log, step = dimension.type == "log", dimension.step
    if dimension._is_int:
        return IntDistribution(low, high - (high - low) % int(step or 1), log=log, step=int(step or 1))
    if step is not None:
        high = _at(dimension, _steps(dimension))
    return FloatDistribution(low, high, log=log, step=step)


def _cells(name: str, dimension: Dimension) -> tuple[Value, ...]:
    if dimension.choices:
        return dimension.choices
    if dimension.type == "log" or (dimension.step is None and not dimension._is_int):
        raise UserError(f"--sampler grid: {name} needs values, or a range with a step")
    if _steps(dimension) >= _MOST_CELLS:
        raise UserError(f"--sampler grid: {name} has more than {_MOST_CELLS} values; give a larger step")
    cells = (_at(dimension, index) for index in range(_steps(dimension) + 1))
    return tuple(int(cell) if dimension._is_int else cell for cell in cells)


def _steps(dimension: Dimension) -> int:
    low, high, step = (Decimal(str(value)) for value in (dimension.low, dimension.high, dimension.step or 1))
    return int((high - low) // step)


def _at(dimension: Dimension, index: int) -> float:
    """The value at this step. Uses decimal numbers, because 0.1 + 2 * 0.1 is not 0.3 in floating point."""
    return float(Decimal(str(dimension.low)) + Decimal(str(dimension.step or 1)) * index)
