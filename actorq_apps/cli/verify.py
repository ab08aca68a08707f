"""`actorq verify`: checks the files of a run, and shows the effects of a resume."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from actorq.config.parser import OneLineParser
from actorq.errors import ActorQError, UserError
from actorq.process import EXIT_OK
from actorq.rundirectory import RunDirectory
from actorq.start import command_of
from actorq.statefiles.documents import copy_of, is_as_signed
from actorq.statefiles.findings import Finding, check_document, read_report, report
from actorq_apps.local.forkserver import child_environment

_DAMAGE_FOUND = 1
_STYLES = {
    "whole": "green", "damaged": "bold red", "missing": "yellow", "unreadable": "bold red", "unchecked": "dim",
}  # fmt: skip
# If a folder has more files than this in one state, one line summarizes them.
_LINES_PER_FOLDER = 12
_DESCRIPTION = """Check the files of a run against their checksums, without changing them. Stop the run first:
otherwise its newest files may be incomplete. Exit code 0: all files are intact, 1: a file is damaged,
missing or unreadable."""


def run(arguments: Sequence[str]) -> int:
    """Print the state of each file, and the effect of a resume on damaged files."""
    parser = OneLineParser(prog="actorq verify", usage="actorq verify RUN_DIR [--json]", description=_DESCRIPTION)
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print the findings as one line of JSON")
    given = parser.parse_args(arguments)
    directory = RunDirectory(given.run)
    found = check_run(directory)
    is_whole = not any(each.state in {"damaged", "missing", "unreadable"} for each in found)
    if given.json:
        print(report(found))
    else:
        _print(found, Console(highlight=False))
        if not is_whole and directory.is_in_use:
            print("the run is active, so its newest files may be incomplete: stop it and check again")
    return EXIT_OK if is_whole else _DAMAGE_FOUND


def check_run(directory: RunDirectory) -> list[Finding]:
    """The findings for a run's folder. Raises UserError when it is not the folder of a run."""
    root = directory.root
    directory.require_folder()
    files = (directory.config, root / "run.json", root / "checkpoints")
    if not any(each.exists() or copy_of(each).exists() for each in files):
        raise UserError(f"run directory {root} has no {files[0].name} and no {files[1].name}: it is no run")
    services = [("learner_service.verify:run", root)]
    if directory.policies.is_dir():
        services.append(("quantizer_service.verify:run", directory.policies))
    # Both checks run at once, because starting their processes takes most of the time.
    checks = [_start(function, folder) for function, folder in services]
    found = [*launcher_files(directory)]
    for process, (function, folder) in zip(checks, services, strict=True):
        below = folder.relative_to(root).as_posix()
        found += [each if below == "." else each.below(below) for each in _findings(process, function)]
    return found


def _start(function: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        (*command_of(function), str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(os.environ),
    )


def _findings(process: "subprocess.Popen[str]", function: str) -> list[Finding]:
    output, errors = process.communicate()
    if process.returncode:
        last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise ActorQError(f"{function} could not check the run: {last}")
    return read_report(output.splitlines()[-1])


def _configuration(directory: RunDirectory) -> Iterator[Finding]:
    paths = [directory.config, copy_of(directory.config)]
    whole = [path.is_file() and is_as_signed(path.read_bytes()) for path in paths]
    if not any(path.exists() for path in paths):
        # A run on a cluster keeps its configuration elsewhere.
        return
    on_resume = "the other copy is used" if any(whole) else "settings are read as they are, or refused in one line"
    for path, good in zip(paths, whole, strict=True):
        if good:
            yield Finding(path.name, "whole", "the configuration")
        elif path.exists():
            yield Finding(path.name, "damaged", "damaged or edited by hand: its digest does not fit", on_resume)
        else:
            yield Finding(path.name, "missing", "there is no such file", on_resume)


def launcher_files(directory: RunDirectory) -> Iterator[Finding]:
    """The findings for files that the launcher writes or prints."""
    yield from _configuration(directory)
    again = "it is written again"
    if directory.summary.exists():
        yield check_document(directory.summary, lambda values: f"the run was {values['state']}", again)
    if directory.addresses.exists():
        yield check_document(directory.addresses, lambda values: f"learner at {values['learner']}", again)
    for folder, what in ((directory.logs, "for people"), (directory.announcement("").parent, "written at each start")):
        if folder.is_dir():
            yield Finding(folder.name, "unchecked", f"{sum(1 for _ in folder.iterdir())} files, {what}")


def _print(found: Sequence[Finding], console: Console) -> None:
    groups = groupby(found, lambda finding: (finding.path.rpartition("/")[0], finding.state))
    lines = [line for _, group in groups for line in _shortened(list(group))]
    width = max(len(each.path) for each in lines)
    for each in lines:
        line = Text(f"{_printable(each.path):<{width}}  ")
        line.append(f"{each.state:<9}", _STYLES[each.state])
        line.append(f"  {_printable(each.detail)}")
        console.print(line, soft_wrap=True)
        if each.on_resume:
            console.print(Text(f"{'':<{width}}  on resume: {_printable(each.on_resume)}", "dim"), soft_wrap=True)
    counts: Counter[str] = Counter(each.state for each in found)
    console.print(", ".join(f"{counts[state]} {state}" for state in _STYLES if counts[state]))


def _shortened(group: list[Finding]) -> list[Finding]:
    first, last = group[0], group[-1]
    if len(group) <= _LINES_PER_FOLDER or first.on_resume or "/" not in first.path:
        return group
    names = f"{first.path} to {last.path.rpartition('/')[2]}"
    return [Finding(names, first.state, f"{len(group)} in all; the last one: {last.detail}")]


def _printable(text: str) -> str:
    """Escape control characters for the terminal: names and contents of files may contain any characters."""
    return "".join(character if character.isprintable() else "?" for character in text)
