"""Records the operations of a function of tensors once, and repeats them without Python and without autograd.

Updates of small networks spend less time in arithmetic than in Python, in autograd's bookkeeping, and in waits for the
interpreter lock. A dispatch mode records each operation, including those of backward passes. TorchScript repeats the
operations without the lock. The results are the same to the last bit, because the operations and their order are the
same. On a GPU the operations are captured instead (captured.py).

The operations must not depend on the values of tensors. `Recorded` tests each recording before it uses it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from learner_service.batch import Batch, mapped
from learner_service.kernels.captured import capture, is_capturing

_log = logging.getLogger(__name__)

# Two numbers of rows must be tested, neither of them 1.
_FEWEST_ROWS = 3
# Recordings of one function, for inputs of different shapes.
_MOST_RECORDINGS = 4
# The numbers of memory formats in TorchScript: those of c10::MemoryFormat.
_MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}

Function = Callable[..., tuple[Tensor, ...]]
Input = Tensor | Batch | None
# The shape or kind and dtype of each input; None for None.
_Signature = tuple[Any, ...]


def is_recording() -> bool:
    """Whether the operations of this thread are being recorded or captured."""
    return isinstance(_get_current_dispatch_mode(), _Recorder) or is_capturing()


class Recorded:
    """A function that is recorded when it is first called with inputs of a shape. Call it on one thread.

    function: its arguments are tensors on `device`, batches of tensors, and None; it returns tensors. Other values that
        it reads must not change, except tensors that are changed in place, such as parameters. The operations may also
        depend on whether torch has one thread or more. Python's numbers become constants. It writes only to memory that
        it has not read before, such as gradients.
    kind: maps a number of rows to its kind. Numbers of one kind have the same operations and share a recording. By
        default each number of rows has its own kind. Only for the CPU.
    device: the CPU by default.
    """

    def __init__(
        self, function: Function, kind: Callable[[int], int] | None = None, device: torch.device | None = None
    ) -> None:
        self._on_gpu = device is not None and device.type == "cuda"
        self._function, self._kind = function, kind
        # The recordings, by the values that their operations depend on; None for a failed recording.
        self._recordings: dict[_Signature, Function | None] = {}

    def __call__(self, *inputs: Input) -> tuple[Tensor, ...]:
        """The outputs of the function."""
        signature = self._signature(inputs)
        if signature not in self._recordings:
            if len(self._recordings) == _MOST_RECORDINGS or not self._can_be_tried(inputs):
                return self._function(*inputs)
            self._recordings[signature] = self._tried(inputs)
        repeat = self._recordings[signature]
        return self._function(*inputs) if repeat is None else repeat(*_given(inputs))

    def _signature(self, inputs: Sequence[Input]) -> "_Signature":
        kind = self._kind
        # With several threads, some layers use other operations.
        threads = torch.get_num_threads() > 1
        if kind is None:
            return (threads, *[None if x is None else (x.shape, x.dtype) for x in _leaves(inputs)])
        return threads, *(
            None if x is None else (kind(len(x)) if x.ndim else None, x.shape[1:], x.dtype) for x in _leaves(inputs)
        )

    def _can_be_tried(self, inputs: Sequence[Input]) -> bool:
        """Whether a batch with one row less has the same kind, if several numbers of rows share a recording."""
        rows = {len(each) for each in _given(inputs) if each.ndim}
        return self._kind is None or all(n >= _FEWEST_ROWS and self._kind(n) == self._kind(n - 1) for n in rows)

    def _tried(self, inputs: Sequence[Input]) -> Function | None:
        """A recording whose results equal the function's; None if they differ.

        The test includes one row less or reversed rows.
        """

        def other(tensor: Tensor) -> Tensor:
            if not tensor.ndim:
                return tensor
            return tensor.flip(0) if self._kind is None else tensor[:-1]

        others = tuple(mapped(other, each) for each in inputs)
        try:
            repeat = self._captured(inputs) if self._on_gpu else record(self._function, inputs)
            # Cloned, because the recording may write to the same memory.
            expected = [[each.clone() for each in self._function(*example)] for example in (inputs, others)]
            for example, numbers in zip((inputs, others), expected, strict=True):
                if not all(map(_are_close if self._on_gpu else torch.equal, repeat(*_given(example)), numbers)):
                    raise ValueError("its numbers differ")
        except Exception as error:
            # torch may raise any exception when an operation cannot be recorded.
            reason = f"{type(error).__name__}: {error}".strip().splitlines()[-1]
            _log.warning("torch %s: updates are not recorded, so they are slower: %s", torch.__version__, reason)
            return None
        return repeat

    def _captured(self, inputs: Sequence[Input]) -> Function:
        # A failed capture may leave the GPU's memory in an invalid state. The recorder finds the causes of failures
        # first.
        with _Recorder(_given(inputs)):
            self._function(*inputs)
        return capture(self._function, inputs)


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ only by a GPU's rounding, which may depend on its choice of algorithm."""
    return torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()), equal_nan=True)


