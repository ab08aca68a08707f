"""Fingerprint of a policy's code, layers and constants: a digest of the torch calls in a forward pass."""

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from learner_service.policy.recorded_calls import record


def fingerprint(policy: nn.Module, examples: Mapping[str, Tensor]) -> str:
    """A digest of the torch calls in a forward pass, and of their tensors.

    policy: on the CPU, in eval mode. examples: its inputs, by name and in order.

    Parameters and buffers count with name, shape and dtype. All other tensors count with their values. So the digest
    stays the same while the policy trains, and changes with its code, layers or constants.

    Raises the policy's own errors, and TypeError when it calls a torch function without a name. Raises RuntimeError or
    TypeError for a tensor without bytes, such as a sparse one.
    """
    named = {**examples, **policy.state_dict(keep_vars=True)}
    names = {id(tensor): name for name, tensor in named.items()}
    calls, outputs = record(policy, examples)
    digest = hashlib.sha256()

    def named_by(tensor: Tensor) -> str:
        return names.get(id(tensor)) or _constant(tensor)

    def note(*values: Any) -> None:
        digest.update(f"{tree_map_only(Tensor, named_by, values)!r}\n".encode())

    for name, tensor in named.items():
        note(name, str(tensor.dtype), tuple(tensor.shape))
    for number, call in enumerate(calls):
        note(call.name, call.arguments, call.options)
        names |= {id(tensor): f"{number}.{which}" for which, tensor in enumerate(call.made)}
    note("outputs", outputs)
    return digest.hexdigest()


def _constant(tensor: Tensor) -> str:
    values = hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()
    return f"{tensor.dtype} {tuple(tensor.shape)} {values}"
