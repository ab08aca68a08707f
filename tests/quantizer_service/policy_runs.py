"""Random parameters and checkpoints of policy graphs, and the outputs of emitted policies."""

import math
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.quantization.calibration import Statistics
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Emission
from actorq.quantization.schemes.base import Plan
from quantizer_service.emission.reference import Reference
from tests.builders.processors import exact_here
from tests.quantizer_service.policy_graphs import OBSERVATION_SIZE, Tensors


def random_inputs(graph: Graph, rows: int = 32, seed: int = 0) -> Tensors:
    """A batch for every data input: bytes for uint8, standard normal values for float32."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 256, (rows, *spec.shape), np.uint8)
        if spec.dtype == np.uint8
        else rng.standard_normal((rows, *spec.shape)).astype(np.float32)
        for name, spec in graph.inputs.items()
    }


def random_parameters(source: PolicyGraph, seed: int) -> Tensors:
    """Weights of the size that torch initializes them with."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) / np.sqrt(max(shape[0], math.prod(shape[1:])))).astype(np.float32)
        for name, shape in _shapes(source).items()
    }


@cache
def _shapes(source: PolicyGraph) -> Mapping[str, tuple[int, ...]]:
    return Graph.parse(source).parameters


def random_observations(rows: int = 32, seed: int = 0) -> Tensors:
    """A batch of observations: float32[rows, 5]."""
    rng = np.random.default_rng(seed)
    return {"observation": rng.standard_normal((rows, OBSERVATION_SIZE)).astype(np.float32)}


def checkpoint(source: PolicyGraph, version: int, **changes: Any) -> Checkpoint:
    """A version with its own weights. `changes` replace its fields."""
    fields: dict[str, Any] = {
        "version": version,
        "learner_step": version * 100,
        "graph_digest": source.digest,
        "parameters": random_parameters(source, version),
        "calibration": random_observations(seed=version),
        "snapshot_at": 1_700_000_000.0 + version,
    }
    return Checkpoint(**{**fields, **changes})


def emitted(plan: Plan, parameters: Tensors, observations: Tensors | None = None, version: int = 1) -> bytes:
    """The model of run "run", calibrated with `observations` where the scheme needs it."""
    return emission(plan, parameters, observations, version).model


def emission(plan: Plan, parameters: Tensors, observations: Tensors | None = None, version: int = 1) -> Emission:
    """The same with how each layer is held."""
    return plan.emit(parameters, statistics_of(plan, parameters, observations), "run", version)


def statistics_of(plan: Plan, parameters: Tensors, observations: Tensors | None = None) -> Statistics:
    """What a plan needs to know of these observations, or of random ones."""
    if not plan.observed:
        return {}
    plan.graph.check_parameters(parameters)
    calibration = observations or random_inputs(plan.graph, 256)
    return reference_of(plan.graph).observe(parameters, calibration, plan.observed)[1]


def reference_of(graph: Graph) -> Reference:
    """The graph in FP32, loaded once for many tests."""
    return _reference(graph.source)


@lru_cache(maxsize=32)
def _reference(source: PolicyGraph) -> Reference:
    return Reference(Graph.parse(source))


def fp32_outputs(graph: Graph, parameters: Tensors, observations: Tensors) -> NDArray[np.float64]:
    """The first output of the FP32 policy."""
    return next(iter(reference_of(graph).run(parameters, observations).values()))


def float_layers(plan: Plan) -> tuple[str, ...]:
    """Names of the layers whose weights a plan leaves in float."""
    layers = emission(plan, random_parameters(plan.graph.source, 0)).layers
    return tuple(layer.name for layer in layers if layer.in_float)


def outputs_of(model: bytes, feeds: Tensors) -> NDArray[np.float32]:
    """The first output of a complete model, as an actor computes it."""
    return all_outputs_of(model, feeds)[0]


def all_outputs_of(model: bytes, feeds: Tensors, folded: bool = True) -> list[NDArray[np.float32]]:
    """Every output of a complete model; `folded` as actors open it, else with ONNX Runtime's defaults."""
    session = _session(model, folded)
    assert [value.name for value in session.get_inputs()] == list(feeds)
    outputs: list[NDArray[np.float32]] = session.run(None, feeds)
    return outputs


@lru_cache(maxsize=4)
def _session(model: bytes, folded: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if folded:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(exact_here(model), options, providers=["CPUExecutionProvider"])
