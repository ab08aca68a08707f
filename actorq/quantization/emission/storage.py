"""Stores weights as int8 in the file and computes with float32, for layers whose product stays in float.

A Cast and a Mul restore the weight, with values and scale as in emission.weights.quantize_int8:

    weight' = float32(values) * scale

ONNX Runtime computes both when it loads the model, under any option. Activations stay float32, so the error is smaller
than with an integer product.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from actorq.quantization.emission.weights import quantize_int8
from actorq.quantization.graph import Parameters
from actorq.quantization.layers import Layer


class Storage:
    """The stored form of the weights of some layers. `nodes` restore the weights under their names."""

    def __init__(self, layers: Iterable[Layer], per_tensor_error: float) -> None:
        self._per_tensor_error = per_tensor_error
        self._channels = {layer.weight: layer.channels for layer in layers}
        self.nodes: list[onnx.NodeProto] = []
        for name in self._channels:
            integers = f"{name}:float"
            self.nodes += [
                helper.make_node("Cast", [f"{name}:stored"], [integers], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", [integers, f"{name}:stored_scale"], [name]),
            ]

    def values(self, parameters: Parameters) -> dict[str, NDArray[Any]]:
        """int8 values in the shape of each weight, and float32 scales that broadcast to it."""
        found: dict[str, NDArray[Any]] = {}
        for name, axis in self._channels.items():
            rounded = quantize_int8(parameters[name].swapaxes(0, axis), self._per_tensor_error)
            found[f"{name}:stored"] = rounded.values.swapaxes(0, axis)
            others = [other for other in range(rounded.values.ndim) if other != axis]
            scale = rounded.scale
            found[f"{name}:stored_scale"] = np.expand_dims(scale, others) if scale.ndim else scale
        return found
