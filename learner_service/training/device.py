"""Selects the learner's device, and makes batches that are fast to copy to it."""

from collections.abc import Callable

import numpy as np
import torch

from actorq.domain.columns import Array
from actorq.errors import UserError


def choose_device(setting: str) -> torch.device:
    """The device: cpu, cuda, cuda:N, or auto for a GPU if there is one.

    Raises UserError when a required GPU is missing.
    """
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(setting)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(
            f"learner.device is {setting}, but torch {torch.__version__} finds {gpus or 'no'} GPUs; use cpu or auto"
        )
    return device


def allocator_for(device: torch.device) -> Callable[[tuple[int, ...], str], Array]:
    """A function that makes arrays for batches. For a GPU they are in pinned memory, for asynchronous copies."""
    return _pinned if device.type == "cuda" else np.empty


def _pinned(shape: tuple[int, ...], dtype: str) -> Array:
    tensor = torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name), pin_memory=True)
    array: Array = tensor.numpy()
    return array
