"""The operator: makes and watches the runs of all TrainingRun objects.

Events from kopf only say which run has news. Only the replica that holds the Lease acts on them.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import kopf

from actorq import __version__
from actorq.cluster.context import connect
from actorq.config.parser import OneLineParser
from actorq.errors import ActorQError, UserError
from actorq.operator.controller import Controller, DueQueue
from actorq.operator.leader import Leader
from actorq.operator.metrics import operator_metrics
from actorq.operator.reconcile import Key, Reconciler
from actorq.operator.render import MANIFESTS
from actorq.operator.resource import API_VERSION, GROUP, KIND, PLURAL, VERSION
from actorq.process import EXIT_FAILED, EXIT_OK, leave
from actorq.telemetry.logs import configure_logging
from actorq.telemetry.metrics import open_metrics
from actorq.transport.calls import CallCounts

_log = logging.getLogger("actorq.operator")


def parse(arguments: Sequence[str] | None = None) -> Any:
    """The flags. Raises UserError."""
    parser = OneLineParser(prog="python -m actorq.operator", description=__doc__)
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="only look at this namespace; may be repeated (default: all namespaces)",
    )
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
        "--metrics",
        default="0.0.0.0:9090",
        metavar="HOST:PORT",
        help="serve Prometheus metrics, and /healthz for probes (default: 0.0.0.0:9090)",
    )
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="json: one object in each line (default: text)"
    )
    return parser.parse_args(arguments)


class News:
    """Puts runs with a new specification, and deleted ones, into the queue. A change of the status alone is no news."""

    def __init__(self, queue: DueQueue[Key]) -> None:
        self._queue = queue
        self._seen: dict[Key, tuple[object, ...]] = {}

    def notice(self, event: Any, **_: Any) -> None:
        """An event of the API server."""
        metadata = event["object"]["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        version = (metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"))
        before = self._seen.pop(key, None)
        if event["type"] != "DELETED":
            self._seen[key] = version
        if before != version or event["type"] == "DELETED":
            self._queue.put(key)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal (returns 0), or until another replica has taken the Lease (returns 1)."""
    flags = parse(arguments)
    cluster = connect(flags.lease_namespace)
    if not cluster.has_kind(API_VERSION, KIND):
        raise UserError(f"the cluster has no kind {KIND}: apply k8s/operator/crd.yaml")
    queue: DueQueue[Key] = DueQueue()
    worker = cluster.at(cluster.namespace)
    controller = Controller(worker, flags.namespace, queue, Reconciler(worker, queue.put, flags.manifests))
    controller.list_runs()
    # Until here a failure is one line, without a traceback.
    configure_logging("operator", "operator", form=flags.log_format)
    # Lines about each event repeat what the reconciler logs.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    name = f"{socket.gethostname()}-{uuid4().hex[:8]}"
    return asyncio.run(_serve(flags, name, queue, controller, Leader(cluster, name, __version__)))


async def _serve(flags: Any, name: str, queue: DueQueue[Key], controller: Controller, leader: Leader) -> int:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_via_client)
    # `on.event` writes nothing to the object: no finalizer keeps it while no operator runs.
    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(News(queue).notice)
    leading = threading.Thread(target=_lead, args=(controller, leader), name="leader", daemon=True)

    def healthy() -> bool:
        return leading.is_alive() and controller.works()

    metrics = open_metrics(
        flags.metrics,
        CallCounts(),
        lambda: operator_metrics(leader, controller, queue),
        alive=healthy,
        serving=healthy,
        loop=asyncio.get_running_loop(),
    )
    leading.start()
    try:
        # Returns at SIGTERM and SIGINT.
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            # Otherwise it asks for the name of the user, and a user of a pod has none.
            identity=name,  # type: ignore[arg-type]
            clusterwide=not flags.namespace,
            namespaces=flags.namespace,
        )
    finally:
        queue.close()
        leader.stop()
        await asyncio.to_thread(leading.join)
        await asyncio.to_thread(metrics.close)
    return EXIT_OK


def _lead(controller: Controller, leader: Leader) -> None:
    """Reconcile while this replica holds the Lease, until its queue is closed. Ends the process without the Lease."""
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
        # The last look goes on after the queue is closed. Until its end nobody else may act.
        if not leader.hold(ended):
            # At once: another replica acts already. Each step may be cut off anywhere.
            _log.error("the Lease is lost: ending")
            leave(EXIT_FAILED)
        leader.release()
    except UserError as error:
        _log.error("%s", error)
        leave(EXIT_FAILED)
    except ActorQError as error:
        _log.warning("the Lease could not be released: %s", error)
    except Exception:
        # Without this thread nobody renews the Lease, and another replica begins to act.
        _log.exception("the election has failed: ending")
        leave(EXIT_FAILED)
