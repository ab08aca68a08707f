"""Changes the project's glue code in one place at a time, and checks that a test fails.

The glue is the code that connects tested parts. A mutant is a copy of the project with one changed comparison,
constant, operator, call or condition. A mutant is killed if a test of its folder fails or exceeds the time limit. The
tests that reach the changed line run first, in order of their duration. If none of them fails, all tests of the folder
run, because tests that start processes reach lines too. The sample follows from the seed, which is printed. Survivors
are listed with their lines. --killed records killed mutants in a file. They are not tried again: after an interruption,
or after a test was added, only the others run.
"""

import argparse
import ast
import copy
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any
from xml.etree import ElementTree

from coverage import CoverageData

from benchmarks.harness import Target, run_benchmark

_ROOT = Path(__file__).parents[2]
_LEAST_KILLED = 0.95
# Limit for all tests of a folder. A single test has 60 s.
_LIMIT_S = 900.0
# Largest number of tests that reach a line and run first.
_MOST_FIRST = 60
# Modules of glue, and the tests of each.
GLUE: dict[str, tuple[str, ...]] = {
    "learner_service/training/trainer.py": ("tests/learner_service/training", "tests/learner_service/test_process.py"),
    "learner_service/training/training.py": ("tests/learner_service",),
    "learner_service/training/checkpoint.py": ("tests/learner_service/training",),
    "learner_service/run/run.py": ("tests/learner_service",),
    "learner_service/run/lifecycle.py": ("tests/learner_service",),
    "learner_service/run/connections.py": ("tests/learner_service",),
    "learner_service/run/judge.py": ("tests/learner_service",),
    "learner_service/run/records.py": ("tests/learner_service",),
    "learner_service/run/preparation.py": ("tests/learner_service",),
    "learner_service/actors/streams.py": ("tests/learner_service",),
    "learner_service/actors/intake.py": ("tests/learner_service",),
    "learner_service/replay/buffer.py": ("tests/learner_service/replay",),
    "learner_service/replay/samplers.py": ("tests/learner_service/replay",),
    "learner_service/servicer.py": ("tests/learner_service",),
    "actor_service/uploader.py": ("tests/actor_service",),
    "actor_service/acting/collector.py": ("tests/actor_service",),
    "actor_service/roles/participant.py": ("tests/actor_service",),
    "actor_service/roles/explorer.py": ("tests/actor_service",),
    "actor_service/roles/evaluator.py": ("tests/actor_service", "tests/integration/test_held_versions.py"),
    "actor_service/roles/evaluation.py": ("tests/actor_service",),
    "actor_service/policies/subscription.py": ("tests/actor_service",),
    "quantizer_service/emission/emitter.py": ("tests/quantizer_service",),
    "quantizer_service/store/catalog.py": ("tests/quantizer_service",),
    "quantizer_service/emission/ladder.py": ("tests/quantizer_service/emission",),
    "quantizer_service/serving/quantizer.py": ("tests/quantizer_service",),
    "quantizer_service/serving/feed.py": ("tests/quantizer_service/serving",),
    "quantizer_service/serving/relay.py": ("tests/quantizer_service/serving",),
    "quantizer_service/servicer.py": ("tests/quantizer_service",),
    "actorq/watchdog.py": ("tests/actor_service", "tests/quantizer_service/emission"),
    "actorq/transport/reconnect.py": ("tests/actorq/transport",),
}
# Tests of every module: rules for all sources.
RULES = ("tests/test_architecture.py::test_no_process_waits_for_its_threads_at_its_end",)
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One changed place of a file."""

    file: str
    line: int
    before: str
    after: str
    source: str

    def digest(self) -> str:
        """SHA-256 of the file's name and its changed source."""
        return hashlib.sha256(f"{self.file}\n{self.source}".encode()).hexdigest()


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file."""
    tree = ast.parse(source)
    skipped = set(_checks(tree))
    for index, node in enumerate(ast.walk(tree)):
        for change in () if node in skipped else _changes(node):
            changed = copy.deepcopy(tree)
            target = next(other for place, other in enumerate(ast.walk(changed)) if place == index)
            change(target)
            mutated = ast.unparse(ast.fix_missing_locations(changed))
            yield Mutant(file, getattr(node, "lineno", 0), ast.unparse(node), ast.unparse(target), mutated)


def _checks(tree: ast.AST) -> Iterator[ast.AST]:
    """Code that only prevents mistakes: options of a class such as `frozen`, and `strict` of zip."""
    for node in ast.walk(tree):
        for part in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            yield from ast.walk(part)
        if isinstance(node, ast.keyword) and node.arg == "strict":
            yield node.value


def _changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        swapped = _COMPARISONS[type(node.ops[0])]
        yield lambda copied: setattr(copied, "ops", [swapped()])
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield lambda copied: setattr(copied, "op", other)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        operator = _OPERATORS[type(node.op)]
        yield lambda copied: setattr(copied, "op", operator())
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        value = not node.value
        yield lambda copied: setattr(copied, "value", value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        more = node.value + 1
        yield lambda copied: setattr(copied, "value", more)
    if isinstance(node, ast.Name) and node.id in _NAMES:
        name = _NAMES[node.id]
        yield lambda copied: setattr(copied, "id", name)
    if isinstance(node, ast.If | ast.While):
        yield lambda copied: setattr(copied, "test", ast.UnaryOp(ast.Not(), copied.test))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _is_log(node.value):
        yield lambda copied: setattr(copied, "value", ast.Constant(None))


def _is_log(call: ast.Call) -> bool:
    """Whether a call logs. Tests need not check logs."""
    return ast.unparse(call.func).startswith("_log.")


def sample(sources: Mapping[str, str], seed: int, count: int) -> list[Mutant]:
    """Random mutants of files, by their names. A small change of a file does not change most of the sample."""
    found: dict[str, Mutant] = {}
    seen: Counter[str] = Counter()
    for file, source in sources.items():
        for mutant in mutants(file, source):
            change = f"{seed}\n{file}\n{mutant.before}\n{mutant.after}"
            seen[change] += 1
            found[hashlib.sha256(f"{change}\n{seen[change]}".encode()).hexdigest()] = mutant
    return [found[digest] for digest in sorted(found)[:count]]


def _copied(folder: Path) -> Path:
    """Copy the project in its current state."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=_ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, names):
        if not name.startswith("benchmarks/results/") and (_ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_ROOT / name, folder / name)
    return folder


