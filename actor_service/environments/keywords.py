"""Converts keyword arguments from JSON, which has neither tuples nor arrays, for an environment or a wrapper."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_TUPLE, _ARRAY, _DTYPE = "tuple", "array", "dtype"


def fitting_keywords(function: Callable[..., Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments, with tuples and arrays instead of lists if the function's signature requires them.

    `{"tuple": [...]}` and `{"array": [...], "dtype": NAME}` always mean a tuple and an array (float32 by default).
    """
    if not any(isinstance(value, list | dict) for value in keywords.values()):
        return dict(keywords)
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = {}
    return {name: _fitting(value, parameters.get(name)) for name, value in keywords.items()}


def _fitting(value: Any, parameter: inspect.Parameter | None) -> Any:
    match value:
        case {"tuple": list(items), **rest} if not rest:
            return _as_tuple(items)
        case {"array": list(items), **rest} if rest.keys() <= {_DTYPE}:
            return np.array(items, str(rest.get(_DTYPE, "float32")))
        case list(items) if parameter is not None:
            annotation = str(parameter.annotation).lower()
            if isinstance(parameter.default, tuple) or (_TUPLE in annotation and "list" not in annotation):
                return _as_tuple(items)
            if isinstance(parameter.default, np.ndarray) or f"nd{_ARRAY}" in annotation:
                return np.array(items, np.float32)
    return value


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
