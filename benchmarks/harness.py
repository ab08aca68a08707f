"""What all benchmarks share: flags, the machine's description, targets, results as JSON."""

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.machine import this_machine


@dataclass(frozen=True)
class Target:
    """One stated target: what was measured, against which bound."""

    name: str
    measured: float
    bound: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """Whether the measured figure keeps to the bound."""
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound

    def __str__(self) -> str:
        relation = "at most" if self.at_most else "at least"
        return f"{'ok  ' if self.met else 'MISS'} {self.name}: {self.measured:.4g} ({relation} {self.bound:g})"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        **asdict(this_machine()),
        "system": platform.platform(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def run_benchmark(
    description: str,
    add_flags: Callable[[argparse.ArgumentParser], None],
    measure: Callable[[argparse.Namespace], tuple[dict[str, Any], list[Target]]],
) -> int:
    """Parse flags, measure, print the targets, write --json; with --check return 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and machine to FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    add_flags(parser)
    arguments = parser.parse_args()
    figures, targets = measure(arguments)
    for target in targets:
        print(target)
    if arguments.json:
        result = {
            "command": " ".join(["python", "-m", _module(Path(sys.argv[0])), *sys.argv[1:]]),
            "machine": machine(),
            "figures": figures,
            "targets": [{**asdict(target), "met": target.met} for target in targets],
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    missed = [target for target in targets if not target.met]
    return 1 if arguments.check and missed else 0


def _module(script: Path) -> str:
    return f"benchmarks.{script.parent.name if script.stem == '__main__' else script.stem}"
