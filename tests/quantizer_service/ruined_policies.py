"""Policies that are right in FP32 but that quantization ruins."""

import numpy as np

from tests.quantizer_service.policy_graphs import Tensors, mlp
from tests.quantizer_service.policy_runs import random_observations, random_parameters

# Five layers, so that some are in the middle for all layers that a scheme leaves in float at the ends.
DEEP = mlp(16, 16, 16, 16)
INNER = ("layers.1", "layers.2", "layers.3")


def deep_parameters(version: int = 1, ruined: tuple[str, ...] = ()) -> Tensors:
    """Parameters of DEEP, in which the weights of the layers named are ruined by any 8 or 4 bit format.

    One of their inputs is a dead unit, always 0 behind its ReLU, so its outgoing weights may be anything: they are so
    large that on any scale which holds them the others are 0. It has inputs, so nothing but observations tells that it
    is dead.
    """
    parameters = random_parameters(DEEP, version)
    for layer in ruined:
        before = f"layers.{int(layer.removeprefix('layers.')) - 1}"
        if f"{before}.weight" in parameters:
            parameters[f"{before}.weight"][0] = 1e-3
            parameters[f"{before}.bias"][0] = -1
        parameters[f"{layer}.weight"][:, 0] = 1e5
    # So that each action is the best one somewhere, and errors can be seen in which one it is.
    parameters["layers.4.bias"] -= _outputs(parameters).mean(axis=0)
    return parameters


def _outputs(parameters: Tensors) -> np.ndarray:
    value = dead_observations()["observation"]
    for i in range(5):
        value = value @ parameters[f"layers.{i}.weight"].T + parameters[f"layers.{i}.bias"]
        value = np.maximum(value, 0) if i < 4 else value
    return value


def dead_observations(rows: int = 64, seed: int = 0) -> Tensors:
    """Observations whose first component is always 0: a dead input of the first layer."""
    observations = random_observations(rows, seed)
    observations["observation"][:, 0] = 0
    return observations
