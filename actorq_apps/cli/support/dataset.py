"""`actorq dataset`: imports recorded transitions, shows stored data, and exports those of a run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from actorq.config.parser import OneLineParser
from actorq.config.run_config import RunConfig
from actorq.config.sections import DATASETS, dataset_folder
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import ActorQError, UserError
from actorq.process import EXIT_USER_ERROR, Sources, argument_parser
from actorq.start import command_of
from actorq_apps.local.environment import environment_of
from actorq_apps.local.events import sigterm_as_exit

_USAGE = """actorq dataset import SOURCE [flags]
       actorq dataset show DATASET [--json]
       actorq dataset export RUN TARGET"""
_DESCRIPTION = f"""Stored data: recorded transitions for actorq train --dataset and --offline. import: store the
episodes of minari:ID, of a file .npz or .hdf5, or of the folder of a run or of Minari below {DATASETS}/. show: print
the content of a data set. export: write the stored transitions of a run, or a data set, to minari:ID or to a file .npz
or .hdf5, with the policy's versions, and with log probabilities if the run has them."""
_READS = (
    *("environment", "environment_args", "environment_wrappers", "environment_backend", "image_layout"),
    *("hindsight", "actor.environment_timeout_s"),
)
_LEARNER = "learner_service.datasets.command:command"
_ERROR = "error: "


def run(arguments: Sequence[str]) -> int:
    """Run one of the three subcommands."""
    name = arguments[0] if arguments else ""
    if name == "import":
        return _import(arguments[1:])
    parser = OneLineParser(prog="actorq dataset", usage=_USAGE, description=_DESCRIPTION)
    parser.add_argument("action", choices=("import", "show", "export"), help="the subcommand")
    parser.add_argument("source", metavar="SOURCE", help="data to import, DATASET to show, or RUN to export")
    parser.add_argument("target", nargs="?", metavar="TARGET", help="minari:ID, FILE.npz or FILE.hdf5")
    parser.add_argument("--json", action="store_true", help="show: print one line of JSON")
    more = "import: id of the environment, and its other settings as for actorq train (default: from SOURCE)"
    parser.add_argument("--environment", metavar="ID", help=more)
    _add_folder(parser)
    given = parser.parse_args(arguments)
    for name in ("environment", "name", "directory"):
        if getattr(given, name) is not None:
            raise UserError(f"actorq dataset {given.action}: --{name} is only for import; leave it out")
    if (given.action == "export") != (given.target is not None):
        raise UserError(
            f"actorq dataset {given.action}: expected {'RUN TARGET' if given.target is None else 'DATASET'}"
        )
    source = dataset_folder(given.source) if given.action == "show" else given.source
    if given.action == "export" and not Path(source).is_dir() and Path(dataset_folder(source)).is_dir():
        source = dataset_folder(source)
    _become(given.action, source, *([given.target] if given.target else []), *["--json"] * given.json)


def _import(arguments: Sequence[str]) -> int:
    parser = argument_parser("actorq dataset import", _DESCRIPTION, (RunConfig,), _READS)
    parser.usage = "actorq dataset import SOURCE [--environment ID] [flags]"
    parser.add_argument("source", metavar="SOURCE", help="minari:ID, a folder, FILE.npz or FILE.hdf5")
    _add_folder(parser)
    namespace = parser.parse_args(arguments)
    source: str = namespace.source
    folder = namespace.directory or DATASETS / (namespace.name or _name_of(source))
    if Path(folder).exists():
        raise UserError(f"dataset import: {folder} exists; give another --name, or remove the folder")
    found = _described(source)
    sources = Sources.read((RunConfig,), namespace)
    given = "environment" in sources.given[RunConfig]
    if given or found["spec"] is None:
        if not (given or found["environment"]):
            raise UserError(f"dataset import: {source} does not name its environment; give --environment ID")
        config = sources.resolve(RunConfig, {} if given else {"environment": found["environment"]})
        with sigterm_as_exit():
            spec = environment_of(config)
    else:
        spec = EnvironmentSpec.from_json(found["spec"])
    _become("import", source, str(folder), "--spec", json.dumps(spec.to_json()))


def _add_folder(parser: OneLineParser) -> None:
    parser.add_argument("--name", help="import: name of the data set (default: from SOURCE)")
    parser.add_argument("--directory", type=Path, help=f"import: folder of the data set (default: {DATASETS}/NAME)")


def _described(source: str) -> dict[str, Any]:
    """The environment of a source, which the learner's process reads."""
    process = subprocess.run(
        [*command_of(_LEARNER), "environment", source], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if process.returncode == 0:
        found: dict[str, Any] = json.loads(process.stdout)
        return found
    line = (process.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    raise (UserError if process.returncode == EXIT_USER_ERROR else ActorQError)(line.removeprefix(_ERROR))


def _name_of(source: str) -> str:
    """A folder's name from a source, such as mujoco-hopper-medium-v0."""
    text = source.removeprefix("minari:") if source.startswith("minari:") else Path(source).resolve().stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "dataset"


def _become(*arguments: str) -> NoReturn:
    """Replace this process by that of the learner's command."""
    sys.stdout.flush()
    os.execv(sys.executable, [*command_of(_LEARNER), *arguments])
