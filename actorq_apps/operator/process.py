"""The operator: creates and watches the runs of all TrainingRun objects.

Each replica follows their changes. Only the replica that holds the Lease acts on them.
"""

import asyncio
import logging
import re
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from actorq import __version__
from actorq.config.parser import OneLineParser
from actorq.errors import ActorQError, UserError
from actorq.process import EXIT_FAILED, EXIT_OK, leave
from actorq.telemetry.logs import configure_logging
from actorq.telemetry.metrics import open_metrics
from actorq.transport.calls import CallCounts
from actorq_apps.cluster.context import connect
from actorq_apps.operator.controller import Controller, DueQueue
from actorq_apps.operator.leader import Leader
from actorq_apps.operator.metrics import operator_metrics
from actorq_apps.operator.news import follow
from actorq_apps.operator.reconcile import Key, Reconciler
from actorq_apps.operator.render import MANIFESTS, Images
from actorq_apps.operator.resource.training_run import API_VERSION, KIND

_IMAGES = ("learner", "quantizer", "actor")

_log = logging.getLogger("actorq_apps.operator")


def parse(arguments: Sequence[str] | None = None) -> Any:
    """The flags. Raises UserError."""
    parser = OneLineParser(prog="python -m actorq_apps.operator", description=__doc__)

    def add_repeated(flag: str, metavar: str, text: str) -> None:
        parser.add_argument(flag, action="append", default=[], metavar=metavar, help=text)

    add_repeated("--namespace", "NAMESPACE", "only manage this namespace; may be repeated (default: all namespaces)")
    parser.add_argument(
        "--lease-namespace", metavar="NAMESPACE", help="namespace of the replicas' Lease (default: that of this pod)"
    )
    parser.add_argument(
        "--manifests",
        type=Path,
        default=MANIFESTS,
        metavar="DIR",
        help=f"folder with base and components, such as k8s (default: {MANIFESTS})",
    )
    parser.add_argument(
        "--image-registry",
        default="",
        metavar="REGISTRY",
        help="registry, with a folder if any, for images of runs that name none, such as registry.example/rl",
    )
    parser.add_argument("--image-tag", default="", metavar="TAG", help=f"tag of these images (default: {__version__})")
    add_repeated(
        *("--image-digest", "SERVICE=sha256:HEX"),
        "digest of the image of learner, quantizer or actor; replaces the tag; may be repeated",
    )
    parser.add_argument(
        "--image-pull-policy", choices=("Always", "IfNotPresent", "Never"), help="when nodes pull images of runs"
    )
    add_repeated(
        *("--image-pull-secret", "NAME"),
        "Secret of the registry in each run's namespace, besides those that a run names; may be repeated",
    )
    parser.add_argument(
        "--metrics",
        default="0.0.0.0:9090",
        metavar="HOST:PORT",
        help="serve Prometheus metrics, and /healthz for probes (default: 0.0.0.0:9090)",
    )
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="json: one object in each line (default: text)"
    )
    return parser.parse_args(arguments)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal (returns 0), or until another replica holds the Lease (returns 1)."""
    flags = parse(arguments)
    cluster = connect(flags.lease_namespace)
    if not cluster.has_kind(API_VERSION, KIND):
        raise UserError(f"the cluster has no kind {KIND}: apply k8s/operator/crd.yaml")
    queue: DueQueue[Key] = DueQueue()
    if re.search(r"\s|://", flags.image_registry):
        raise UserError(
            "--image-registry: expected a registry and perhaps a folder, such as registry.example/rl, got "
            f"{flags.image_registry!r}"
        )
    registry, policy = flags.image_registry.rstrip("/"), flags.image_pull_policy or ""
    pull_secrets, digests = tuple(flags.image_pull_secret), _digests(flags.image_digest)
    images = Images(registry, flags.image_tag, policy, pull_secrets, digests)
    controller = Controller(cluster, flags.namespace, queue, Reconciler(cluster, queue.put, flags.manifests, images))
    controller.list_runs()
    # Any failure before this line is reported in one line without a traceback.
    configure_logging("operator", "operator", form=flags.log_format)
    leader = Leader(cluster, f"{socket.gethostname()}-{uuid4().hex[:8]}", __version__)
    follow_runs = partial(follow, cluster, flags.namespace, queue)
    return asyncio.run(_serve(flags.metrics, queue, controller, leader, follow_runs))


def _digests(given: Sequence[str]) -> dict[str, str]:
    """The digests by the name of the image in the manifests. Raises UserError."""
    found = {}
    for each in given:
        service, _, digest = each.partition("=")
        if service not in _IMAGES or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise UserError(
                f"--image-digest: expected learner, quantizer or actor, =sha256: and 64 digits of 0-9a-f, got {each!r}"
            )
        found[f"actorq-{service}"] = digest
    return found


async def _serve(
    metrics_address: str, queue: DueQueue[Key], controller: Controller, leader: Leader, follow_runs: Callable[[], None]
) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, ended.set)
    leading = threading.Thread(target=_lead, args=(controller, leader), name="leader", daemon=True)

    def healthy() -> bool:
        return leading.is_alive() and controller.works()

    own = partial(operator_metrics, leader, controller, queue)
    metrics = open_metrics(metrics_address, CallCounts(), own, alive=healthy, serving=healthy, loop=loop)
    leading.start()
    follow_runs()
    try:
        await ended.wait()
    finally:
        queue.close()
        leader.stop()
        await asyncio.to_thread(leading.join)
        await asyncio.to_thread(metrics.close)
    return EXIT_OK


def _lead(controller: Controller, leader: Leader) -> None:
    """Reconcile while this replica holds the Lease, until its queue is closed. Losing the Lease ends the process."""
    ended = threading.Event()

    def reconcile() -> None:
        try:
            controller.run()
        finally:
            ended.set()

    try:
        if not leader.acquire():
            return
        _log.info("this replica leads")
        threading.Thread(target=reconcile, name="reconciler", daemon=True).start()
        # The last reconciliation continues after the queue is closed. Until its end, no other replica may act.
        if not leader.hold(ended):
            # End at once, because another replica already acts. A reconciliation may stop at any step.
            _log.error("the Lease is lost: ending")
            leave(EXIT_FAILED)
        leader.release()
    except UserError as error:
        _log.error("%s", error)
        leave(EXIT_FAILED)
    except ActorQError as error:
        _log.warning("the Lease could not be released: %s", error)
    except Exception:
        # Without this thread, the Lease expires and another replica begins to act.
        _log.exception("the election has failed: ending")
        leave(EXIT_FAILED)
