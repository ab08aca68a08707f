"""Damages a stopped run in one place at a time. Is each fault detected or harmless, and does the run always resume?

Each fault changes one file in a copy of the run's folder. `actorq verify` checks the copy. Then learner and store
resume from it in this process. A fault is harmless if the resumed state equals that of the undamaged run. A fault that
is neither reported nor harmless is silent. `actorq train --resume` also resumes some of the faulty copies.
"""

import argparse
import logging
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.faults.corruption_faults import Fault, faults, file_class
from benchmarks.faults.corruption_resume import State, resume, verify
from benchmarks.harness import Target, run_benchmark

# Environment steps of a resumed run beyond those of the damaged one.
_MORE_STEPS = 500
# Every mechanism that has its own file is on. Segments are short, so that there are tables of sequences.
_RUN_FLAGS = (
    *("--environment", "Pendulum-v1", "--algorithm", "td3", "--scheme", "int8", "--actors", "1"),
    *("--target-return", "501", "--no-energy.enabled", "--environments-per-actor", "1"),
    *("--actor.segment-length", "2", "--rate-limiter.samples-per-insert", "8", "--td3.hidden-sizes", "32,32"),
    *("--publication.period-updates", "10", "--evaluation.period-updates", "40", "--evaluation.episodes", "2"),
    *("--dynamic-capacity.enabled", "--dynamic-capacity.min-size", "1000", "--dynamic-capacity.period-steps", "500"),
    *("--replay.capacity", "6000", "--replay.min-size", "500", "--replay.prioritized"),
    *("--checkpoint.period-s", "0.1", "--quantizer.retain-newest", "4", "--quantizer.retain-best", "1"),
)
_TRAIN = (sys.executable, "-m", "actorq_apps.cli.main", "train")
_BUDGET_ENDED = 3
_FULL_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Outcome:
    """The result of one fault.

    told: files that verify reported as damaged or missing.
    differs: names of state that differs from the undamaged run's after resuming.
    error: why the run did not resume; empty if it did.
    """

    fault: Fault
    told: tuple[str, ...]
    differs: tuple[str, ...]
    error: str

    @property
    def silent(self) -> bool:
        """Whether the state changed or the run did not resume, without a report."""
        return not self.told and (bool(self.differs) or bool(self.error))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the number and places of faults."""
    parser.add_argument("--faults", type=int, default=600, help="number of single faults (default: 600)")
    parser.add_argument("--full", type=int, default=20, help="faults for actorq train --resume, too (default: 20)")
    parser.add_argument("--seed", type=int, help="seed of the faults (default: a new one, printed)")
    parser.add_argument("--files", default="*", metavar="GLOB", help="only files whose path matches (default: all)")
    parser.add_argument("--except", dest="without", default="", metavar="GLOB", help="no files whose path matches")
    parser.add_argument("--steps", type=int, default=8_000, help="environment steps of the run (default: 8000)")
    parser.add_argument("--run", type=Path, metavar="DIR", help="a stopped run to copy (default: a new one)")


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    """Damage copies of one run."""
    seed = arguments.seed if arguments.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}", flush=True)

    def wanted(path: str) -> bool:
        return fnmatchcase(path, arguments.files) and not fnmatchcase(path, arguments.without)

    with TemporaryDirectory(prefix="actorq-corruption-") as folder, _log_into(Path(folder) / "log"):
        work = Path(folder)
        original = arguments.run or make_run(work / "original", arguments.steps)
        chosen = faults(original, wanted, arguments.faults, np.random.default_rng(seed))
        outcomes = damage(original, work / "copy", chosen)
        for line in table(outcomes):
            print(line, flush=True)
        for outcome in outcomes:
            if outcome.silent or outcome.error:
                told = outcome.error or f"silent: {', '.join(outcome.differs)}"
                print(f"{outcome.fault}: {told}", flush=True)
        full = _full_resumes(original, work / "copy", chosen, arguments.full, arguments.steps + _MORE_STEPS)
    for fault, error in full.items():
        print(f"actorq train --resume after {fault}: {error or 'resumed'}")
    return _figures(seed, outcomes, full), _targets(outcomes, full)


def make_run(root: Path, steps: int) -> Path:
    """A run of a few seconds that ended by its budget, with every kind of file."""
    command = (*_TRAIN, "--run-directory", str(root), "--max-environment-steps", str(steps), *_RUN_FLAGS)
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != _BUDGET_ENDED:
        raise SystemExit(f"actorq train failed with exit code {process.returncode}: {process.stderr.strip()}")
    return root


def damage(original: Path, copy: Path, chosen: Sequence[Fault]) -> list[Outcome]:
    """Apply each fault to its own copy. Raises SystemExit if verify finds damage in the original."""
    _copy(original, copy)
    if found := _told(copy):
        raise SystemExit(f"{original} is damaged before any fault: {', '.join(found)}")
    whole = resume(copy)
    outcomes, started = [], time.monotonic()
    for number, fault in enumerate(chosen, start=1):
        _copy(original, copy)
        fault.apply(copy)
        outcomes.append(_outcome(fault, copy, whole))
        if not number % 50:
            print(f"{number} of {len(chosen)} faults, {time.monotonic() - started:.0f} s", flush=True)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each class of files."""
    classes = {file_class(outcome.fault.path): None for outcome in outcomes}
    lines = [f"{'file':<42} {'faults':>6} {'told':>6} {'harmless':>8} {'silent':>6} {'resumed':>7}"]
    for name in classes:
        of_class = [outcome for outcome in outcomes if file_class(outcome.fault.path) == name]
        counts = _counts(of_class)
        lines.append(
            f"{name:<42} {len(of_class):>6} {counts['told']:>6} {counts['harmless']:>8} {counts['silent']:>6} "
            f"{counts['resumed']:>7}"
        )
    return lines


