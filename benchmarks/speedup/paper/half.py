"""fp16: weights in float16, which halves the bytes of a policy. All computation is in float32.

ONNX Runtime has no float16 kernels for linear layers on x86-64. It would convert inputs and outputs at each call. The
conversion of constant weights happens only once, when ONNX Runtime loads the model.

The scheme saves fewer bytes than int8-weights, so it belongs to this benchmark only. `offered` offers it to processes
as the scheme of an installed package (docs/how-to/scheme.md).
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from actorq.config.schemes import SCHEME_ENTRY_POINTS
from actorq.quantization.calibration import Observed, Statistics
from actorq.quantization.emission.layer_choice import select
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.schemes.base import Emission, Options
from actorq.quantization.training import TrainingForm

FP16 = "fp16"
_FLOAT16 = "float16"
_ROOT = Path(__file__).parents[3]


class Float16:
    """The scheme. See the module."""

    name = FP16

    def plan(self, graph: Graph, options: Options) -> "Float16Plan":
        """Add the conversions to the graph."""
        return Float16Plan(graph, options)


class Float16Plan:
    """Rounds the weights of all layers to float16."""

    observed: tuple[Observed, ...] = ()

    def __init__(self, graph: Graph, options: Options) -> None:
        selection = select(graph, options, lambda layer: "", ends=True)
        self._report = selection.report
        self._layers = selection.layers
        self._weights = tuple(dict.fromkeys(layer.weight for layer in self._layers))
        conversions = [
            helper.make_node("Cast", [f"{name}:half"], [name], name=f"{name}:float", to=onnx.TensorProto.FLOAT)
            for name in self._weights
        ]
        self._skeleton = Skeleton(graph, [*conversions, *graph.model.graph.node])

    def training(self) -> Mapping[str, TrainingForm]:
        """No layer computes in integers."""
        return {}

    def emit(self, parameters: Parameters, statistics: Statistics, metadata: Mapping[str, str]) -> Emission:
        """A model with these weights in float16."""
        values = {name: array for name, array in parameters.items() if name not in self._weights}
        values |= {f"{name}:half": parameters[name].astype(np.float16) for name in self._weights}
        forms = dict.fromkeys((layer.name for layer in self._layers), _FLOAT16)
        return Emission(self._skeleton.fill(values, metadata), self._report(forms))


@contextmanager
def offered() -> Iterator[dict[str, str]]:
    """The environment variables with which processes find the scheme, until the end of the block."""
    with tempfile.TemporaryDirectory() as packages:
        information = Path(packages) / "actorq_paper_fp16-1.0.dist-info"
        information.mkdir()
        metadata = "Metadata-Version: 2.1\nName: actorq-paper-fp16\nVersion: 1.0\n"
        (information / "METADATA").write_text(metadata, encoding="utf-8")
        entry_point = f"[{SCHEME_ENTRY_POINTS}]\n{FP16} = {__name__}:{Float16.__name__}\n"
        (information / "entry_points.txt").write_text(entry_point, encoding="utf-8")
        earlier = os.environ.get("PYTHONPATH")
        yield {"PYTHONPATH": os.pathsep.join([packages, str(_ROOT), *([earlier] if earlier else [])])}
