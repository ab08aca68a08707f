"""`actorq.train`: starts a run next to the calling program."""

import os
import queue
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq.extras import require
from actorq.rundirectory import RunDirectory
from actorq_apps.cli.display.display import display_of, is_terminal
from actorq_apps.cli.display.view import RunView
from actorq_apps.local.child import Child
from actorq_apps.local.events import ChildExited
from actorq_apps.local.wholerun import read_news, spec_line, start_run
from actorq_apps.python.arguments import as_tree, with_arguments
from actorq_apps.python.environments import resolve
from actorq_apps.python.notebook import NotebookDisplay, in_notebook
from actorq_apps.python.run import Callback, Item, Run

if TYPE_CHECKING:
    from actor_service.embedded import OwnEnvironment

_PATIENCE_S = 5.0


def train(
    environment: Any,
    algorithm: str | None = None,
    *,
    directory: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **given: Any,
) -> Run:
    """Start training. Returns when the settings are checked and the run has begun.

        run = actorq.train("CartPole-v1")
        print(run.wait().mean_return)
        action = run.policy().predict(observation)

    Learner, quantizer, actors and evaluator are separate processes, as with `actorq train`. An environment that other
    processes cannot create runs in this process, on threads. Examples are a class from a notebook or script, a nested
    function, or an open environment.

    environment: an id; MODULE:NAME; a class or function that creates a gymnasium.Env; or a gymnasium.Env. A
        gymnasium.Env is the only environment of the run: actor and evaluator take turns in it.
    algorithm: dqn, d4pg, td3, sac, xqc, ppo, impala, td3bc or iql; by default the preset's.
    directory: folder of the run, by default runs/ENVIRONMENT-DATE. resume: continue the run in it.
    callbacks: functions that get each event, on another thread. A callback that returns False stops the run.
    progress: whether to show progress; by default in notebooks, and in terminals during `wait`.
    given: settings of `actorq train --help-all`, by section: `dqn={"batch_size": 64}` or `dqn__batch_size=64`.
        Stored data: `dataset="NAME"` or a `Dataset`, and `offline=True` to train without actors.

    Raises UserError for wrong settings and for an environment that does not work.
    """
    require("actorq.train", ["learner", "quantizer", "actor"])
    found = resolve(environment)
    own = None if isinstance(found, str) else found
    tree = settings_of(found, algorithm, given)
    config = settings.build(RunConfig, tree)
    if resume and directory is None:
        raise UserError("resume needs directory, the folder of the run to continue")
    items: queue.SimpleQueue[Item] = queue.SimpleQueue()
    with ExitStack() as undo:
        files = TemporaryDirectory(prefix="actorq-run-")
        undo.callback(files.cleanup)
        if own is not None:
            own.claim()
            undo.callback(own.free)
        child = _start(Path(files.name), tree, directory, resume, own is not None, items)
        undo.callback(child.end, _PATIENCE_S)
        if own is not None:
            child.write(spec_line(own.describe(config)))
        run_directory, notices = _began(child, items)
        view = RunView.of(str(run_directory.root), config)
        run = Run(child, run_directory, items, _display(view, progress), callbacks, own, files)
        undo.pop_all()
    for notice in notices:
        items.put(notice)
    return run


def settings_of(found: "str | OwnEnvironment", algorithm: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run. The caller's settings override those from environment variables."""
    tree = as_tree(given)
    tree["environment"] = found if isinstance(found, str) else found.environment_id
    if algorithm is not None:
        tree["algorithm"] = algorithm
    tree = settings.merged(settings.from_environment(RunConfig, os.environ), tree)
    return tree if isinstance(found, str) else settings.merged(tree, _acting_here(found, tree))


def _acting_here(own: "OwnEnvironment", tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are fixed when this process acts. Raises UserError for other values."""
    fixed: dict[str, Any] = {"actors": 1, "environment_backend": "python"}
    why = "its environment exists only in this process; move its class into a module to have more"
    if own.is_single:
        fixed["environments_per_actor"] = 1
        why = "its environment is a single object; give a class or a function that makes one"
    for name, value in fixed.items():
        if tree.get(name, value) != value:
            raise UserError(f"{name}: expected {value} for this run, got {tree[name]}: {why}")
    return {**fixed, "like": tree.get("like", own.registered_id)}


def _start(
    files: Path,
    tree: Mapping[str, Any],
    directory: str | Path | None,
    resume: bool,
    acts: bool,
    items: "queue.SimpleQueue[Item]",
) -> Child:
    config = files / "config.yaml"
    try:
        config.write_text(yaml.safe_dump(dict(tree)), encoding="utf-8")
    except yaml.representer.RepresenterError as error:
        raise UserError(f"settings must be numbers, texts, lists and dicts, got {error.args[-1]!r}") from None
    flags = ("--news", *(("--parent-acts",) if acts else ()))
    return start_run(
        *("run", None if directory is None else Path(directory), config, files / "launcher.log", items.put, *flags),
        resume=resume,
        on_line=lambda _, line: read_news(line, items.put, items.put, items.put),
    )


def _began(child: Child, items: "queue.SimpleQueue[Item]") -> tuple[RunDirectory, list[str]]:
    """Wait until the run has begun. Returns its folder and the events until then. Raises the run's error."""
    notices: list[str] = []
    while True:
        match items.get():
            case Path() as folder:
                return RunDirectory(folder), notices
            case ChildExited(_, _, code):
                raise with_arguments(child.failure(code, "before the run began"))
            case str() as text:
                notices.append(text)


def _display(view: RunView, progress: bool | None) -> Any:
    """The display of the run, or None."""
    if progress is False:
        return None
    if in_notebook():
        return NotebookDisplay(view)
    return display_of(view) if progress or is_terminal() else None
