"""Records the operations of a function of tensors once, and repeats them without Python and without autograd.

Updates of small networks spend less time in arithmetic than in Python, in autograd's bookkeeping, and in waits for the
interpreter lock. A dispatch mode sees each operation, also those of backward passes. TorchScript repeats them without
the lock. The numbers are the same to the last bit, because the operations and their order are the same.

The operations must not depend on the values of tensors, and no shape may be a constant: a function of a batch has to
work with any number of rows. `Recorded` tries both out before it uses a recording.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

_log = logging.getLogger(__name__)

# With fewer rows, the half of them would be all of them or one. Neither shows whether a shape is a constant.
_FEWEST_ROWS = 3

Function = Callable[..., tuple[Tensor, ...]]


class Recorded:
    """A function that is recorded when it is called first. Call it on one thread.

    function: takes and returns tensors on the CPU, and changes none in place. Other tensors that it reads, such as
        parameters, may be changed in place between calls.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._repeat: Function | None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of the function."""
        if self._repeat is None:
            if any(each.ndim and len(each) < _FEWEST_ROWS for each in inputs):
                return self._function(*inputs)
            self._repeat = self._tried(inputs) or self._function
        return self._repeat(*inputs)

    def _tried(self, inputs: Sequence[Tensor]) -> Function | None:
        """A recording that gives the same numbers as the function, for the inputs and for fewer rows; else None."""
        fewer = [each[: len(each) // 2 + 1] if each.ndim else each for each in inputs]
        try:
            repeat = record(self._function, inputs)
            # TorchScript runs a function in its final form from the third time on.
            for example in (inputs, fewer, inputs, fewer):
                if not all(map(torch.equal, repeat(*example), self._function(*example))):
                    raise ValueError("its numbers differ")
        except Exception as error:
            # torch may raise anything when an operation cannot be recorded.
            reason = f"{type(error).__name__}: {error}".strip().splitlines()[-1]
            _log.warning("torch %s: updates are not recorded, so they are slower: %s", torch.__version__, reason)
            return None
        return repeat


def record(function: Function, inputs: Sequence[Tensor]) -> Function:
    """A function that repeats the operations that `function` makes with these inputs.

    Raises ValueError when it reads a number out of a tensor, and other errors of torch.
    """
    with _Recorder(inputs) as recorder:
        results = [recorder.place(each) for each in function(*inputs)]
    # Tensors from outside of the function become inputs, too. Otherwise TorchScript may compute with them only once.
    places, given = zip(*recorder.given, strict=True)
    calls = recorder.calls

    def operations(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = dict(zip(places, tensors, strict=True))
        for operation, arguments, options, made in calls:
            result = operation(*_filled(arguments, values), **_filled(options, values))
            values |= zip(made, _tensors(result), strict=True)
        return tuple(values[place] for place in results)

    given = tuple(each.detach() for each in given)
    with warnings.catch_warnings(), torch.no_grad():
        # Nothing but TorchScript repeats operations without the interpreter lock. It gets no new features any more.
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(operations, given, check_trace=False)  # type: ignore[no-untyped-call]
    own = given[len(inputs) :]
    return lambda *tensors: traced(*tensors, *own)


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor in the arguments of a recorded call."""

    number: int


class _Call(NamedTuple):
    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    made: list[_Place]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees all operations of its context, and gives each tensor a place.

    calls: the operations, in order. given: the tensors that no operation made, the inputs first.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self._places: dict[int, _Place] = {}
        # Keeps all tensors, so that none gets the identity of another one that is gone.
        self._seen: list[Tensor] = []
        self.given = [(self._new(each), each) for each in inputs]
        if len(self._places) < len(inputs):
            raise ValueError("two inputs are one tensor")

    def place(self, tensor: Tensor) -> _Place:
        """The place of a tensor."""
        if id(tensor) not in self._places:
            self.given.append((self._new(tensor), tensor))
        return self._places[id(tensor)]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise ValueError("a number is read out of a tensor")
        arguments, options = tree_map_only(Tensor, self.place, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, arguments, options, [self._new(each) for each in _tensors(result)]))
        return result

    def _new(self, tensor: Tensor) -> _Place:
        self._seen.append(tensor)
        place = self._places[id(tensor)] = _Place(len(self._seen))
        return place


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in tree_flatten(tree)[0] if isinstance(each, Tensor)]


def _filled(tree: Any, values: Mapping[_Place, Tensor]) -> Any:
    return tree_map_only(_Place, values.__getitem__, tree)
