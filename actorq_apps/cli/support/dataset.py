"""`actorq dataset`: imports recorded transitions, shows stored data, and exports those of a run."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from actorq.config.parser import OneLineParser
from actorq.config.run_config import RunConfig
from actorq.config.sections import DATASETS
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.process import Sources, argument_parser
from actorq.start import command_of
from actorq_apps.cli.support.stored_data import LEARNER, export_arguments, import_arguments, show_arguments
from actorq_apps.local.environment import environment_of
from actorq_apps.local.events import sigterm_as_exit

_USAGE = """actorq dataset import SOURCE [flags]
       actorq dataset show DATASET [--json]
       actorq dataset export RUN TARGET [--json]"""
_DESCRIPTION = f"""Stored data: recorded transitions for actorq train --dataset and --offline. import: store the
episodes of minari:ID, of a file .npz or .hdf5, or of the folder of a run or of Minari below {DATASETS}/. show: print
the content of a data set. export: write the stored transitions of a run, or a data set, to minari:ID or to a file .npz
or .hdf5, with the policy's versions, and with log probabilities if the run has them."""
_READS = (
    *("environment", "environment_args", "environment_wrappers", "environment_backend", "image_layout"),
    *("hindsight", "actor.environment_timeout_s"),
)


def run(arguments: Sequence[str]) -> int:
    """Run one of the three subcommands."""
    name = arguments[0] if arguments else ""
    if name == "import":
        return _import(arguments[1:])
    parser = OneLineParser(prog="actorq dataset", usage=_USAGE, description=_DESCRIPTION)
    parser.add_argument("action", choices=("import", "show", "export"), help="the subcommand")
    parser.add_argument("source", metavar="SOURCE", help="data to import, DATASET to show, or RUN to export")
    parser.add_argument("target", nargs="?", metavar="TARGET", help="minari:ID, FILE.npz or FILE.hdf5")
    more = "import: id of the environment, and its other settings as for actorq train (default: from SOURCE)"
    parser.add_argument("--environment", metavar="ID", help=more)
    _add_flags(parser)
    given = parser.parse_args(arguments)
    for name in ("environment", "name", "directory", "like_run"):
        if getattr(given, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"actorq dataset {given.action}: {flag} is only for import; leave it out")
    if (given.action == "export") != (given.target is not None):
        raise UserError(
            f"actorq dataset {given.action}: expected {'RUN TARGET' if given.target is None else 'DATASET'}"
        )
    made = show_arguments(given.source) if given.action == "show" else export_arguments(given.source, given.target)
    _become(*made, *["--json"] * given.json)


def _import(arguments: Sequence[str]) -> int:
    parser = argument_parser("actorq dataset import", _DESCRIPTION, (RunConfig,), _READS)
    parser.usage = "actorq dataset import SOURCE [--environment ID] [flags]"
    parser.add_argument("source", metavar="SOURCE", help="minari:ID, a folder, FILE.npz or FILE.hdf5")
    _add_flags(parser)
    given = parser.parse_args(arguments)
    sources = Sources.read((RunConfig,), given)
    environment: str | None = sources.given[RunConfig].get("environment")

    def make(environment: str) -> EnvironmentSpec:
        with sigterm_as_exit():
            return environment_of(sources.resolve(RunConfig, {"environment": environment}))

    made = import_arguments(given.source, given.directory, given.name, environment, given.like_run, make)
    _become(*made, *["--json"] * given.json)


def _add_flags(parser: OneLineParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--name", help="import: name of the data set (default: from SOURCE)")
    parser.add_argument("--directory", type=Path, help=f"import: folder of the data set (default: {DATASETS}/NAME)")
    parser.add_argument(
        "--like-run",
        type=Path,
        metavar="RUN",
        help="import: folder of a run whose spaces the data have, for environments external/NAME",
    )


def _become(*arguments: str) -> NoReturn:
    """Replace this process by that of the learner's command."""
    sys.stdout.flush()
    os.execv(sys.executable, [*command_of(LEARNER), *arguments])
