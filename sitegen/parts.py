"""The generated parts by the names that pages call them by."""

from collections.abc import Callable

from sitegen import commands, configuration, metrics, results, rpcs
from sitegen.tables import TABLES

_PARTS: dict[str, Callable[[], str]] = {
    "settings of a run": configuration.run_settings,
    "settings of processes": configuration.process_settings,
    "presets": configuration.presets,
    "commands": commands.commands,
    "metrics": metrics.metrics,
    "RPCs": rpcs.services,
    "messages": rpcs.messages,
    "missed targets": results.missed,
    "results": results.overview,
}
# Of one stored result.
_OF_RESULT: dict[str, Callable[[str], str]] = {"conditions": results.conditions, "targets": results.targets}


def part(name: str) -> str:
    """The Markdown of a part; raises KeyError for a name that there is not."""
    kind, of, result = name.partition(" of ")
    if of and kind in _OF_RESULT:
        return _OF_RESULT[kind](result)
    return TABLES[name]() if name in TABLES else _PARTS[name]()
