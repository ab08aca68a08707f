"""Renames tensors to avoid collisions with names that schemes create."""

import onnx

from actorq.quantization.layers import layer_name
from actorq.quantization.nodes import rename_tensors


def make_names_unique(graph: onnx.GraphProto) -> None:
    """Rename tensors so that no name equals another name plus a colon and suffix, in place.

    Schemes and forms create such names: "h:zero_point" for tensor "h". Inputs and outputs keep their names. The
    colliding tensor is renamed instead.
    """
    fixed = {value.name for value in (*graph.input, *graph.output)}
    names = [tensor.name for tensor in graph.initializer]
    names += [name for node in graph.node for name in node.output if name]
    taken = {*names, *fixed}
    owners: dict[str, list[str]] = {}
    for name in taken:
        for base in {name, layer_name(name)}:
            owners.setdefault(base, []).append(name)
    renamed: dict[str, str] = {}
    for name in sorted(taken):
        parts = name.split(":")
        for base in (":".join(parts[:count]) for count in range(1, len(parts))):
            for each in [name] if name not in fixed else owners.get(base, []):
                if base in owners and each not in fixed and each not in renamed:
                    renamed[each] = _free_name(each.replace(":", "_"), taken)
    rename_tensors(graph, renamed)
    if renamed:
        graph.ClearField("value_info")


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
