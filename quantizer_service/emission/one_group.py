"""The policy of one group alone: a smaller graph without the bits of the groups and without other groups' layers."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.helper import make_node, make_tensor_value_info

from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.domain.signature import Signature
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from actorq.quantization.nodes import live_nodes, reads, set_repeated
from actorq.quantization.signatures import signed_graph
from quantizer_service.emission.row_groups import constants_of, rows_by_group, sources_of

Parameters = dict[str, NDArray[Any]]


def alone(graph: Graph, checkpoint: Checkpoint, name: str) -> tuple[PolicyGraph, Checkpoint]:
    """The graph and the checkpoint of one group's policy. Its input lacks the bits of the groups.

    Its calibration batch has the rows of the group. Raises InvalidInputError for an unknown group, a group without
    rows, and a graph in another form than `learner_service.networks.by_group`.
    """
    signature = graph.signature
    if name not in (known := [group.name for group in signature.groups]):
        raise InvalidInputError(
            f"--group: expected one of {', '.join(known)}, got {name}"
            if known
            else f"--group: the policy has no groups, got {name}; leave --group out"
        )
    rows = rows_by_group(checkpoint.calibration, signature).get(name)
    if rows is None:
        raise InvalidInputError(f"--group: there are no stored observations of group {name}; export a later version")
    model, parameters = _Reduction(graph, name, checkpoint.parameters).result()
    source = signed_graph(model, replace(signature, groups=()))
    left = left_columns(signature, int(graph.inputs[signature.groups[0].input].shape[0]))
    calibration = {
        each: values[rows][:, left] if each == signature.groups[0].input else values[rows]
        for each, values in checkpoint.calibration.items()
    }
    digest = source.digest
    return source, replace(
        checkpoint, graph_digest=digest, parameters=parameters, calibration=calibration, received=None, sequences={}
    )


def left_columns(signature: Signature, width: int) -> list[int]:
    """The columns of the input that are no bits."""
    bits = {group.component for group in signature.groups}
    return [column for column in range(width) if column not in bits]


@dataclass
class _Reduction:
    """A graph while the bits of the groups are replaced by constants.

    names: tensors that equal another tensor. bits: bits as constants. zeros: tensors of zeros.
    stale: tensors that depend on zeros or bits in another way; later they are multiplied by 0.
    wholes: tensors whose columns were split, by the names of all parts.
    """

    graph: Graph
    group: str
    given: Mapping[str, NDArray[Any]]
    names: dict[str, str] = field(default_factory=dict)
    bits: dict[str, float] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    wholes: dict[tuple[str, ...], str] = field(default_factory=dict)
    _left: set[int] = field(default_factory=set)
    _new: list[onnx.TensorProto] = field(default_factory=list)
    _sources: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    _constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    _parameters: Parameters = field(default_factory=dict)

    def result(self) -> tuple[onnx.ModelProto, Parameters]:
        """The smaller graph and its parameters. Raises InvalidInputError for a graph in another form."""
        model = deepcopy(self.graph.model)
        body, signature = model.graph, self.graph.signature
        read = signature.groups[0].input
        self._left = {*left_columns(signature, int(self.graph.inputs[read].shape[0]))}
        own = {group.component: float(group.name == self.group) for group in signature.groups}
        self._sources = sources_of(model, signature)
        self._constants, self._parameters = constants_of(body), dict(self.given)
        bits = {name: columns for name, columns in self._sources.items() if columns and {*columns} <= {*own}}
        self.bits = {name: own[columns[0]] for name, columns in bits.items()}
        kept = [made for node in body.node if (made := self._reduced(node)) is not None]
        outputs = [value.name for value in body.output]
        nodes, wanted = live_nodes(self._named(kept, outputs), outputs)
        if not wanted.isdisjoint(self.stale | self.zeros | self.bits.keys()):
            raise self._unknown()
        set_repeated(body, "node", nodes)
        body.ClearField("value_info")
        set_repeated(body, "initializer", [each for each in (*body.initializer, *self._new) if each.name in wanted])
        parameters = {name: self._parameters[name] for name in self.graph.parameters if name in wanted}
        data = [value for value in body.input if value.name in self.graph.inputs]
        for value in data:
            if value.name == read:
                value.type.tensor_type.shape.dim[1].dim_value = len(self._left)
        types = (make_tensor_value_info(each, onnx.TensorProto.FLOAT, of.shape) for each, of in parameters.items())
        set_repeated(body, "input", [*data, *types])
        return model, parameters

    def _named(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
        """The nodes, of which some now return an output that was another node's."""
        made = {each for node in nodes for each in node.output} - {*outputs}
        of_output = {output: self._name(output) for output in outputs if output in self.names}
        new = {target: output for output, target in of_output.items() if target in made}
        for node in nodes:
            node.input[:] = [new.get(each, each) for each in node.input]
            node.output[:] = [new.get(each, each) for each in node.output]
        others = [(new.get(target, target), output) for output, target in of_output.items()]
        return [*nodes, *(make_node("Identity", [read], [output]) for read, output in others if read != output)]

    def _reduced(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The node without bits; None if it is not needed."""
        inputs, output = [self._name(each) for each in reads(node)], node.output[0]
        if output in self.bits and all(each in self.bits for each in node.output):
            return None
        if any(each in self._sources for each in inputs) and output in self._sources:
            return self._by_column(node, inputs)
        if node.op_type == "Concat" and all(each in self._sources for each in inputs):
            inputs = [each for each in inputs if each not in self.bits]
            if len(inputs) == 1 or tuple(inputs) in self.wholes:
                self.names[output] = self.wholes.get(tuple(inputs), inputs[0])
                return None
        if node.op_type == "Mul" and (factor := next((each for each in inputs if each in self.bits), None)):
            (other,) = [each for each in inputs if each != factor] or [factor]
            if self.bits[factor] and other not in self.stale:
                self.names[output] = other
            else:
                (self.stale if self.bits[factor] else self.zeros).add(output)
            return None
        if node.op_type == "Add" and not self.zeros.isdisjoint(inputs):
            others = [each for each in inputs if each not in self.zeros]
            if others:
                self.names[output] = others[0]
            else:
                self.zeros.add(output)
            return None
        if not (self.zeros | self.stale | self.bits.keys()).isdisjoint(inputs):
            self.stale.update(node.output)
            return None
        made = deepcopy(node)
        made.input[:] = [self._name(each) for each in node.input]
        return made

    def _by_column(self, node: onnx.NodeProto, inputs: Sequence[str]) -> onnx.NodeProto | None:
        """A node that keeps columns in their places, with the remaining columns."""
        source = next(each for each in inputs if each in self._sources)
        columns = self._sources[source]
        kept = [place for place, column in enumerate(columns) if column in self._left]
        made = deepcopy(node)
        if node.op_type == "Split":
            outputs = [each for each in node.output if each not in self.bits]
            sizes = [len([column for column in self._sources[each] if column in self._left]) for each in outputs]
            if len(outputs) == 1:
                self.names[outputs[0]] = source
                return None
            self.wholes[tuple(outputs)] = source
            made.output[:] = outputs
            made.input[:] = [source, self._constant(np.array(sizes, np.int64))]
            return made
        made.input[:] = [
            self._sliced(each, len(columns), kept) if each and self._name(each) != source else self._name(each)
            for each in node.input
        ]
        return made

    def _sliced(self, name: str, width: int, kept: Sequence[int]) -> str:
        """A parameter or constant with a value for each column, without the columns of bits."""
        if name in self._parameters:
            if self.given[name].shape[-1:] == (width,) and width > 1:
                self._parameters[name] = np.ascontiguousarray(self.given[name][..., list(kept)])
            return name
        array = self._constants.get(name)
        if array is None:
            raise self._unknown()
        return self._constant(array[..., list(kept)]) if array.shape[-1:] == (width,) and width > 1 else name

    def _constant(self, array: NDArray[Any]) -> str:
        name = f"of_group_{len(self._new)}"
        self._new.append(numpy_helper.from_array(array, name))
        return name

    def _name(self, name: str) -> str:
        while name in self.names:
            name = self.names[name]
        return name

    def _unknown(self) -> InvalidInputError:
        return InvalidInputError(
            f"--group: the policy's graph does not separate group {self.group}; export the whole policy without --group"
        )