def _is_killed(mutant: Mutant, project: Path, reach: "Reach") -> bool:
    file = project / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    try:
        first = (*RULES, *reach.tests(mutant.file, mutant.line))
        # pytest ends with 4 if it does not find a test by its name. Then only all tests of the folder give an answer.
        return _fails(project, first, passing=(0, 4)) or _fails(project, GLUE[mutant.file])
    finally:
        file.write_text(original, encoding="utf-8")


def _fails(project: Path, tests: Sequence[str], passing: Sequence[int] = (0,)) -> bool:
    with _pytest(project, "-x", "--timeout", "60", *tests) as process:
        try:
            return process.wait(_LIMIT_S) not in passing
        except subprocess.TimeoutExpired:
            process.kill()
            return True


def _pytest(project: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


class Reach:
    """The tests that reach each line within their own process.

    seconds: duration of each test, by its name. lines: names of the tests, by file and line.
    """

    def __init__(self, seconds: Mapping[str, float], lines: Mapping[tuple[str, int], Iterable[str]]) -> None:
        self._seconds = seconds
        self._lines = lines

    @classmethod
    def measured(cls, project: Path) -> "Reach":
        """Run the tests of all the glue once. Raises SystemExit if one fails, because it would kill each mutant."""
        with tempfile.TemporaryDirectory() as folder:
            data_file, times = Path(folder) / "coverage", Path(folder) / "times.xml"
            packages = dict.fromkeys(file.partition("/")[0] for file in GLUE)
            settings = Path(folder) / "coveragerc"
            settings.write_text(f"[run]\ndata_file = {data_file}\n", encoding="utf-8")
            with _pytest(
                *(project, "--cov-context=test", "--cov-report=", f"--cov-config={settings}", f"--junitxml={times}"),
                *(f"--cov={package}" for package in packages),
                *_without_nested({place for tests in GLUE.values() for place in tests}),
            ) as process:
                if process.wait() != 0:
                    raise SystemExit("the tests of the glue fail without a mutant: fix them first (make test)")
            seconds = {
                f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}": float(case.get("time", 0))
                for case in ElementTree.parse(times).iter("testcase")
            }
            data = CoverageData(str(data_file))
            data.read()
            lines = {
                (file, line): [context.partition("|")[0] for context in contexts if context]
                for file in GLUE
                for line, contexts in data.contexts_by_lineno(str((project / file).resolve())).items()
            }
        return cls(seconds, lines)

    def tests(self, file: str, line: int) -> list[str]:
        """The quickest tests that reach a line, quickest first; may be empty."""
        names = sorted(set(self._lines.get((file, line), ())), key=lambda name: (self._time(name), name))
        return names[:_MOST_FIRST]

    def _time(self, name: str) -> float:
        """The seconds of a test. JUnit names a test by its module and its name."""
        path, _, test = name.partition("::")
        return self._seconds.get(f"{Path(path).stem}::{test}", 0.0)


