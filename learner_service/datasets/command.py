"""`actorq dataset`: imports, shows and exports stored data. The caller has found the environment's spec."""

import json
import sys
from argparse import Namespace
from pathlib import Path

from actorq.config.parser import OneLineParser
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.extras import require
from actorq.process import EXIT_OK
from actorq.text import return_text
from learner_service.datasets.arrays import HDF5_SUFFIXES, SUFFIXES, ArrayFile, write_arrays
from learner_service.datasets.episodes import Source
from learner_service.datasets.minari_data import PREFIX, MinariEpisodes, write_minari
from learner_service.datasets.recorded_runs import RecordedRun
from learner_service.datasets.stored import StoredDataset, write


def command() -> int:
    """Run one of the subcommands."""
    parser = OneLineParser(prog="actorq dataset")
    parser.add_argument("action", choices=("import", "environment", "show", "export"))
    parser.add_argument("source")
    parser.add_argument("target", nargs="?")
    parser.add_argument("--spec")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(sys.argv[1:])
    return {"import": _import, "environment": _environment, "show": _show, "export": _export}[given.action](given)


def open_source(given: str) -> Source:
    """The episodes that a command names: minari:ID, a folder or a file. Raises UserError."""
    if given.startswith(PREFIX):
        return MinariEpisodes(given.removeprefix(PREFIX))
    path = Path(given)
    if path.is_dir():
        return MinariEpisodes(path) if (path / "data" / "metadata.json").exists() else RecordedRun(path)
    if path.is_file() and path.suffix in SUFFIXES:
        return ArrayFile(path)
    expected = f"{PREFIX}ID, a folder of a run or of Minari, or a file {' or '.join(SUFFIXES)}"
    came = "a file of another kind" if path.is_file() else "which does not exist"
    raise UserError(f"dataset import: expected {expected}, got {given}, {came}")


def _environment(given: Namespace) -> int:
    """Print the id of the source's environment, and its spec if the source has one, as one line of JSON."""
    source = open_source(given.source)
    spec = source.spec.to_json() if isinstance(source, RecordedRun) else None
    sys.stdout.write(json.dumps({"environment": source.environment, "spec": spec}) + "\n")
    return EXIT_OK


def _import(given: Namespace) -> int:
    source = open_source(given.source)
    spec = EnvironmentSpec.from_json(json.loads(given.spec))
    if source.environment and source.environment != spec.environment_id:
        raise UserError(
            f"dataset import: expected data of {spec.environment_id}, got data of {source.environment} in "
            f"{source.text}; give --environment {source.environment}"
        )
    if isinstance(source, ArrayFile):
        source.check_limit(spec)
    made = write(Path(given.target), spec, source)
    if given.json:
        _print_json(made, 0)
        return EXIT_OK
    _print(made)
    sys.stdout.write(f"train with it: actorq train {spec.environment_id} --dataset {made.directory}\n")
    return EXIT_OK


def _show(given: Namespace) -> int:
    made = StoredDataset.read(Path(given.source))
    store = made.open()
    whole, damaged = store.transitions, store.segments.damaged
    store.close()
    if given.json:
        _print_json(made, damaged)
        return EXIT_OK
    _print(made)
    if damaged:
        sys.stdout.write(
            f"  {'damage':<13} {damaged} segments are damaged and skipped; {whole:,} transitions are kept\n"
        )
    return EXIT_OK


def _export(given: Namespace) -> int:
    target = given.target or ""
    path = Path(target)
    if not target.startswith(PREFIX) and path.suffix not in SUFFIXES:
        raise UserError(
            f"dataset export: expected a target {PREFIX}ID or a file {' or '.join(SUFFIXES)}, got {target!r}"
        )
    if path.suffix in HDF5_SUFFIXES:
        require("dataset export", ["datasets"])
    if not target.startswith(PREFIX) and path.exists():
        raise UserError(f"dataset export: {path} exists; give another file, or remove it")
    run = RecordedRun(Path(given.source), what="export")
    try:
        if target.startswith(PREFIX):
            episodes, steps = write_minari(target.removeprefix(PREFIX), run.spec, run, run.text)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            episodes, steps = write_arrays(path, run)
        cut, damaged = run.cut, run.damaged
    finally:
        run.close()
    if given.json:
        counts = {"episodes": episodes, "transitions": steps, "cut_episodes": cut, "damaged_segments": damaged}
        sys.stdout.write(json.dumps({"target": target, **counts}) + "\n")
        return EXIT_OK
    notes = [f"{cut:,} episodes whose end is not stored count as truncated"] * bool(cut)
    notes += [f"{damaged:,} damaged segments are left out"] * bool(damaged)
    sys.stdout.write(f"{episodes:,} episodes with {steps:,} transitions: {target}{''.join(f'; {n}' for n in notes)}\n")
    return EXIT_OK


def _print_json(made: StoredDataset, damaged: int) -> None:
    names = ("source", "transitions", "episodes", "terminated", "digest")
    values = {
        "directory": str(made.directory),
        **{name: getattr(made, name) for name in names},
        "environment": made.spec.environment_id,
        "returns": dict(zip(("mean", "deviation", "lowest", "highest"), made.returns, strict=True)),
        "damaged_segments": damaged,
    }
    sys.stdout.write(json.dumps(values) + "\n")


def _print(made: StoredDataset) -> None:
    mean, deviation, lowest, highest = map(return_text, made.returns)
    lines = (
        ("environment", made.spec.environment_id),
        ("observations", made.spec.observations_text),
        ("actions", made.spec.actions_text),
        ("source", made.source),
        (
            "transitions",
            f"{made.transitions:,} in {made.episodes:,} episodes; {made.terminated:,} end in a terminal state",
        ),
        ("returns", f"{mean} on average (deviation {deviation}), from {lowest} to {highest}"),
        ("digest", made.digest),
    )
    sys.stdout.write(f"{made.directory}\n" + "".join(f"  {name:<13} {text}\n" for name, text in lines))
