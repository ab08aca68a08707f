"""Merges the runs of several machines of one kind: `python -m benchmarks.merge TO FROM [FROM ...]`.

Copies the runs of the folders FROM into the folder TO. Then the command of the benchmark with --directory TO makes the
missing runs and judges all runs together. Nothing is copied unless all runs have the same commit and machine.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from actorq.statefiles.files import replace_file
from benchmarks.conditions import refuse_mixed
from benchmarks.runs import conditions_file, recorded, recorded_runs


def merge(to: Path, sources: Sequence[Path]) -> list[str]:
    """Copy the runs that `to` lacks. Returns their names, in order. An interrupted merge may be repeated.

    Raises SystemExit, and copies nothing, if a source has no runs, if runs have another commit or machine, or if two
    folders have different runs of the same name.
    """
    found: dict[str, Path] = {}
    for folder in (to, *sources):
        runs = recorded_runs(folder)
        if not runs and folder != to:
            raise SystemExit(f"expected a folder with runs of a benchmark, got {folder}: give its --directory")
        for run in runs:
            first = found.setdefault(run.name, run)
            if conditions_file(first).read_bytes() != conditions_file(run).read_bytes():
                raise SystemExit(f"expected different runs, got {run.name} in {first.parent} and {folder}: remove one")
    if found:
        refuse_mixed({str(run): recorded(run) for run in found.values()})
    to.mkdir(parents=True, exist_ok=True)
    copied = sorted(name for name, run in found.items() if run.parent != to)
    for name in copied:
        _copy(found[name], to / name)
    return copied


def _copy(run: Path, to: Path) -> None:
    """Copy a run's folder and result. Its conditions come last: without them, a merge copies the run again."""
    if run.is_dir():
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(run, to)
    result = run.with_name(f"{run.name}.json")
    if result.exists():
        replace_file(to.with_name(result.name), result.read_text(encoding="utf-8"))
    replace_file(conditions_file(to), conditions_file(run).read_text(encoding="utf-8"))


def main() -> int:
    """Merge the folders of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merge", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("to", type=Path, metavar="TO", help="folder for all runs")
    parser.add_argument("sources", type=Path, nargs="+", metavar="FROM", help="folders with the runs of each machine")
    arguments = parser.parse_args()
    for name in merge(arguments.to, arguments.sources):
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