def _without_nested(places: Iterable[str]) -> list[str]:
    """The places without those inside another one."""
    found = sorted(places)
    return [place for place in found if not any(place.startswith(f"{other}/") for other in found)]


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    parser.add_argument("--count", type=int, default=200, metavar="N", help="number of mutants (default: 200)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at the same time (default: 1)")
    parser.add_argument("--killed", type=Path, metavar="FILE", help="remember killed mutants here; do not repeat them")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    survivors: list[Mutant] = []
    chosen = sample({file: (_ROOT / file).read_text("utf-8") for file in GLUE}, arguments.seed, arguments.count)
    remembered = arguments.killed.read_text("ascii").split() if arguments.killed and arguments.killed.exists() else []
    earlier = {mutant.digest() for mutant in chosen} & set(remembered)
    print(f"{len(chosen)} mutants, seed {arguments.seed}; {len(earlier)} were killed earlier", flush=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        # Each concurrent mutant has its own copy of the project.
        projects: Queue[Path] = Queue()
        for number in range(arguments.jobs):
            projects.put(_copied(Path(folder) / str(number)))
        reach = Reach.measured(Path(folder) / "0")
        print("the tests pass without a mutant", flush=True)

        def is_killed(mutant: Mutant) -> bool:
            if mutant.digest() in earlier:
                return True
            project = projects.get()
            try:
                killed = _is_killed(mutant, project, reach)
            finally:
                projects.put(project)
            if killed and arguments.killed:
                with arguments.killed.open("a", encoding="ascii") as file:
                    file.write(f"{mutant.digest()}\n")
            return killed

        for number, (mutant, killed) in enumerate(zip(chosen, pool.map(is_killed, chosen), strict=True), 1):
            if not killed:
                survivors.append(mutant)
                print(f"{number:4} {mutant.file}:{mutant.line} survives: {mutant.before} -> {mutant.after}", flush=True)
            if number % 10 == 0:
                print(f"{number:4} tried, {number - len(survivors)} killed", flush=True)
    share = 1 - len(survivors) / len(chosen)
    figures = {
        "seed": arguments.seed,
        "mutants": len(chosen),
        "killed_earlier": len(earlier),
        "survivors": [f"{each.file}:{each.line}: {each.before} -> {each.after}" for each in survivors],
    }
    return figures, [Target("share of mutants that are killed", share, _LEAST_KILLED, False)]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
