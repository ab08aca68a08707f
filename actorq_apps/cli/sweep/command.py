"""`actorq sweep`: searches for settings with many runs, on this machine or on Kubernetes."""

import math
import queue
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actorq.config import settings
from actorq.config.messages.positional import add_environment
from actorq.config.parser import OneLineParser, number
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq.process import Sources, argument_parser
from actorq.statefiles.basis import open_folder
from actorq.statefiles.locks import locked_folder
from actorq_apps.cli.display.output import with_queued_output
from actorq_apps.cli.train import resolved_config
from actorq_apps.local.events import Events, signals_as_events
from actorq_apps.local.forkserver import ForkServers, run_server

if TYPE_CHECKING:
    from actorq_apps.sweep.study import Study
    from actorq_apps.sweep.trials import Backend

_DESCRIPTION = """Search for settings: start many runs of one task, with settings that Optuna proposes. Flags, --config
and environment define the task as in actorq train. With --template, runs are TrainingRun objects on Kubernetes. The
same command continues an interrupted sweep. A larger --trials adds trials. DIR gets trials.json, trials.csv,
sweep.png, and best/ with the best run's settings and policy. Exit codes: 0; 2 wrong input; 130 and 143 ended by Ctrl-C
and SIGTERM; 1 any other error, or all trials failed."""
_EXTRA = ("optuna", "matplotlib")
_TRIALS = 20


def run(arguments: Sequence[str]) -> int:
    """Run the missing trials, then write the results. Returns the exit code."""
    given = _parser().parse_args(arguments)
    return with_queued_output(lambda: _sweep(arguments, given), lambda code: code >= 128)


def _sweep(arguments: Sequence[str], given: Any) -> int:
    if missing := [name for name in _EXTRA if find_spec(name) is None]:
        raise UserError(f"actorq sweep needs {' and '.join(missing)}: pip install 'actorq[sweep]'")
    # Imported here, because these modules need the extra.
    from actorq_apps.cli.sweep.view import open_view, print_results
    from actorq_apps.sweep.report import write_results
    from actorq_apps.sweep.space import changes_tree, read_space
    from actorq_apps.sweep.study import Study
    from actorq_apps.sweep.sweep import SweepInterruptedError, run_sweep
    from actorq_apps.sweep.trials import Objective

    if given.namespace and given.template is None:
        raise UserError("--namespace: without --template the runs are processes of this machine")
    space, objective = read_space(given.search, given.search_file), Objective(given.objective)
    sources = Sources.read((RunConfig,), given)
    template, tree = _task(given, sources)

    def config_of(changes: Mapping[str, Any]) -> RunConfig:
        return settings.build(RunConfig, tree, changes_tree(changes))

    space.check(config_of, tree if template else sources.given[RunConfig], tree.get("algorithm"))
    if given.sampler == "grid":
        space.grid()
    task = settings.build(RunConfig, tree)
    basis = {
        "task": task.model_dump(mode="json"),
        "template": template,
        "search": {
            "space": space.to_json(),
            **{name: getattr(given, name) for name in ("sampler", "pruner", "objective", "sampler_seed")},
        },
    }
    with _folder(given.directory, basis) as lock:
        journal, how = given.directory / "journal.jsonl", (given.sampler, given.pruner, given.sampler_seed)
        study = Study(journal, space, objective, *how, given.jobs > 1)
        trials = given.trials or study.cells or _TRIALS
        if study.cells is not None:
            trials = min(trials, study.cells)
        events: Events = queue.SimpleQueue()
        local = run_server() if template is None else nullcontext()
        with signals_as_events(events), open_view(trials) as view, local as servers:
            backend = _backend(given, template, config_of, study, events, lock, servers, view.line)
            command = shlex.join(["actorq", "sweep", *arguments])
            try:
                run_sweep(study, backend, view, events, trials, given.jobs, task.max_environment_steps)
            except SweepInterruptedError as interrupted:
                view.line(f"continue with: {command}")
                return 128 + interrupted.number
            finally:
                write_results(given.directory, study, space, objective, command)
        print_results(study, objective)
        print(_keep_best(study, backend, given.directory))
    return 0


