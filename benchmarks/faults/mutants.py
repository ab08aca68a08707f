"""Changes the project's glue in one place at a time: does a test notice?

The glue is the code in which one tested part calls another. A mutant is a copy of the project with one comparison,
constant, operator, call or condition of it changed. A mutant is killed when a test of its room fails, or takes longer
than the limit. The sample follows from the seed, which is printed. Survivors are told with their line.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Target, run_benchmark

_ROOT = Path(__file__).parents[2]
_LEAST_KILLED = 0.95
_LIMIT_S = 300.0
# Modules of glue, and the tests that hold each.
GLUE: dict[str, tuple[str, ...]] = {
    "learner_service/training/trainer.py": ("tests/learner_service/training", "tests/learner_service/test_process.py"),
    "learner_service/training/training.py": ("tests/learner_service",),
    "learner_service/training/checkpoint.py": ("tests/learner_service/training",),
    "learner_service/run/run.py": ("tests/learner_service",),
    "learner_service/run/judge.py": ("tests/learner_service",),
    "learner_service/run/records.py": ("tests/learner_service",),
    "learner_service/run/membership.py": ("tests/learner_service",),
    "learner_service/run/preparation.py": ("tests/learner_service",),
    "learner_service/actors/streams.py": ("tests/learner_service",),
    "learner_service/actors/uploads.py": ("tests/learner_service",),
    "learner_service/actors/intake.py": ("tests/learner_service",),
    "learner_service/replay/buffer.py": ("tests/learner_service/replay",),
    "learner_service/replay/samplers.py": ("tests/learner_service/replay",),
    "learner_service/servicer.py": ("tests/learner_service",),
    "actor_service/uploader.py": ("tests/actor_service",),
    "actor_service/acting/rollout.py": ("tests/actor_service",),
    "actor_service/roles/participant.py": ("tests/actor_service",),
    "actor_service/roles/explorer.py": ("tests/actor_service",),
    "actor_service/roles/evaluator.py": ("tests/actor_service", "tests/integration/test_held_versions.py"),
    "actor_service/roles/evaluation.py": ("tests/actor_service",),
    "actor_service/policies/scheme.py": ("tests/actor_service/policies",),
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


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file."""
    tree = ast.parse(source)
    for index, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            changed = copy.deepcopy(tree)
            target = next(other for place, other in enumerate(ast.walk(changed)) if place == index)
            change(target)
            mutated = ast.unparse(ast.fix_missing_locations(changed))
            yield Mutant(file, getattr(node, "lineno", 0), ast.unparse(node), ast.unparse(target), mutated)


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
    """What is logged, no test has to hold."""
    return ast.unparse(call.func).startswith("_log.")


def _sample(seed: int, count: int) -> list[Mutant]:
    rng = random.Random(seed)
    found = [mutant for file in GLUE for mutant in mutants(file, (_ROOT / file).read_text(encoding="utf-8"))]
    return rng.sample(found, min(count, len(found)))


def _copied(folder: Path) -> Path:
    """A copy of the project as it is."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=_ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, names):
        if not name.startswith("benchmarks/results/") and (_ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_ROOT / name, folder / name)
    return folder


def _is_killed(project: Path, tests: tuple[str, ...]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "60", *tests]
    with subprocess.Popen(
        command,
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            return process.wait(_LIMIT_S) != 0
        except subprocess.TimeoutExpired:
            process.kill()
            return True


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument("--count", type=int, default=200, metavar="N", help="mutants (default: 200)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    survivors: list[Mutant] = []
    sample = _sample(arguments.seed, arguments.count)
    print(f"{len(sample)} mutants, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        project = _copied(Path(folder))
        for number, mutant in enumerate(sample, 1):
            file = project / mutant.file
            original = file.read_text(encoding="utf-8")
            file.write_text(mutant.source, encoding="utf-8")
            killed = _is_killed(project, GLUE[mutant.file])
            file.write_text(original, encoding="utf-8")
            if not killed:
                survivors.append(mutant)
                print(f"{number:4} {mutant.file}:{mutant.line} survives: {mutant.before} -> {mutant.after}", flush=True)
    share = 1 - len(survivors) / len(sample)
    figures = {
        "seed": arguments.seed,
        "mutants": len(sample),
        "survivors": [f"{each.file}:{each.line}: {each.before} -> {each.after}" for each in survivors],
    }
    return figures, [Target("share of mutants that are killed", share, _LEAST_KILLED, False)]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
