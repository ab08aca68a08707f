"""Paths from a torch module with new weights to an ONNX Runtime session that has run once, timed by stage.

Times are CPU time of this process. On a quiet machine that equals the wall clock, since all paths compute on one
thread. On a busy machine the wall clock would also count other programs, and more of them for longer paths.
"""

import contextlib
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic
from torch import nn

from actor_service.policies.policy import OnnxPolicy
from actorq.domain.policy import FidelityReport, Policy, PolicyDescriptor
from actorq.quantization.calibration import Statistics
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import scheme_named
from actorq.quantization.schemes.base import Plan
from benchmarks.policies import PolicyNetwork
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from quantizer_service.emission.fidelity import measure
from quantizer_service.emission.reference import Outputs, Reference

# The stages of all paths, in this order.
STAGES = ("export", "take tensors", "calibrate", "quantize", "serialize", "create session", "run once", "gate")


@dataclass
class Stopwatch:
    """Seconds of CPU time that each stage took."""

    clock: Callable[[], float] = time.process_time
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside towards a stage, without the time of inner stages."""
        inner = sum(self.seconds.values())
        started = self.clock()
        yield
        elapsed = self.clock() - started - (sum(self.seconds.values()) - inner)
        self.seconds[name] = self.seconds.get(name, 0.0) + elapsed

    @contextlib.contextmanager
    def calls(self, owner: Any, name: str, stage: str) -> Iterator[None]:
        """Count every call of `owner.name` inside towards a stage."""
        original = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.stage(stage):
                return original(*arguments, **named)

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, original)


class ActorQPath:
    """ActorQ's path: the plan is made once for the graph, in advance. Each version is patched into it."""

    def __init__(self, network: PolicyNetwork, scheme: str) -> None:
        source = export_policy_graph(network.module, network.spec)
        self.scheme = scheme
        self._network = network
        self._graph = Graph.parse(source)
        self._plan = Plan(self._graph, scheme_named(scheme))
        self._reference = Reference(self._graph)
        self._calibration = {source.signature.inputs[0].name: network.calibration}
        self._fidelity = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, None, ())
        self._version = 0

    def swap(self) -> dict[str, float]:
        """Seconds of each stage for the module's current weights.

        "gate" is the fidelity gate of each served version: FP32 and emitted policy run on the calibration batch. The
        reference paths have no gate. A plan that needs statistics has already run FP32, in "calibrate".
        """
        self._version += 1
        watch = Stopwatch()
        with watch.stage("take tensors"):
            parameters = snapshot_parameters(self._network.module)
        with watch.stage("calibrate"):
            expected: Outputs | None = None
            statistics: Statistics = {}
            if self._plan.observed:
                expected, statistics = self._reference.observe(parameters, self._calibration, self._plan.observed)
        with watch.calls(Skeleton, "fill", "serialize"), watch.stage("quantize"):
            emission = self._plan.emit(parameters, statistics, "benchmark", self._version)
        policy = Policy(self._descriptor(len(emission.model)), emission.model)
        with watch.calls(onnxruntime, "InferenceSession", "create session"), watch.stage("run once"):
            OnnxPolicy(policy, self._network.spec.observations, batch=1)
        with watch.stage("gate"):
            expected = expected or self._reference.run(parameters, self._calibration)
            measure(emission, expected, self._calibration, self._graph.signature)
        return watch.seconds

    def _descriptor(self, size: int) -> PolicyDescriptor:
        return PolicyDescriptor(
            "benchmark", self._version, self._version, self.scheme, b"", size, size, 0.0, self._fidelity
        )


class ReferencePath:
    """torch.onnx.export, then onnxruntime.quantization.quantize_dynamic with its defaults, then a new session.

    exporter: "dynamo"; "torchscript", the older exporter; or "patched": dynamo exports once in advance, and each
    version replaces the initializers of that file.

    quantize_dynamic refuses dynamo's output unchanged: it transposes Gemm's weights, while the model still records
    their old shapes. Dropping these records is the cheapest remedy.
    """

    def __init__(self, network: PolicyNetwork, exporter: str) -> None:
        self._network = network
        self._exporter = exporter
        self._exported = self._export("dynamo") if exporter == "patched" else onnx.ModelProto()
        # The model's operators and its outputs for the first observation, both from the last swap.
        self.operators: tuple[str, ...] = ()
        self.outputs: NDArray[np.float32] = np.zeros((0, 0), np.float32)

    def swap(self) -> dict[str, float]:
        """Seconds of each stage for the module's current weights."""
        watch = Stopwatch()
        with tempfile.TemporaryDirectory() as directory, _quiet(""), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target = Path(directory) / "policy-int8.onnx"
            with watch.stage("export"):
                exported = self._patch() if self._exporter == "patched" else self._export(self._exporter)
            with watch.stage("quantize"):
                quantize_dynamic(exported, target)
            with watch.stage("create session"):
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = 1
                options.log_severity_level = 3
                session = onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])
            with watch.stage("run once"):
                (self.outputs,) = session.run(None, {session.get_inputs()[0].name: self._network.calibration[:1]})
            self.operators = tuple(node.op_type for node in onnx.load(target).graph.node)
        return watch.seconds

    def _export(self, exporter: str) -> onnx.ModelProto:
        example = torch.from_numpy(self._network.calibration[:2])
        module = self._network.module.eval()
        with _quiet("torch.onnx"), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if exporter == "dynamo":
                shapes = ({0: torch.export.Dim("batch")},)
                program = torch.onnx.export(module, (example,), dynamo=True, dynamic_shapes=shapes, verbose=False)
                assert program is not None
                model = program.model_proto
            else:
                file = io.BytesIO()
                names: dict[str, Any] = {"input_names": ["observations"], "dynamic_axes": {"observations": [0]}}
                # A file in memory. This exporter accepts it, though its types do not say so.
                torch.onnx.export(module, (example,), file, dynamo=False, **names)  # type: ignore[arg-type]
                model = onnx.load_from_string(file.getvalue())
        del model.graph.value_info[:]
        return model

    def _patch(self) -> onnx.ModelProto:
        parameters = snapshot_parameters(self._network.module)
        model = onnx.ModelProto()
        model.CopyFrom(self._exported)
        for tensor in model.graph.initializer:
            if tensor.name in parameters:
                tensor.CopyFrom(numpy_helper.from_array(parameters[tensor.name], tensor.name))
        return model


def renew(module: nn.Module, generator: torch.Generator) -> None:
    """Change every weight a little, as training would."""
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(1 + 0.01 * noise)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Show only errors of this logger; "" is the root logger."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
