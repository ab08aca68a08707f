"""Caches an exported graph in the run's folder, so that a restarted learner does not export it again.

Only graphs of PyTorch's exporter are cached, because the exporter takes seconds; see
docs/decisions/0027-written-and-kept-graphs.md.
"""

import base64
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from actorq.domain.policy import PolicyGraph
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import InvalidInputError, UnreadableError
from actorq.quantization.signatures import read_graph
from actorq.statefiles.documents import read_document, write_document
from actorq.telemetry.machine import package_version
from learner_service.policy import policy_graph
from learner_service.policy.graph_operations import UnknownOperationError
from learner_service.policy.graph_writer import write_graph
from learner_service.policy.policy_graph import as_acted, example_inputs, export_graph, graph_by, state_size_of
from learner_service.policy.recorded_calls import record

# Another version of one of these packages may export a different graph.
_EXPORTERS = ("torch", "onnx", "onnxscript")

_log = logging.getLogger(__name__)


def fingerprint(policy: nn.Module, examples: Mapping[str, Tensor]) -> str:
    """A digest of the torch calls in a forward pass, and of their tensors.

    policy: on the CPU, in eval mode. examples: its inputs, by name and in order.
    Parameters and buffers count with name, shape and dtype. All other tensors count with their values. Training
    therefore does not change the digest, but changes of code, layers or constants do.

    Raises the policy's own errors, and TypeError when it calls a torch function without a name. Raises RuntimeError or
    TypeError for a tensor without bytes, such as a sparse tensor.
    """
    named = {**examples, **policy.state_dict(keep_vars=True)}
    names = {id(tensor): name for name, tensor in named.items()}
    calls, outputs = record(policy, examples)
    digest = hashlib.sha256()

    def named_by(tensor: Tensor) -> str:
        if name := names.get(id(tensor)):
            return name
        values = hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()
        return f"{tensor.dtype} {tuple(tensor.shape)} {values}"

    def add(*values: Any) -> None:
        digest.update(f"{tree_map_only(Tensor, named_by, values)!r}\n".encode())

    for name, tensor in named.items():
        add(name, str(tensor.dtype), tuple(tensor.shape))
    for number, call in enumerate(calls):
        add(call.name, call.arguments, call.options)
        names |= {id(tensor): f"{number}.{which}" for which, tensor in enumerate(call.made)}
    add("outputs", outputs)
    return digest.hexdigest()


def cached_policy_graph(
    path: Path, policy: nn.Module, spec: EnvironmentSpec, takes_noise: bool, greedy: bool
) -> PolicyGraph:
    """The policy's graph: written if possible, otherwise read from the file, otherwise exported and cached.

    A damaged file, or the file of another policy, is replaced and logged. Raises as `export_policy_graph`.
    """
    try:
        return graph_by(write_graph, policy, spec, takes_noise, greedy)
    except UnknownOperationError as error:
        unknown = str(error)
    key = _key(policy, spec, takes_noise, greedy)
    model = _read(path, key)
    if model is not None:
        return read_graph(model)
    _log.info("PyTorch's exporter exports the policy's graph, because of %s", unknown)
    graph = graph_by(export_graph, policy, spec, takes_noise, greedy)
    if key:
        try:
            write_document(path, {"key": key, "model": base64.b64encode(graph.model).decode()}, sync=False)
        except OSError as error:
            _log.warning("%s cannot be written, so the next start exports the graph again: %s", path.name, error)
    return graph


def _read(path: Path, key: str) -> bytes | None:
    try:
        values = read_document(path)
    except FileNotFoundError:
        return None
    except (InvalidInputError, UnreadableError) as error:
        # The file only saves time.
        _log.warning("%s; the graph is exported again", error)
        return None
    if not key or values.get("key") != key:
        _log.info("%s belongs to another network or version; the graph is exported again", path.name)
        return None
    return base64.b64decode(values["model"])


def _key(policy: nn.Module, spec: EnvironmentSpec, takes_noise: bool, greedy: bool) -> str:
    """A digest of everything that the graph depends on; empty when the forward pass cannot be recorded."""
    acted = as_acted(policy, spec, takes_noise and greedy)
    try:
        computed = fingerprint(acted, example_inputs(spec, takes_noise, state_size_of(policy)))
    except Exception as error:
        # The exporter reports the errors of the policy.
        _log.info("the graph is not cached: a forward pass cannot be recorded (%s: %s)", type(error).__name__, error)
        return ""
    code = hashlib.sha256(Path(policy_graph.__file__).read_bytes()).hexdigest()
    parts = (computed, spec.to_json(), code, *map(package_version, _EXPORTERS))
    return hashlib.sha256(repr(parts).encode()).hexdigest()
