"""What a stored result of a benchmark says besides its figures: how it was made, and which targets it meets."""

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from actorq.telemetry.machine import Machine
from benchmarks.conditions import NOT_RECORDED
from benchmarks.processor import absent
from sitegen.markdown import number, table

_ROOT = Path(__file__).parents[1]
_BENCHMARKS = _ROOT / "benchmarks"
# Where a command put its files says nothing.
_PLACES = re.compile(r"--(json|plot|directory|cache|environments) \S+")


@cache
def load(name: str) -> dict[str, Any]:
    """The whole content of benchmarks/results/NAME.json."""
    content: dict[str, Any] = json.loads((_BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return content


def figures(name: str) -> dict[str, Any]:
    """The figures of a result."""
    found: dict[str, Any] = load(name)["figures"]
    return found


def stored() -> list[str]:
    """The names of all results."""
    return sorted(file.stem for file in (_BENCHMARKS / "results").glob("*.json"))


def conditions(name: str) -> str:
    """Command, date, commit and machine."""
    result = load(name)
    machine = result["machine"]
    changes = f", with changes {result['changes']}" if result.get("changes") else ""
    load_average = result.get("load_average")
    # Results from before GPUs were recorded lack them.
    known = Machine(**{each.name: machine[each.name] for each in fields(Machine) if each.name in machine})
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    return table(
        (f"`{name}.json`", ""),
        [
            ("command", f"`{command(name)}`"),
            ("date", _date(result)),
            ("commit", f"{result.get('commit', NOT_RECORDED)[:12]}{changes}"),
            ("machine", f"{known.hardware}, {machine['system']}"),
            ("processor has", ", ".join(machine.get("features", [NOT_RECORDED]))),
            ("load before", " ".join(map(str, load_average)) if load_average else NOT_RECORDED),
            ("software", f"Python {machine['python']}, {packages}"),
        ],
    )


def command(name: str) -> str:
    """The command of a result, by the name that its module has today, without the places of files."""
    words = _PLACES.sub("", load(name)["command"]).split()
    module = words[2].rpartition(".")[2]
    for file in [*_BENCHMARKS.glob(f"*/{module}.py"), *_BENCHMARKS.glob(f"*/{module}/__main__.py")]:
        parts = file.relative_to(_ROOT).with_suffix("").parts
        words[2] = ".".join(part for part in parts if part != "__main__")
    return " ".join(words)


def targets(name: str) -> str:
    """Each target with its bound and its verdict."""
    return table(("target", "measured", "bound", "verdict"), [_row(target) for target in load(name)["targets"]])


def missed() -> str:
    """All targets of all results that are missed, or that have no verdict. Those of other processors are left out."""
    rows = [
        (f"`{name}`", *_row(target)) for name in stored() for target in load(name)["targets"] if target["met"] is False
    ]
    return table(("result", "target", "measured", "bound", "verdict"), rows)


def overview() -> str:
    """All results: what made them, when, and how many targets are met."""
    rows = []
    for name in stored():
        verdicts = [target["met"] for target in load(name)["targets"] if target["met"] is not None]
        rows.append((f"`{name}`", f"`{command(name)}`", _date(load(name)), f"{sum(verdicts)} of {len(verdicts)}"))
    return table(("result", "command", "date", "targets met"), rows)


def _date(result: dict[str, Any]) -> str:
    return str(result.get("date") or result["machine"]["date"])[:10]


def _row(target: dict[str, Any]) -> tuple[str, str, str, str]:
    relation = "at most" if target["at_most"] else "at least"
    if target["met"] is None:
        verdict = f"none: {absent(target['needs'])}"
    else:
        verdict = (
            "met" if target["met"] else f"**none**: {target.get('refused')}" if target.get("refused") else "**missed**"
        )
    return target["name"], number(target["measured"]), f"{relation} {number(target['bound'])}", verdict
