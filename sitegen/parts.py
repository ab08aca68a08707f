"""The generated parts, by the names that pages use."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from sitegen import commands, configuration, metrics, results, rpcs, verdicts
from sitegen.pages import citation, expectations, sizes, tested, training_run
from sitegen.tables import TABLES, first_screen, scheme_choice

_PARTS: dict[str, Callable[[], str]] = {
    "settings of a run": configuration.run_settings,
    "settings of processes": configuration.process_settings,
    "presets": configuration.presets,
    "commands": commands.commands,
    "metrics": metrics.metrics,
    "citation": citation.entries,
    "steps to the target": expectations.steps_to_target,
    "sizes of services": sizes.of_services,
    "sizes of a run": sizes.of_a_run,
    "tested machines": tested.machines,
    "tested Python": tested.pythons,
    "tested packages": tested.packages,
    "formats": tested.formats,
    "TrainingRun specification": training_run.specification,
    "TrainingRun status": training_run.status,
    "TrainingRun states": training_run.states,
    "TrainingRun columns": training_run.columns,
    "RPCs": rpcs.services,
    "messages": rpcs.messages,
    "missed targets": verdicts.missed,
    "missed before": verdicts.missed_before,
    "no verdict": verdicts.no_verdict,
    "results": results.overview,
    "gain of quantization": first_screen.quantization_gain,
    "limits of the gain": first_screen.limits_of_gain,
    "seconds to the same return": first_screen.peers_seconds,
    "commands of these results": first_screen.commands,
    "fastest schemes": scheme_choice.fastest_schemes,
    "fastest schemes without vnni": scheme_choice.fastest_schemes_without_vnni,
    "rows of int8-static": scheme_choice.static_rows,
    "price of int8": scheme_choice.price_of_int8,
}


def _text(name: str) -> str:
    """A Markdown file outside of `docs`, with links that work in a folder of `docs`."""
    text = (Path(__file__).parents[1] / name).read_text(encoding="utf-8")
    return text.replace("](docs/", "](../").replace("](CHANGELOG.md)", "](changelog.md)")


def _file(name: str) -> str:
    """A file of the project as a code block."""
    path = Path(__file__).parents[1] / name
    language = {".py": "python", ".sbatch": "sh", ".yaml": "yaml"}[path.suffix]
    return f"```{language}\n{path.read_text(encoding='utf-8').rstrip()}\n```"


# Parts of one stored result, of one file, or of one role.
_OF: dict[str, Callable[[str], str]] = {
    "file": _file,
    "line": verdicts.line,
    "record": results.record,
    "rights": rpcs.rights,
    "text": _text,
}


def part(name: str) -> str:
    """The Markdown of a part. Raises KeyError for an unknown name."""
    kind, _, what = name.partition(" of ")
    made = partial(_OF[kind], what) if what and kind in _OF else TABLES[name] if name in TABLES else _PARTS[name]
    return made()
