"""The origin of each stored result, and the targets that it meets."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

from actorq.telemetry.machine import Machine
from benchmarks.conditions import NOT_RECORDED
from benchmarks.harness import Target
from benchmarks.processor import absent
from sitegen.markdown import number, table

Run = dict[str, Any]
_BY_SPREAD = "met only because the baseline's seeds spread widely"
# Results that measure the same, from the oldest to the newest. An older result is kept because it missed a target, or
# has tasks that the newer ones lack.
NEWER = {
    "copies_before": ("copies",),
    "floods_before": ("floods",),
    "on_policy_ppo": ("on_policy_pendulum",),
    "packages": ("packages_repeated",),
    "parity": ("parity_sac_pendulum",),
    "precision": ("precision_balance",),
    "returns": ("returns_repeated", "returns_finger_spin", "returns_cheetah_run", "returns_pong"),
    "returns_repeated": ("returns_finger_spin",),
    "rlx2": ("rlx2_inverted_pendulum", "rlx2_half_cheetah", "rlx2_sac_half_cheetah"),
}

_ROOT = Path(__file__).parents[1]
_BENCHMARKS = _ROOT / "benchmarks"
_PAGES = _ROOT / "docs" / "benchmarks"
# The folders of files are irrelevant.
_PLACES = re.compile(r"--(json|plot|directory|cache|environments|policies) \S+")
# Two modules now have this last name. The module was in no folder when its results were stored.
_MOVED = {"benchmarks.peers": "benchmarks.libraries.peers"}


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


def time_of(name: str) -> str:
    """The time of a measurement in UTC, as text that sorts by time."""
    result = load(name)
    return str(result.get("date") or result["machine"]["date"])


def page(name: str) -> str:
    """The file name of the page with a result's targets and conditions."""
    of_it = re.compile(rf"<!-- generated: record of {name} -->")
    return next(file.name for file in sorted(_PAGES.glob("*.md")) if of_it.search(file.read_text(encoding="utf-8")))


def command(name: str) -> str:
    """The command of a result, with the present name of its module and without folders of files."""
    words = _PLACES.sub("", load(name)["command"]).split()
    words[2] = _MOVED.get(words[2], words[2])
    path = _ROOT.joinpath(*words[2].split("."))
    if path.with_suffix(".py").exists() or (path / "__main__.py").exists():
        return " ".join(words)
    module = words[2].rpartition(".")[2]
    for file in [*_BENCHMARKS.glob(f"*/{module}.py"), *_BENCHMARKS.glob(f"*/{module}/__main__.py")]:
        parts = file.relative_to(_ROOT).with_suffix("").parts
        words[2] = ".".join(part for part in parts if part != "__main__")
    return " ".join(words)


def of_module(module: str) -> list[str]:
    """The names of a benchmark's results, from the oldest to the newest. module: such as benchmarks.libraries.peers."""
    return sorted((name for name in stored() if module in command(name).split()), key=time_of)


def line(name: str) -> str:
    """Date, machine, verdicts and command of a result, in one line."""
    machine = load(name)["machine"]
    on = ", ".join([machine["cpu"], f"{machine['cores']} cores", *machine.get("gpus", [])])
    return f"Measured {time_of(name)[:10]} on {on}. Targets met: {_met(name)}. Command: `{command(name)}`"


def record(name: str) -> str:
    """A collapsed block with the targets and the conditions of a result."""
    return _folded(f"Targets and conditions of `{name}`", f"{targets(name)}\n\n{_conditions(name)}")


def targets(name: str) -> str:
    """Each target with its bound and its verdict."""
    return table(("target", "measured", "bound", "verdict"), [_row(target) for target in load(name)["targets"]])


def overview() -> str:
    """A collapsed block with all results: command, date, number of met targets, and page."""
    rows = []
    for name in stored():
        rows.append((f"[`{name}`]({page(name)})", f"`{command(name)}`", time_of(name)[:10], _met(name)))
    return _folded("All results", table(("result", "command", "date", "targets met"), rows))


