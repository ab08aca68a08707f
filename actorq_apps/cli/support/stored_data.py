"""Finds what the learner's process needs to import, show or export stored data. The command and Python share it."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actorq.config.sections import DATASETS, dataset_folder
from actorq.domain.environments import is_external
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import ActorQError, UserError
from actorq.process import EXIT_USER_ERROR
from actorq.rundirectory import RunDirectory
from actorq.start import command_of

LEARNER = "learner_service.datasets.command:command"
"""The command of the learner that reads and writes stored data."""
_ERROR = "error: "


def import_arguments(
    source: str,
    folder: Path | None,
    name: str | None,
    environment: str | None,
    like_run: Path | None,
    make: Callable[[str], EnvironmentSpec],
) -> tuple[str, ...]:
    """The arguments of the learner's command for an import.

    folder, name: of the data set; by default from the source. environment: its id; by default from the source.
    like_run: the folder of a run whose environment it is. make: makes an environment by its id, and returns its spec.

    Raises UserError when the data set exists, the source cannot be read, or no spec can be found.
    """
    target = folder or DATASETS / (name or _name_of(source))
    if target.exists():
        raise UserError(f"dataset import: {target} exists; give another --name, or remove the folder")
    spec = _spec_of(source, environment, like_run, make)
    return "import", source, str(target), "--spec", json.dumps(spec.to_json())


def show_arguments(given: str) -> tuple[str, ...]:
    """The arguments for a description. given: name or folder of a data set."""
    return "show", dataset_folder(given)


def export_arguments(given: str, target: str) -> tuple[str, ...]:
    """The arguments for an export. given: folder of a run, or name or folder of a data set."""
    named = dataset_folder(given)
    return "export", named if not Path(given).is_dir() and Path(named).is_dir() else given, target


def run_learner(*arguments: str) -> dict[str, Any]:
    """Run the learner's command in a process of its own. Returns the JSON that it prints. Raises its error."""
    process = subprocess.run(
        [*command_of(LEARNER), *arguments, "--json"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if process.returncode == 0:
        found: dict[str, Any] = json.loads(process.stdout)
        return found
    line = (process.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    raise (UserError if process.returncode == EXIT_USER_ERROR else ActorQError)(line.removeprefix(_ERROR))


def _spec_of(
    source: str, given: str | None, like_run: Path | None, make: Callable[[str], EnvironmentSpec]
) -> EnvironmentSpec:
    """The spec of the environment of a source: of a run, of the source itself, or of the environment."""
    found = run_learner("environment", source)
    if like_run is not None:
        run = RunDirectory(like_run)
        run.require_folder()
        spec = run.read_environment()
        if given not in (None, spec.environment_id):
            raise UserError(
                f"dataset import: --environment is {given}, but --like-run {like_run} is a run on "
                f"{spec.environment_id}; leave one of them out"
            )
        return spec
    if given is None and found["spec"] is not None:
        return EnvironmentSpec.from_json(found["spec"])
    environment = given or found["environment"]
    if not environment:
        raise UserError(f"dataset import: {source} does not name its environment; give --environment ID")
    if is_external(environment):
        raise UserError(
            f"dataset import: {environment} exists only in simulators, so its spaces come from a run; give --like-run "
            "RUN, the folder of a run that a simulator has joined"
        )
    return make(environment)


def _name_of(source: str) -> str:
    """A folder's name from a source, such as mujoco-hopper-medium-v0."""
    text = source.removeprefix("minari:") if source.startswith("minari:") else Path(source).resolve().stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "dataset"
