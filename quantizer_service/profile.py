"""Measures the time to emit a version in each scheme, for `actorq profile`."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from actorq.config.sections import NO_LIMITS
from actorq.domain.policy import FP32, SCHEMES, Checkpoint, Policy
from actorq.errors import InvalidInputError
from actorq.process import EXIT_OK
from actorq.profiling import Order
from quantizer_service.emission.emitter import Emitter
from quantizer_service.store.policy_files import split_tensors
from quantizer_service.store.store import PolicyStore

_RUN_ID = "profile"
_LEAST_VERSIONS, _MOST_VERSIONS = 5, 200


def measure(order: Order) -> dict[str, Any]:
    """CPU seconds per version in each scheme, from tensors to the store. Writes each scheme's policy to the folder."""
    graph, tensors = order.folder.graph()
    content = split_tensors(tensors)
    # The gate's verdict on an untrained policy is meaningless.
    config = order.config.resolved_quantizer().model_copy(update={"gate": NO_LIMITS})
    store = PolicyStore(order.folder.path / "policies", config.retain_newest, config.retain_best)
    emitter = Emitter(store, config)
    emitter.catalog.claim(_RUN_ID)
    emitter.add_graph(graph)
    checkpoint = Checkpoint(0, 0, graph.digest, snapshot_at=time.time(), **content._asdict())
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    for scheme in order.schemes:
        try:
            took, policy = _version_seconds(emitter, checkpoint, scheme, order.seconds / len(SCHEMES))
        except InvalidInputError as error:
            if scheme == FP32:
                raise
            failed[scheme] = str(error)
            continue
        if policy.descriptor.effective_scheme != scheme:
            failed[scheme] = "no layer of this network can be quantized"
        else:
            seconds[scheme] = took
            order.folder.write_policy(policy)
    store.close()
    sizes = {scheme: policy.descriptor.size_bytes for scheme, policy in order.folder.policies().items()}
    return {"version_s": seconds, "failed": failed, "bytes": sizes}


def _version_seconds(emitter: Emitter, checkpoint: Checkpoint, scheme: str, budget_s: float) -> tuple[float, Policy]:
    spent: list[float] = []
    deadline = time.perf_counter() + budget_s
    # The first version plans the graph.
    emitted = _publish(emitter, checkpoint, scheme)
    while len(spent) < _LEAST_VERSIONS or (time.perf_counter() < deadline and len(spent) < _MOST_VERSIONS):
        started = time.process_time()
        emitted = _publish(emitter, checkpoint, scheme)
        spent.append(time.process_time() - started)
    return median(spent), emitted[0]


def _publish(emitter: Emitter, checkpoint: Checkpoint, scheme: str) -> Sequence[Policy]:
    return emitter.publish(replace(checkpoint, version=emitter.catalog.newest_version + 1), (scheme,))


def run() -> int:
    """Run the measurement that the flags ask for."""
    logging.getLogger("quantizer_service.emission.ladder").setLevel(logging.ERROR)
    order = Order.parse("quantizer_service.profile", "Measure the quantizer's time per version.")
    order.folder.write("quantizer", measure(order))
    return EXIT_OK