def _counts(outcomes: Sequence[Outcome]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts["told" if outcome.told else "silent" if outcome.silent else "harmless"] += 1
        counts["resumed"] += not outcome.error
    return counts


def _outcome(fault: Fault, copy: Path, whole: State) -> Outcome:
    try:
        told = _told(copy)
        state = {**whole, **resume(copy, fault.path)}
    except Exception as error:  # Any error means that the run did not resume.
        return Outcome(fault, (), (), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return Outcome(fault, told, tuple(name for name in whole if state.get(name) != whole[name]), "")


def _told(root: Path) -> tuple[str, ...]:
    return tuple(found.path for found in verify(root) if found.state in {"damaged", "missing"})


def _full_resumes(original: Path, copy: Path, chosen: Sequence[Fault], count: int, budget: int) -> dict[str, str]:
    """The error of each resume by the command, by fault; empty without one. The faults are evenly spread."""
    picked = [chosen[int(index)] for index in np.linspace(0, len(chosen) - 1, count)] if count else []
    errors = {}
    for fault in picked:
        _copy(original, copy)
        fault.apply(copy)
        command = (*_TRAIN, "--resume", "--run-directory", str(copy), "--max-environment-steps", str(budget))
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FULL_TIMEOUT_S)
        traceback = any("Traceback" in path.read_text(errors="replace") for path in copy.glob("logs/*.log"))
        failed = process.returncode != _BUDGET_ENDED
        errors[str(fault)] = (
            f"exit code {process.returncode}: {process.stderr.strip()[-300:]}"
            if failed
            else "a traceback in a log"
            if traceback
            else ""
        )
    return errors


def _copy(original: Path, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)


def _figures(seed: int, outcomes: Sequence[Outcome], full: dict[str, str]) -> dict[str, Any]:
    classes = {file_class(outcome.fault.path): None for outcome in outcomes}
    by_class = {name: [each for each in outcomes if file_class(each.fault.path) == name] for name in classes}
    return {
        "seed": seed,
        "faults": len(outcomes),
        "classes": {
            name: {
                "faults": len(of_class),
                **_counts(of_class),
                "differs": sorted({each for outcome in of_class for each in outcome.differs}),
            }
            for name, of_class in by_class.items()
        },
        "silent": [str(outcome.fault) for outcome in outcomes if outcome.silent],
        "not_resumed": {str(outcome.fault): outcome.error for outcome in outcomes if outcome.error},
        "full_resumes": full,
    }


def _targets(outcomes: Sequence[Outcome], full: dict[str, str]) -> list[Target]:
    resumed = sum(not outcome.error for outcome in outcomes)
    return [
        Target("faults", len(outcomes), 500, at_most=False),
        Target("faults that were neither told nor harmless", sum(outcome.silent for outcome in outcomes), 0),
        Target("share of damaged runs that resumed", resumed / len(outcomes), 1.0, at_most=False),
        Target("failures of actorq train --resume", sum(map(bool, full.values())), 0),
    ]


@contextmanager
def _log_into(path: Path) -> Iterator[None]:
    """Write the services' logs to a file, so that they do not mix with the table."""
    handler = logging.FileHandler(path)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", add_flags, measure))