def newest_runs(names: Sequence[str]) -> list[Run]:
    """The runs of each task's newest result. names: results, from the oldest to the newest."""
    return [run for name in names for run in figures(name)["runs"] if _newest(names)[run["task"]] == name]


def by(key: str, runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs by one of their values, in their order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run[key], []).append(run)
    return found


def older_tables(names: Sequence[str], shown: Callable[[list[Run]], str]) -> str:
    """A table of the runs of each result that a newer result has measured again. shown: function that makes a table of
    runs.
    """
    newest = _newest(names)
    older = {name: [run for run in figures(name)["runs"] if newest[run["task"]] != name] for name in names}
    return "\n\n".join(f"`{name}`, {time_of(name)[:10]}:\n\n{shown(runs)}" for name, runs in older.items() if runs)


def target_of(stored_target: dict[str, Any]) -> Target:
    """The target of a stored result. Missing fields of old results have their defaults."""
    return Target(**{each.name: stored_target[each.name] for each in fields(Target) if each.name in stored_target})


def beside(target: Target) -> str:
    """Text that compares a mean with its baseline. Empty for a target without a baseline."""
    if target.baseline is None or target.refused:
        return ""
    if target.measured >= target.baseline:
        return "not lower"
    lower = f"lower by {number(target.baseline - target.measured)}"
    if target.met_by_spread:
        return f"**{lower}**; the target is {_BY_SPREAD}"
    return lower if target.met else f"**{lower}**; the target is missed"


def _newest(names: Sequence[str]) -> dict[str, str]:
    """The newest result of each task."""
    return {run["task"]: name for name in names for run in figures(name)["runs"]}


def _met(name: str) -> str:
    """The number of met targets among those with a verdict, and the number without one. Targets for other processors do
    not count.
    """
    here = [target for target in load(name)["targets"] if target["met"] is not None]
    verdicts = [target["met"] for target in here if not target.get("refused")]
    without = f", {len(here) - len(verdicts)} without a verdict" if len(here) > len(verdicts) else ""
    return f"{sum(verdicts)} of {len(verdicts)}{without}"


def _conditions(name: str) -> str:
    result = load(name)
    machine = result["machine"]
    changes = f", with changes {result['changes']}" if result.get("changes") else ""
    load_average = result.get("load_average")
    # Old results do not record GPUs.
    known = Machine(**{each.name: machine[each.name] for each in fields(Machine) if each.name in machine})
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    return table(
        (f"`{name}.json`", ""),
        [
            ("command", f"`{command(name)}`"),
            ("date", time_of(name)[:10]),
            ("commit", f"{result.get('commit', NOT_RECORDED)[:12]}{changes}"),
            ("machine", f"{known.hardware}, {machine['system']}"),
            ("processor has", ", ".join(machine.get("features", [NOT_RECORDED]))),
            ("load before", " ".join(map(str, load_average)) if load_average else NOT_RECORDED),
            ("software", f"Python {machine['python']}, {packages}"),
        ],
    )


def _folded(title: str, content: str) -> str:
    return f'??? note "{title}"\n\n{indent(content, "    ")}'


def _row(stored_target: dict[str, Any]) -> tuple[str, str, str, str]:
    target = target_of(stored_target)
    relation = "at most" if target.at_most else "at least"
    if stored_target["met"] is None:
        verdict = f"none: {absent(target.needs)}"
    elif target.met:
        lower = f"{_BY_SPREAD}: **lower by {number((target.baseline or 0.0) - target.measured)}** than their mean"
        verdict = lower if target.met_by_spread else "met"
    else:
        verdict = f"**none**: {target.refused}" if target.refused else "**missed**"
    return target.name, number(target.measured), f"{relation} {number(target.bound)}", verdict
