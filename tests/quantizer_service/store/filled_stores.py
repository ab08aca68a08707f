"""Stores with some versions."""

import hashlib
import math
from pathlib import Path

from actorq.domain.policy import FidelityReport, LayerReport, OutputError, Policy, PolicyDescriptor, RefusedRung
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import PolicyStore
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint

SOURCE = mlp(8, 8)


def policy(version: int, scheme: str = "int8", model: bytes = b"model") -> Policy:
    report = FidelityReport(
        32,
        0.1,
        0.2,
        0.01,
        0.02,
        0.75,
        (LayerReport("layers.0", "float32", "first layer"),),
        (OutputError("q_values", (0.1,), (0.2,)),),
        False,
        (RefusedRung((), math.inf, math.inf, None, math.inf, math.inf), RefusedRung(("layers.0",), 0.5, 0.6, 0.7)),
        0.003,
        0.04,
    )
    digest = hashlib.sha256(model).digest()
    return Policy(PolicyDescriptor("run", version, version * 100, scheme, digest, len(model), 1000, 1.5, report), model)


def opened(path: Path, newest: int = 3, best: int = 1, every: int = 0) -> PolicyStore:
    return PolicyStore(path, newest, best, every)


def filled(path: Path, versions: int, every: int = 0) -> PolicyStore:
    store = opened(path, every=every)
    store.claim("run")
    store.add_graph(SOURCE)
    for version in range(1, versions + 1):
        store.add_version(checkpoint(SOURCE, version), [policy(version)])
    return store


def read(path: Path) -> PolicyReader:
    return PolicyReader(path)


def retained(store: PolicyReader) -> list[int]:
    return [entry.version for entry in store.versions()]
