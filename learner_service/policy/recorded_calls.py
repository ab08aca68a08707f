"""Records the torch calls in a forward pass: the computation of a policy without its weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_flatten


@dataclass(frozen=True)
class Call:
    """One call of a torch function: its full name, arguments and result."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any

    @property
    def made(self) -> list[Tensor]:
        """The tensors in the result."""
        return [each for each in tree_flatten(self.result)[0] if isinstance(each, Tensor)]


def record(policy: nn.Module, examples: Mapping[str, Tensor]) -> tuple[list[Call], Any]:
    """Run a policy. Returns its torch calls on this thread in order, and its outputs.

    Raises the policy's own errors, and TypeError when the policy calls a torch function without a name.
    """
    recorder = _Recorder()
    with torch.no_grad():
        # The first pass of a process also tests operations (kernels/torch_private.py), which do not belong to the
        # policy.
        policy(*examples.values())
        with recorder:
            outputs = policy(*examples.values())
    return recorder.calls, outputs


class _Recorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = resolve_name(func)
        if name is None:
            raise TypeError(f"{func} has no name")
        result = func(*args, **(kwargs or {}))
        self.calls.append(Call(name, args, kwargs or {}, result))
        return result
