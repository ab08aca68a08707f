"""`actorq cluster`: a run on Kubernetes, with the user's permissions."""

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import yaml

from actorq.config.parser import OneLineParser, number
from actorq.domain.status import RunStatus
from actorq.errors import UnavailableError, UserError
from actorq.process import EXIT_OF_STATE, EXIT_OK
from actorq.transport.options import Certificates
from actorq_apps.cli.display.cluster_view import summary, table
from actorq_apps.cli.display.display import display_of
from actorq_apps.cli.display.output import with_queued_output
from actorq_apps.cli.display.view import RunView
from actorq_apps.cluster import access, configuration, deployment, diagnosis, manifests
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.context import connect
from actorq_apps.cluster.diagnosis import PodView
from actorq_apps.cluster.logs import stream_logs
from actorq_apps.cluster.objects import COMPONENT_LABEL, TRAINING_RUN, items, name_of, run_of
from actorq_apps.cluster.progress import await_progress
from actorq_apps.cluster.training_runs import RecordedEnd, is_training_run
from actorq_apps.local.events import Events, signals_as_events
from actorq_apps.operator.naming import check_run_name, named

# Services of which a run has exactly one.
_FORWARDED = ("learner", "quantizer")
_FROM_0 = number(0, math.inf, "0 or more", int)
_HELP = """usage: actorq cluster COMMAND [flags]

A run on Kubernetes, in one namespace of the current context. Needs a Role in that namespace, nothing more.

  up OVERLAY_DIR     apply a kustomize overlay (or a rendered YAML file) and wait until the run makes progress
  status             show each pod and the status of the run
  wait               wait until the run is over; the exit code is that of `actorq train`
  scale actors N     set the number of actor pods
  logs [ROLE|POD]    print logs; -f follows them, --previous prints those before a restart
  forward [POD]...   forward ports of this machine to learner, quantizer and pods of actors, until Ctrl-C
  down               delete what `up` made; the volume stays unless --delete-volume

  -n, --namespace NAMESPACE  instead of the context's own; actorq cluster COMMAND --help lists a command's flags
  --run NAME                 one of the namespace's runs; `up` takes --name"""


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
    parser = OneLineParser(prog=f"actorq cluster {command}", description=description)
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help="namespace (default: that of the context)")
    if run:
        parser.add_argument(
            "--run", default="", metavar="NAME", help="name of a run (default: the only run of the namespace)"
        )
    if certificates:
        parser.add_argument(
            "--certificates",
            type=Path,
            metavar="DIR",
            help="folder with ca.crt, tls.crt and tls.key, when the run uses mutual TLS",
        )
    return parser


def _parsed(parser: OneLineParser, arguments: Sequence[str], timeout_s: float, help_: str) -> Namespace:
    seconds = number(0.0, math.inf, "0 or more seconds")
    parser.add_argument("--timeout", type=seconds, default=timeout_s, metavar="SECONDS", help=help_)
    return parser.parse_args(arguments)


def _await(
    cluster: Cluster, name: str, certificates: Certificates | None, timeout_s: float, until_over: bool
) -> RunStatus | RecordedEnd:
    """Show the run until it makes progress, or until it is over."""
    view = RunView(f"{name or 'run'} in namespace {cluster.namespace}", "", "")

    def show() -> RunStatus | RecordedEnd:
        with display_of(view) as display, access.learner_of(cluster, certificates) as learner:
            return await_progress(cluster, learner.status, timeout_s, display, until_over=until_over)

    return with_queued_output(show)