def _parser() -> OneLineParser:
    parser = argument_parser("actorq sweep", _DESCRIPTION, (RunConfig,))
    add_environment(parser)
    own = parser.section("sweep", "What to search, and how.")
    own.add_argument("--directory", type=Path, required=True, metavar="DIR", help="folder of the runs and the results")
    own.add_argument(
        "--search",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=RANGE",
        help="settings to search, as NAME=LOW..HIGH, NAME=LOW..HIGH..STEP, NAME=log:LOW..HIGH or NAME=VALUE|VALUE, "
        "such as dqn.learning_rate=log:1e-4..1e-2; may be repeated (default: none)",
    )
    own.add_argument(
        "--search-file",
        type=Path,
        metavar="FILE",
        help="YAML file with further settings to search: {NAME: {type: float, low: X, high: X}}; types float, log, int "
        "with low, high and step, and categorical with values (default: none)",
    )
    positive = number(1, math.inf, "at least 1", int)
    own.add_argument(
        "--trials", type=positive, metavar="N", help=f"number of trials (default: {_TRIALS}; all cells of a grid)"
    )
    own.add_argument("--jobs", type=positive, default=1, metavar="K", help="runs at a time (default: 1)")
    own.add_argument(
        "--objective",
        choices=("return", "seconds", "steps"),
        default="return",
        help="return at the end; or seconds or environment steps until a run is solved (default: return)",
    )
    own.add_argument(
        "--sampler", choices=("tpe", "random", "grid"), default="tpe", help="method to propose trials (default: tpe)"
    )
    own.add_argument(
        "--pruner",
        choices=("none", "median", "asha", "hyperband"),
        default="median",
        help="rule that ends runs early because of low returns (default: median)",
    )
    seed = number(0, 2**32 - 1, f"0 to {2**32 - 1}", int)
    own.add_argument("--sampler-seed", type=seed, default=0, metavar="N", help="seed of the sampler (default: 0)")
    own.add_argument(
        "--template",
        type=Path,
        metavar="FILE",
        help="YAML file with a TrainingRun; runs become such objects on Kubernetes (default: local processes)",
    )
    own.add_argument(
        "--namespace", metavar="NAME", help="namespace of the objects (default: that of the template or the context)"
    )
    return parser


def _task(given: Any, sources: Sources) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The template, if any, and the tree of the given settings. Raises UserError for an impossible task."""
    tree = sources.given[RunConfig]
    if given.template is None:
        # Unless an algorithm is given, the environment decides it.
        return None, {**tree, "algorithm": resolved_config(sources).algorithm}
    from actorq_apps.sweep.cluster import read_template, template_tree

    if tree:
        raise UserError(f"--{next(iter(tree)).replace('_', '-')}: with --template, put settings in its spec.config")
    template = read_template(given.template)
    return template, template_tree(template)


def _folder(root: Path, basis: Mapping[str, Any]) -> AbstractContextManager[int]:
    """Create the folder, or continue in it. Yields the descriptor of its exclusive lock. Raises UserError."""
    from actorq_apps.sweep.processes import FOLDERS

    refusal = "was made with {} ({{}}): take another folder"
    kinds = {"task": "other settings", "template": "another template", "search": "another search"}
    open_folder(root, "actorq sweep", FOLDERS, basis, {name: refusal.format(kind) for name, kind in kinds.items()})
    awaited = "waiting for the runs of the killed sweep to end"
    in_use = f"--directory: {root} is in use by another actorq sweep"
    return locked_folder(root, lambda: print(awaited, flush=True), in_use)


def _backend(
    given: Any,
    template: dict[str, Any] | None,
    config_of: Callable[[Mapping[str, Any]], RunConfig],
    study: "Study",
    events: Events,
    lock: int,
    servers: ForkServers | None,
    tell: Callable[[str], None],
) -> "Backend":
    identity = study.attribute("identity", lambda: uuid.uuid4().hex[:6])
    if template is None:
        from actorq_apps.sweep.processes import Processes

        return Processes(given.directory, identity, config_of, events, lock, servers)
    if find_spec("kubernetes") is None:
        raise UserError("actorq sweep --template needs kubernetes: pip install 'actorq[cluster]'")
    from actorq_apps.cluster.context import connect
    from actorq_apps.sweep.cluster import ClusterRuns

    cluster = connect(given.namespace or template["metadata"].get("namespace"))
    return ClusterRuns(cluster, template, identity, config_of, tell)


def _keep_best(study: "Study", backend: "Backend", root: Path) -> str:
    """Copy the best run's files to DIR/best. Returns a line about them."""
    from actorq_apps.sweep.trials import Trial

    best = study.best()
    if best is None:
        return "no trial has solved the task: there is no best one"
    folder = root / "best"
    folder.mkdir(exist_ok=True)
    return backend.keep_best(Trial(best.number, best.params), folder)
