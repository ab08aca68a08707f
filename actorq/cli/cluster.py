"""`actorq cluster`: a run on Kubernetes, with the permissions of the user."""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console

from actorq.cli.display.cluster_view import rows, summary, table
from actorq.cli.display.display import LiveDisplay, PlainDisplay, is_live
from actorq.cli.display.view import RunView
from actorq.cluster import access, configuration, deployment, diagnosis, inventory, manifests
from actorq.cluster.connection import Cluster, connect
from actorq.cluster.diagnosis import PodView
from actorq.cluster.logs import stream_logs
from actorq.cluster.objects import TRAINING_RUN
from actorq.cluster.progress import await_progress
from actorq.config.parser import OneLineParser
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError, ConflictError, NotFoundError, UnavailableError, UserError
from actorq.local.events import Events, signals_as_events
from actorq.process import EXIT_OF_STATE, EXIT_OK
from actorq.transport.options import Certificates

_HELP = """usage: actorq cluster COMMAND [flags]

A run on Kubernetes, in one namespace of the current context. Needs a Role in that namespace, nothing more.

  up OVERLAY_DIR     apply a kustomize overlay (or a rendered YAML file) and wait until the run makes progress
  status             show each pod and the status of the run
  wait               wait until the run is over; the exit code is that of `actorq train`
  scale actors N     set the number of actor pods
  logs [ROLE|POD]    print logs; -f follows them, --previous prints those before a restart
  forward [POD]...   forward ports of this machine to learner, quantizer and pods of actors, until Ctrl-C
  down               save the run and delete what `up` made; the volume stays unless --delete-volume

  -n, --namespace NAMESPACE  instead of the context's own; actorq cluster COMMAND --help lists a command's flags
  --run NAME                 one of the namespace's TrainingRuns; not for up and down"""


def run(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP)
        if not arguments:
            raise UserError(f"a command is missing: {', '.join(_COMMANDS)}")
        return 0
    command = _COMMANDS.get(arguments[0])
    if command is None:
        raise UserError(f"unknown command {arguments[0]!r}: expected {', '.join(_COMMANDS)}; see actorq cluster --help")
    return command(arguments[1:]) or EXIT_OK


def _parser(command: str, description: str, certificates: bool = False, run: bool = True) -> OneLineParser:
    parser = OneLineParser(prog=f"actorq cluster {command}", description=description, allow_abbrev=False)
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help="namespace (default: that of the context)")
    if run:
        parser.add_argument(
            "--run", default="", metavar="NAME", help="name of a TrainingRun (default: the only run of the namespace)"
        )
    if certificates:
        parser.add_argument(
            "--certificates",
            type=Path,
            metavar="DIR",
            help="folder with ca.crt, tls.crt and tls.key, when the run uses mutual TLS",
        )
    return parser


def _up(arguments: Sequence[str]) -> None:
    parser = _parser("up", "Apply an overlay and wait until the run makes progress.", certificates=True, run=False)
    parser.add_argument("overlay", metavar="OVERLAY_DIR", help="kustomize overlay, rendered YAML file, or -")
    parser.add_argument("--name", help="name of the run (default: that of the overlay's folder or file)")
    parser.add_argument(
        "--set-image",
        action="append",
        default=[],
        metavar="NAME=IMAGE",
        help="image instead of the overlay's, such as actorq-actor=registry.example/actorq-actor:2; may be repeated",
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="time limit for progress (default: 300)"
    )
    given = parser.parse_args(arguments)
    if not given.timeout >= 0:
        parser.error(f"--timeout: expected 0 or more seconds, got {given.timeout:g}")
    certificates = Certificates.of(given.certificates, "operator")
    rendered = manifests.render(given.overlay)
    name = manifests.check_name(given.name) if given.name else manifests.default_name(given.overlay)
    cluster = connect(given.namespace or manifests.namespace_of(rendered))
    images = manifests.parse_images(given.set_image)
    ready = manifests.prepared(rendered, name, cluster.namespace, images)
    console = Console(highlight=False)
    deployment.apply(cluster, ready, name, print, lambda: _running_status(cluster, certificates))
    print(f"run {name} applied in namespace {cluster.namespace}: {len(ready)} objects", flush=True)
    view = RunView(f"{name} in namespace {cluster.namespace}", "", "")
    with (
        LiveDisplay(view, console) if is_live(console) else PlainDisplay(view, console.file) as display,
        access.learner_of(cluster, certificates) as learner,
    ):
        status = await_progress(cluster, learner.status, given.timeout, display)
    _print_outcome(cluster, name, status)