def _up(arguments: Sequence[str]) -> None:
    parser = _parser("up", "Apply an overlay and wait until the run makes progress.", certificates=True, run=False)
    parser.add_argument("overlay", metavar="OVERLAY_DIR", help="kustomize overlay, rendered YAML file, or -")
    parser.add_argument(
        "--name",
        default="",
        help="name of the run, with which the names of its objects begin; several share a namespace",
    )
    parser.add_argument("--print", action="store_true", help="only print the objects, for `kubectl apply -f -`")
    given = _parsed(parser, arguments, 300.0, "time limit for progress (default: 300)")
    certificates = Certificates.of(given.certificates, "operator")
    name = check_run_name(given.name or manifests.default_name(given.overlay))
    rendered = manifests.render(given.overlay)
    namespace = manifests.namespace_of(rendered, given.namespace) or connect(None).namespace
    ready = manifests.prepared(named(rendered, name, name) if given.name else rendered, name, namespace)
    if given.print:
        configuration.require_time_to_end(ready)
        print(yaml.safe_dump_all(ready, sort_keys=False), end="")
        return
    cluster = connect(namespace, given.name)
    deployment.apply(cluster, ready, name, lambda: _has_begun(cluster, certificates))
    print(f"run {name} applied in namespace {cluster.namespace}: {len(ready)} objects", flush=True)
    _print_outcome(cluster, name, _await(cluster, name, certificates, given.timeout, until_over=False))


def _has_begun(cluster: Cluster, certificates: Certificates | None) -> bool:
    """Whether the run has made steps. False without a ready learner: the next learner checks its configuration."""
    views = [diagnosis.view(pod) for pod in access.pods_of(cluster, "learner")]
    status, _ = _ask(cluster, views, certificates)
    return status.environment_steps > 0 if status else any(view.ready for view in views)


