"""Tables of the benchmark pages. Pages use the names of the functions, with spaces for underscores."""

from collections.abc import Callable
from importlib import import_module
from inspect import getmembers, isfunction

_MODULES = (
    *("agents", "answers", "environments", "faults", "libraries", "memory", "normalized", "on_policy", "paper"),
    *("pixels", "policies", "runs", "seeds", "services", "simulators", "stored_data", "zoo"),
)

TABLES: dict[str, Callable[[], str]] = {
    name.replace("_", " "): made
    for module in (import_module(f"{__name__}.{module}") for module in _MODULES)
    for name, made in getmembers(module, isfunction)
    if made.__module__ == module.__name__ and not name.startswith("_")
}
