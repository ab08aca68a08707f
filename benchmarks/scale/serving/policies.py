"""Policies in files, as `actorq export` writes them, from untrained networks of any width."""

import hashlib
import json
from pathlib import Path

from actorq.domain.contract import CONTRACT
from actorq.domain.spaces import EnvironmentSpec
from actorq.inference.loading import DESCRIPTION_FORMAT, description_file
from benchmarks.policies import as_policy, checkpoint_of, emit, vector_network


def exported(units: int, scheme: str, folder: Path) -> tuple[Path, EnvironmentSpec]:
    """The file of a policy with three hidden layers of this width, and the spec of its environment."""
    network = vector_network("mlp", units)
    graph, checkpoint = checkpoint_of(network)
    policy = as_policy(graph, checkpoint, scheme, emit(graph, checkpoint, scheme))
    file = folder / f"{scheme}-{units}.onnx"
    file.write_bytes(policy.model)
    description = {
        **{"format": DESCRIPTION_FORMAT, "contract": CONTRACT, "version": 1, "scheme": scheme},
        **{"effective_scheme": scheme, "sha256": hashlib.sha256(policy.model).hexdigest()},
        "environment": network.spec.to_json(),
    }
    description_file(file).write_text(json.dumps(description), encoding="utf-8")
    return file, network.spec
