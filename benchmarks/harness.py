"""The common frame of all benchmarks: flags, conditions of the measurement, targets, results as JSON."""

import argparse
import importlib
import json
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from actorq.errors import UserError
from actorq.process import EXIT_USER_ERROR
from benchmarks.conditions import conditions
from benchmarks.processor import absent, features, has

ONE_SEED = "one seed gives no verdict"
# A mean that is below its baseline's mean by more than this share of it is clearly lower.
CLEARLY_LOWER = 0.05


@dataclass(frozen=True)
class Target:
    """One stated target: a measured figure and its bound.

    refused: why the figure gives no verdict. The figure is shown, and the target counts as missed. needs: a required
    feature of the processor, a name in benchmarks.processor. Without the feature the figure is shown, and the target is
    neither met nor missed. baseline: the mean of the baseline, if the bound is this mean minus its spread over seeds.
    None otherwise.
    """

    name: str
    measured: float
    bound: float
    at_most: bool = True
    refused: str = ""
    needs: str = ""
    baseline: float | None = None

    @property
    def met(self) -> bool:
        """Whether the measured figure meets the bound, on any processor."""
        if self.refused:
            return False
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound

    @property
    def met_by_spread(self) -> bool:
        """Whether the target is met only because of the baseline's spread.

        The figure is then clearly lower than the baseline's mean, but not lower than the mean minus the spread.
        """
        if self.baseline is None or not self.met:
            return False
        return self.baseline - self.measured > CLEARLY_LOWER * abs(self.baseline)

    def __str__(self) -> str:
        relation = "at most" if self.at_most else "at least"
        lacks = "" if has(self.needs) else absent(self.needs)
        mark = "----" if lacks else "NONE" if self.refused else "ok  " if self.met else "MISS"
        spread = f"met only because the baseline spreads: its mean is {self.baseline:.4g}" if self.met_by_spread else ""
        reason = f"; {lacks or self.refused or spread}" if lacks or self.refused or spread else ""
        return f"{mark} {self.name}: {self.measured:.4g} ({relation} {self.bound:g}){reason}"


@dataclass(frozen=True)
class Meaning:
    """An explanation of targets. The documentation shows it for missed targets. Benchmarks have their explanations in
    MEANINGS.

    pattern: regular expression for the whole name of a target. Its named groups may stand in `case`.
    question: what the target asks.
    means: what a miss means for a user.
    unit: unit of the figure and the bound, with a space in front where one belongs there, such as " s" or "%".
    scale: factor from the stored figure to this unit.
    case: which case of the question the target is, for targets with the same question.
    """

    pattern: str
    question: str
    means: str
    unit: str = ""
    scale: float = 1.0
    case: str = ""


def without_verdict(targets: Sequence[Target], reason: str) -> list[Target]:
    """The targets, refused for this reason; unchanged when the reason is empty."""
    return [replace(target, refused=target.refused or reason) for target in targets]


def verdict(target: Target, found: Collection[str]) -> bool | None:
    """Whether a target is met on a processor with these features (benchmarks.processor). None if the processor lacks
    the needed feature: the target is then neither met nor missed.
    """
    return target.met if not target.needs or target.needs in found else None


def optional_module(name: str, install: str) -> Any:
    """A module of a package that only some benchmarks need. Raises SystemExit with the command to install it."""
    try:
        # dm_control warns if there is no screen, but no benchmark needs one.
        with warnings.catch_warnings(action="ignore"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} is missing: {install}") from None


def run_benchmark(
    description: str,
    add_flags: Callable[[argparse.ArgumentParser], None],
    measure: Callable[[argparse.Namespace], tuple[dict[str, Any], list[Target]]],
) -> int:
    """Parse flags, measure, print the targets, write --json. With --check, return 1 when a target is missed or refused.

    A target whose need the processor lacks does not fail the check. It is stored with `met` null.

    An error of the user is one line and returns 2. Ctrl-C returns 130. SIGTERM ends the processes that the measurement
    has started, and then it: what it closes in its end is closed.

    --json has the conditions from before the measurement.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and conditions to FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed or refused")
    add_flags(parser)
    arguments = parser.parse_args()
    before = conditions()
    restored = signal.signal(signal.SIGTERM, _end)
    try:
        figures, targets = measure(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, restored)
    for target in targets:
        print(target)
    if arguments.json:
        result = {
            "command": " ".join(["python", "-m", _module(Path(sys.argv[0])), *map(_without_folder, sys.argv[1:])]),
            **before,
            "figures": figures,
            "targets": [{**asdict(target), "met": verdict(target, features())} for target in targets],
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    missed = [target for target in targets if verdict(target, features()) is False]
    return 1 if arguments.check and missed else 0


def _end(*_: object) -> None:
    for child in psutil.Process().children():
        child.terminate()
    raise SystemExit(128 + signal.SIGTERM)


def _without_folder(argument: str) -> str:
    """An argument without the folder of an absolute path, which means nothing on another machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def _module(script: Path) -> str:
    project, script = Path(__file__).resolve().parents[1], script.resolve()
    place = script.relative_to(project) if script.is_relative_to(project) else Path("benchmarks") / script.name
    return ".".join(part for part in place.with_suffix("").parts if part != "__main__")
