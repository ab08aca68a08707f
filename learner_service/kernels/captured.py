"""Captures the operations of a function of tensors on a GPU once, and repeats all of them with one launch.

The operations of small networks take a GPU less time than Python and PyTorch need to launch them one by one.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from learner_service.batch import Batch, mapped

# Calls before the capture. In their first calls, libraries choose algorithms and allocate memory.
_CALLS_BEFORE = 2


def is_capturing() -> bool:
    """Whether the operations of this thread are being captured."""
    # Layers call this in each update. CUDA is asked only if it is initialized, so that a CPU loses no time.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def capture(
    function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor | Batch | None]
) -> Callable[..., tuple[Tensor, ...]]:
    """A function that repeats the operations of `function` with new tensors.

    function, inputs: as in `Recorded`, with tensors on a GPU. The tensors of later calls have the same shapes. The
        function must not read a number out of a tensor.
    """
    places: list[Tensor] = []

    def place(tensor: Tensor) -> Tensor:
        places.append(tensor.clone())
        return places[-1]

    placed = [mapped(place, each) for each in inputs]
    current, beside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(current)
    with torch.cuda.stream(beside):
        for _ in range(_CALLS_BEFORE):
            before = function(*placed)
    current.wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the GPU in the meantime.
    with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
        results = function(*placed)
    # The next repetition overwrites the graph's own tensors, but not memory from outside, such as gradients.
    made = [result is not earlier for result, earlier in zip(results, before, strict=True)]

    def repeat(*tensors: Tensor) -> tuple[Tensor, ...]:
        for own, tensor in zip(places, tensors, strict=True):
            own.copy_(tensor, non_blocking=True)
        graph.replay()
        return tuple(result.clone() if is_made else result for result, is_made in zip(results, made, strict=True))

    return repeat