def _running_status(cluster: Cluster, certificates: Certificates | None) -> RunStatus | None:
    """The learner's status; None without a ready pod, because the next learner checks its configuration itself."""
    if not any(diagnosis.view(pod).ready for pod in access.pods_of(cluster, "learner")):
        return None
    try:
        with access.learner_of(cluster, certificates) as learner:
            return learner.status()
    except UnavailableError as error:
        raise UnavailableError(
            f"the existing run's learner does not tell its status: {error}{_hint(certificates)}"
        ) from None


def _print_outcome(cluster: Cluster, name: str, status: RunStatus) -> None:
    where = f"-n {cluster.namespace}"
    if status.state.final:
        print(
            f"run {name} is over: {status.state.value} after {status.environment_steps:,} environment steps; start "
            f"another with `actorq cluster down --delete-volume {where}` and `up`, or in another namespace"
        )
    else:
        print(
            f"run {name} makes progress: {status.environment_steps:,} environment steps; "
            f"`actorq cluster status {where}` shows it, `actorq cluster down {where}` ends it"
        )


def _status(arguments: Sequence[str]) -> None:
    given = _parser("status", "Show each pod and the status of the run.", certificates=True).parse_args(arguments)
    certificates = Certificates.of(given.certificates, "operator")
    cluster = connect(given.namespace, given.run)
    pods = access.some_pods(cluster)
    views = [diagnosis.view(pod) for pod in pods]
    made = inventory.read(cluster)
    name = access.run_of(pods[0]) or (made.name if made else "")
    status, told = _ask(cluster, views, certificates)
    print(f"{f'run {name}' if name else 'run'} in namespace {cluster.namespace}")
    print(table(rows(views, status)))
    print(told)
    for pod in pods:
        if fault := diagnosis.pod_fault(pod, float("inf")):
            print(fault.line())
    if stale := configuration.stale_pods(cluster, pods):
        print(
            f"the configuration has changed since {', '.join(stale)} started: `actorq cluster up` or `kubectl rollout "
            "restart` lets the change take effect"
        )


def _wait(arguments: Sequence[str]) -> int:
    parser = _parser("wait", "Wait until the run is over. The exit code is that of `actorq train`.", certificates=True)
    parser.add_argument(
        "--timeout",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="time limit (default: none); then exit code 1",
    )
    given = parser.parse_args(arguments)
    if not given.timeout >= 0:
        parser.error(f"--timeout: expected 0 or more seconds, got {given.timeout:g}")
    certificates = Certificates.of(given.certificates, "operator")
    cluster = connect(given.namespace, given.run)
    access.some_pods(cluster)
    console = Console(highlight=False)
    view = RunView(f"{given.run or 'run'} in namespace {cluster.namespace}", "", "")
    with (
        LiveDisplay(view, console) if is_live(console) else PlainDisplay(view, console.file) as display,
        access.learner_of(cluster, certificates) as learner,
    ):
        status = await_progress(cluster, learner.status, given.timeout, display, until_over=True)
    print(summary(status))
    return EXIT_OF_STATE[status.state]


def _ask(cluster: Cluster, pods: Sequence[PodView], certificates: Certificates | None) -> tuple[RunStatus | None, str]:
    """The run's status, and a line with the status or with the reason for its absence."""
    if not any(pod.ready for pod in pods if pod.role == "learner"):
        return None, "the run's status is not known: the learner's pod is not ready"
    try:
        with access.learner_of(cluster, certificates) as learner:
            status = learner.status()
            return status, summary(status)
    except UnavailableError as error:
        return None, f"the run's status is not known: {error}{_hint(certificates)}"


def _hint(certificates: Certificates | None) -> str:
    """A possible remedy when the learner's pod is ready but does not answer."""
    return "" if certificates else "; if the run uses mutual TLS, give --certificates DIR"


def _scale(arguments: Sequence[str]) -> None:
    parser = _parser("scale", "Set the number of actor pods. Removed pods first send their queued segments.")
    parser.usage = "actorq cluster scale actors N [flags]"
    parser.add_argument("what", choices=("actors",), metavar="actors", help="what to scale")
    parser.add_argument("replicas", type=int, metavar="N", help="number of pods")
    given = parser.parse_args(arguments)
    if given.replicas < 0:
        parser.error(f"N: expected 0 or more, got {given.replicas}")
    cluster = connect(given.namespace, given.run)
    # The operator sets the number of its Deployment's pods to that of the TrainingRun.
    api_version, kind, name = (*TRAINING_RUN, given.run) if given.run else ("apps/v1", "Deployment", "actor")
    try:
        before = cluster.scale(api_version, kind, name, given.replicas)
    except NotFoundError:
        raise UserError(f"namespace {cluster.namespace} has no {kind} {name}: name another with -n or --run") from None
    print(f"actors: {before} -> {given.replicas} pods")