def _print_outcome(cluster: Cluster, name: str, status: RunStatus | RecordedEnd) -> None:
    where = f"-n {cluster.namespace}{f' --run {name}' if cluster.run else ''}"
    if status.state.final:
        print(
            f"run {name} is over: {status.state.value} after {status.environment_steps:,} environment steps; start "
            f"another with `actorq cluster down --delete-volume {where}` and `up`, or with another --name"
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
    name = run_of(pods[0])
    status, line = _ask(cluster, views, certificates)
    print(f"run {name}".rstrip() + f" in namespace {cluster.namespace}")
    print(table(views, status))
    print(line)
    for pod in pods:
        if fault := diagnosis.pod_fault(pod, float("inf")):
            print(fault.line())
    if stale := configuration.stale_pods(cluster, diagnosis.live_pods(pods)):
        changed = f"the configuration has changed since {', '.join(stale)} started"
        print(f"{changed}: `actorq cluster up` or `kubectl rollout restart` lets the change take effect")


def _wait(arguments: Sequence[str]) -> int:
    parser = _parser("wait", "Wait until the run is over. The exit code is that of `actorq train`.", certificates=True)
    given = _parsed(parser, arguments, math.inf, "time limit (default: none); then exit code 1")
    certificates = Certificates.of(given.certificates, "operator")
    cluster = connect(given.namespace, given.run)
    # A TrainingRun has no pods after its end.
    if not (given.run and (access.pods_of(cluster) or is_training_run(cluster, ()))):
        # The run's name identifies its TrainingRun.
        cluster = connect(given.namespace, run_of(access.some_pods(cluster)[0]))
    end = _await(cluster, cluster.run, certificates, given.timeout, until_over=True)
    print(summary(end))
    return EXIT_OF_STATE[end.state]


def _ask(cluster: Cluster, pods: Sequence[PodView], certificates: Certificates | None) -> tuple[RunStatus | None, str]:
    """The run's status, and a line with the status or the reason why it is missing."""
    if not any(pod.ready for pod in pods if pod.role == "learner"):
        return None, "the run's status is not known: the learner's pod is not ready"
    try:
        with access.learner_of(cluster, certificates) as learner:
            status = learner.status()
            return status, summary(status)
    except UnavailableError as error:
        hint = "" if certificates else "; if the run uses mutual TLS, give --certificates DIR"
        return None, f"the run's status is not known: {error}{hint}"


def _scale(arguments: Sequence[str]) -> None:
    parser = _parser("scale", "Set the number of actor pods. Removed pods first send their queued segments.")
    parser.usage = "actorq cluster scale actors N [flags]"
    parser.add_argument("what", choices=("actors",), metavar="actors", help="what to scale")
    parser.add_argument("replicas", type=_FROM_0, metavar="N", help="number of pods")
    given = parser.parse_args(arguments)
    cluster = connect(given.namespace, given.run)
    found = cluster.list("apps/v1", "Deployment", f"{cluster.selector},{COMPONENT_LABEL}=actor")
    if not found:
        actors = f"Deployment of actors{f' of run {given.run}' if given.run else ''}"
        raise UserError(f"namespace {cluster.namespace} has no {actors}: name another with -n or --run")
    if len(found) > 1:
        runs = ", ".join(sorted(run_of(each) or name_of(each) for each in found))
        raise UserError(f"namespace {cluster.namespace} has actors of {runs}: choose one with --run")
    # The operator resets the Deployment's number of pods to the number in the TrainingRun.
    is_owned = bool(items(found[0]["metadata"], "ownerReferences"))
    scaled = (*TRAINING_RUN, run_of(found[0])) if is_owned else ("apps/v1", "Deployment", name_of(found[0]))
    before = cluster.scale(*scaled, given.replicas)
    print(f"actors: {before} -> {given.replicas} pods")


def _logs(arguments: Sequence[str]) -> None:
    parser = _parser("logs", "Print the logs of all pods, those of a role, or one pod's.")
    parser.add_argument("pods", nargs="?", metavar="ROLE|POD", help=f"{', '.join(access.PORTS)} or a pod")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until Ctrl-C or until the pods have ended")
    parser.add_argument("--previous", action="store_true", help="logs of containers before their last restart")
    parser.add_argument("--tail", type=_FROM_0, metavar="N", help="only the last N lines of each log")
    given = parser.parse_args(arguments)
    if given.previous and given.follow:
        parser.error("--previous: a container that has ended logs nothing more; leave out --follow")
    cluster = connect(given.namespace, given.run)
    views = access.matching([diagnosis.view(pod) for pod in access.some_pods(cluster)], given.pods)
    names = {view.name: view.container for view in views if view.restarts or not given.previous}
    if not names:
        raise UserError(f"--previous: no container of {', '.join(view.name for view in views)} has been restarted")
    width = max(map(len, names))

    def write(pod: str, line: str) -> None:
        print(line if len(names) == 1 else f"{pod:<{width}}  {line}", flush=True)

    stream_logs(cluster, names, given.follow, given.tail, write, given.previous)


def _forward(arguments: Sequence[str]) -> None:
    parser = _parser("forward", "Forward ports of this machine to learner and quantizer until Ctrl-C.")
    parser.add_argument("pods", nargs="*", metavar="POD", help="further pods of actors to forward to")
    for role in _FORWARDED:
        parser.add_argument(
            f"--{role}-port",
            type=number(0, 65535, "0 to 65535", int),
            default=access.PORTS[role],
            metavar="PORT",
            help=f"port for the {role}, 0 for any free port (default: {access.PORTS[role]})",
        )
    given = parser.parse_args(arguments)
    cluster = connect(given.namespace, given.run)
    views = [diagnosis.view(pod) for pod in access.some_pods(cluster)]
    actors = [view for name in given.pods for view in access.matching(views, name)]
    width = max(map(len, [*_FORWARDED, *(actor.name for actor in actors)]))
    events: Events = SimpleQueue()
    with signals_as_events(events), ExitStack() as stack:
        for role in _FORWARDED:
            forward = stack.enter_context(access.forwarded(cluster, role, getattr(given, f"{role}_port"), _complain))
            print(f"{role:<{width}}  {forward.address}", flush=True)
        for actor in actors:
            forward = stack.enter_context(access.forwarded_pod(cluster, actor, _complain))
            print(f"{actor.name:<{width}}  {forward.address}", flush=True)
        print("Ctrl-C ends it", flush=True)
        events.get()


def _complain(text: str) -> None:
    # A single write, because several threads may report.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _down(arguments: Sequence[str]) -> None:
    parser = _parser("down", "Delete what `up` made. The learner saves the run before its pod ends.")
    parser.add_argument("--delete-volume", action="store_true", help="also delete the run's volumes with all files")
    given = parser.parse_args(arguments)
    cluster = connect(given.namespace, given.run)
    run = deployment.delete(cluster, given.delete_volume, lambda text: print(text, flush=True))
    kept = "" if given.delete_volume else "; `up` continues with its volumes, `down --delete-volume` deletes them"
    print(f"run {run} is gone from namespace {cluster.namespace}{kept}")


_COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    "up": _up,
    "status": _status,
    "wait": _wait,
    "scale": _scale,
    "logs": _logs,
    "forward": _forward,
    "down": _down,
}