def record(function: Function, inputs: Sequence[Input]) -> Function:
    """A function that repeats the operations of `function` with new tensors.

    Raises ValueError when `function` reads a number out of a tensor, and other errors of torch.
    """
    tensors = _given(inputs)
    with _Recorder(tensors) as recorder:
        results = [recorder.place(each) for each in function(*inputs)]
    # Tensors from outside of the function become inputs too. Otherwise TorchScript may compute with these tensors only
    # once.
    places, given = zip(*recorder.given, strict=True)
    own = [each.detach() for each in given[len(tensors) :]]
    repeat = _scripted(places, recorder.calls, results)
    # The recorder keeps all intermediate results.
    del recorder
    # By default TorchScript compiles again at the second call to fuse operations. On the CPU it fuses none. A setting
    # of the whole process, read at the first call, decides this.
    usual = torch._C._jit_set_fusion_strategy([])
    try:
        repeat(*tensors, *own)
    finally:
        torch._C._jit_set_fusion_strategy(usual)
    return lambda *tensors: repeat(*tensors, *own)


@dataclass(frozen=True)
class _Place:
    """Replaces a tensor in the arguments of a recorded call."""

    number: int


class _Call(NamedTuple):
    """A recorded call. made: its results; None for a missing one, such as an unneeded gradient."""

    operation: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    made: list[_Place | None]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records all operations of its context, and gives each tensor a place.

    calls: the operations, in order. given: the tensors that no operation made, the inputs first. They include views of
        outside tensors, which are made once.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self._places: dict[int, _Place] = {}
        # Keeps all tensors, so that no tensor gets the identity of a deleted one.
        self._seen: list[Tensor] = []
        self._outside: set[_Place] = set()
        self.given = [(self._new(each), each) for each in inputs]
        if len(self._places) < len(inputs):
            raise ValueError("two inputs are one tensor")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether to guard against torch's compiler: never, because a guard would import it, which takes a second."""
        return False

    def place(self, tensor: Tensor) -> _Place:
        """The place of a tensor."""
        if id(tensor) not in self._places:
            self.given.append((self._new(tensor), tensor))
            self._outside.add(self._places[id(tensor)])
        return self._places[id(tensor)]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            raise ValueError("a number is read from a tensor")
        if func.is_view and all(map(self._is_outside, _flat((args, kwargs)))):
            return func(*args, **(kwargs or {}))
        arguments, options = _mapped((args, kwargs or {}), self.place)
        result = func(*args, **(kwargs or {}))
        made = [self._new(each) if isinstance(each, Tensor) else None for each in _flat(result)]
        self.calls.append(_Call(func, arguments, options, made))
        return result

    def _is_outside(self, argument: Any) -> bool:
        place = self._places.get(id(argument)) if isinstance(argument, Tensor) else None
        return place is None or place in self._outside

    def _new(self, tensor: Tensor) -> _Place:
        self._seen.append(tensor)
        place = self._places[id(tensor)] = _Place(len(self._seen))
        return place


def _leaves(inputs: Sequence[Input]) -> list[Tensor | None]:
    """Tensors and None of the inputs. torch's function for any tree is slower than a small product."""
    parts = (each.columns.values() if isinstance(each, Batch) else (each,) for each in inputs)
    return [tensor for part in parts for tensor in part]


def _given(inputs: Sequence[Input]) -> list[Tensor]:
    return [tensor for tensor in _leaves(inputs) if tensor is not None]


def _scripted(given: Sequence["_Place"], calls: Sequence["_Call"], results: Sequence["_Place"]) -> Any:
    """A TorchScript function, the only form that repeats operations without the interpreter lock."""
    graph: Any = torch._C.Graph()
    values = {place: graph.addInput() for place in given}

    def added(operation: str, arguments: Sequence[Any], count: int = 1) -> list[Any]:
        return list(graph.insertNode(graph.create(operation, arguments, count)).outputs())

    def value(argument: Any, kind: Any) -> Any:
        if isinstance(argument, _Place):
            return values[argument]
        if not isinstance(argument, list | tuple):
            return graph.insertConstant(_MEMORY_FORMATS.get(argument, argument))
        kind = kind.getElementType() if isinstance(kind, torch.OptionalType) else kind
        (found,) = added("prim::ListConstruct", [value(each, kind.getElementType()) for each in argument])
        found.setType(kind)
        return found

    for call in calls:
        schema = call.operation._schema
        named = dict(zip((each.name for each in schema.arguments), call.arguments, strict=False)) | call.options
        arguments = {each.name: value(named.get(each.name, each.default_value), each.type) for each in schema.arguments}
        if schema.name == "aten::addmm" and not call.options and len(call.arguments) == 3:
            # TorchScript would make this a product and a sum, with other numbers.
            (columns,) = added("aten::t", [arguments["mat2"]])
            found = added("aten::linear", [arguments["mat1"], columns, arguments["self"]])
        else:
            found = added(schema.name, list(arguments.values()), len(schema.returns))
        for each, returned in zip(found, schema.returns, strict=True):
            each.setType(returned.type)
        if any(isinstance(returned.type, torch.ListType) for returned in schema.returns):
            found = added("prim::ListUnpack", found, len(call.made))
        values |= {place: each for place, each in zip(call.made, found, strict=True) if place}
    for place in results:
        graph.registerOutput(values[place])
    graph.makeMultiOutputIntoTuple()
    graph.lint()
    return torch._C._create_function_from_graph("repeat", graph)


def _flat(tree: Any) -> Iterator[Any]:
    """The leaves of an operation's arguments or results. torch's function for any tree is slower."""
    if isinstance(tree, list | tuple | dict):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _flat(each)
    else:
        yield tree


def _mapped(tree: Any, function: Callable[[Tensor], Any]) -> Any:
    """An operation's arguments with all tensors replaced."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: _mapped(each, function) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_mapped(each, function) for each in tree])
    return tree