def _logs(arguments: Sequence[str]) -> None:
    parser = _parser("logs", "Print the logs of all pods, those of a role, or one pod's.")
    parser.add_argument("pods", nargs="?", metavar="ROLE|POD", help="learner, quantizer, actor, evaluator or a pod")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until Ctrl-C or until the pods have ended")
    parser.add_argument("--previous", action="store_true", help="logs of containers before their last restart")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each log")
    given = parser.parse_args(arguments)
    if given.tail is not None and given.tail < 0:
        parser.error(f"--tail: expected 0 or more, got {given.tail}")
    if given.previous and given.follow:
        parser.error("--previous: a container that has ended logs nothing more; leave out --follow")
    cluster = connect(given.namespace, given.run)
    views = access.matching([diagnosis.view(pod) for pod in access.some_pods(cluster)], given.pods)
    names = [view.name for view in views if view.restarts or not given.previous]
    if not names:
        raise UserError(f"--previous: no container of {', '.join(view.name for view in views)} has been restarted")
    width = max(map(len, names))
    write: Callable[[str, str], None] = (
        (lambda _, line: print(line, flush=True))
        if len(names) == 1
        else (lambda pod, line: print(f"{pod:<{width}}  {line}", flush=True))
    )
    stream_logs(cluster, names, given.follow, given.tail, write, given.previous)


def _forward(arguments: Sequence[str]) -> None:
    parser = _parser("forward", "Forward ports of this machine to learner and quantizer until Ctrl-C.")
    parser.add_argument("pods", nargs="*", metavar="POD", help="further pods of actors to forward to")
    for role, port in access.PORTS.items():
        parser.add_argument(
            f"--{role}-port",
            type=int,
            default=port,
            metavar="PORT",
            help=f"port for the {role}, 0 for any free port (default: {port})",
        )
    given = parser.parse_args(arguments)
    cluster = connect(given.namespace, given.run)
    views = [diagnosis.view(pod) for pod in access.some_pods(cluster)]
    actors = [view for name in given.pods for view in access.matching(views, name)]
    width = max(map(len, [*access.PORTS, *(actor.name for actor in actors)]))
    events: Events = SimpleQueue()
    with signals_as_events(events), ExitStack() as stack:
        for role in access.PORTS:
            forward = stack.enter_context(access.forwarded(cluster, role, getattr(given, f"{role}_port"), _complain))
            print(f"{role:<{width}}  {forward.address}", flush=True)
        for actor in actors:
            forward = stack.enter_context(access.forwarded_pod(cluster, actor, _complain))
            print(f"{actor.name:<{width}}  {forward.address}", flush=True)
        print("Ctrl-C ends it", flush=True)
        events.get()


def _complain(text: str) -> None:
    # In one write, because several threads may report.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _down(arguments: Sequence[str]) -> None:
    parser = _parser("down", "Save the run and delete what `up` made.", certificates=True, run=False)
    parser.add_argument("--delete-volume", action="store_true", help="also delete the run's volume with all its files")
    given = parser.parse_args(arguments)
    certificates = Certificates.of(given.certificates, "operator")
    cluster = connect(given.namespace)
    if not given.delete_volume:
        _save(cluster, certificates)
    deployment.remove(cluster, given.delete_volume, lambda text: print(text, flush=True))
    print(f"namespace {cluster.namespace} has no run anymore")


def _save(cluster: Cluster, certificates: Certificates | None) -> None:
    """Save a checkpoint. If that fails, the learner still saves when its pod is told to end."""
    if not any(diagnosis.view(pod).ready for pod in access.pods_of(cluster, "learner")):
        return
    try:
        with access.learner_of(cluster, certificates) as learner:
            print(f"saved {learner.save_checkpoint()}", flush=True)
    except ConflictError:
        # The run is over and saved, or has not started.
        return
    except UnavailableError as error:
        print(f"not saved yet; the learner saves when its pod ends: {error}{_hint(certificates)}", flush=True)
    except ActorQError as error:
        print(f"not saved yet; the learner saves when its pod ends: {error}", flush=True)


_COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    "up": _up,
    "status": _status,
    "wait": _wait,
    "scale": _scale,
    "logs": _logs,
    "forward": _forward,
    "down": _down,
}
