"""Checks the learner's files of a run without changing them, for `actorq verify`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from actorq.errors import InvalidInputError, UnreadableError, UserError
from actorq.process import EXIT_OK
from actorq.statefiles.findings import REFUSED, Finding, check_document, check_twice, report
from actorq.statefiles.lines import read_lines
from learner_service.files import COMMANDS, GRAPH_CACHE, OBJECT_STORAGE
from learner_service.replay.storage import verify as replay
from learner_service.run.evaluations import count_file, synced_count
from learner_service.training.checkpoint_files import CheckpointFiles

_LEAP = "version numbers continue far above the known ones"


def verify(directory: Path) -> list[Finding]:
    """List the whole, damaged and missing files of a learner, and the effect of a resume on each."""
    return [
        *_identity(directory),
        *_evaluations(directory / "evaluations.jsonl"),
        *(found.below("checkpoints") for found in _checkpoints(directory / "checkpoints")),
        *(found.below("replay") for found in replay.verify(directory / "replay")),
        *(
            Finding(f"events/{path.name}", "unchecked", "TensorBoard events, not used by a resume")
            for path in sorted((directory / "events").glob("*"))
        ),
    ]


def _identity(directory: Path) -> Iterator[Finding]:
    run, environment, outcome = (directory / f"{name}.json" for name in ("run", "environment", "outcome"))
    identity = check_twice(
        *(run, lambda values: f"run {values['run_id']}, learner processes so far: {values['lives']}"),
        "a resume is refused: restore one of the two from a backup",
    )
    yield from identity or [Finding(run.name, "missing", "no learner has started here", "a new run begins")]
    yield from check_twice(environment, lambda values: str(values["environment_id"]), "the next actor provides it")
    yield from check_twice(outcome, lambda values: str(values["state"]), "the run continues as if it were not over")
    yield from check_twice(
        *(directory / COMMANDS, lambda values: "paused" if values["paused"] else "not paused"),
        "the run continues as if no operator had paused or ended it",
    )
    volume = directory / OBJECT_STORAGE
    yield from check_twice(volume, lambda values: f"volume {values['volume']}", "the URL counts as another volume's")
    published = directory / "published.json"
    if published.exists():
        yield check_document(published, lambda values: f"versions up to {values['mark']} are used", _LEAP)
    graph = directory / GRAPH_CACHE
    if graph.exists():
        yield check_document(graph, lambda _: "the policy's graph, without weights", "it is exported again")
    if identity:
        goes_on = "the time continues from the newest checkpoint or evaluation"
        yield check_document(directory / "clock.json", lambda values: f"{values['elapsed_s']:.0f} s", goes_on)


def _evaluations(path: Path) -> Iterator[Finding]:
    aside = path.with_name(f"{path.name}.damaged")
    if aside.exists():
        yield Finding(aside.name, "unchecked", "damaged lines that an earlier resume set aside")
    lines = [values is not None for _, values in read_lines(path)] if path.exists() else []
    whole, damaged, synced = lines.count(True), lines.count(False), 0
    if (count := count_file(path)).exists():
        counted = check_document(count, lambda values: f"{values['count']} evaluations", "it is written again")
        synced = synced_count(path) if counted.state == "whole" else 0
        yield counted
    if damaged:
        told = f"{damaged} damaged lines; {whole} evaluations are whole"
        yield Finding(path.name, "damaged", told, f"the damaged lines move to {aside.name}; the other lines are used")
    elif whole < synced:
        told = f"{synced - whole} of {synced} evaluations are missing at its end"
        yield Finding(path.name, "damaged" if path.exists() else "missing", told, "the other evaluations are used")
    elif path.exists():
        yield Finding(path.name, "whole", f"{whole} evaluations")


def _checkpoints(directory: Path) -> Iterator[Finding]:
    folders = sorted(directory.iterdir(), reverse=True) if directory.is_dir() else []
    usable = False
    damaged: list[tuple[str, str, bool]] = []
    for folder in folders:
        is_put_back = folder.suffix == ".replaced" and not folder.with_suffix("").exists()
        if not (folder.stem if is_put_back else folder.name).isdigit():
            yield Finding(folder.name, "unchecked", "set aside or left unfinished; no resume reads it")
            continue
        try:
            checkpoint = CheckpointFiles.read(folder)
        except UnreadableError as error:
            yield Finding(folder.name, "unreadable", str(error), REFUSED)
        except UserError as error:
            yield Finding(folder.name, "damaged", str(error), "a resume is refused")
        except InvalidInputError as error:
            damaged.append((folder.name, str(error), usable))
        else:
            usable = True
            told = f"{checkpoint.updates:,} updates" + "; a resume puts it back" * is_put_back
            yield Finding(folder.name, "whole", told)
    on_resume = "a whole checkpoint is used" if usable else "a resume is refused without --checkpoint.new-networks"
    if (directory.parent / OBJECT_STORAGE).exists():
        on_resume = "the newest copy in object storage is used" + (", unless a whole checkpoint is newer" * usable)
    for name, reason, is_older in damaged:
        moved = f"{on_resume}; this one moves to {name}.damaged"
        yield Finding(name, "damaged", reason, "a newer whole checkpoint is used" if is_older else moved)


def run() -> int:
    """Print the findings for the folder in the argument."""
    sys.stdout.write(report(verify(Path(sys.argv[1]))))
    return EXIT_OK
