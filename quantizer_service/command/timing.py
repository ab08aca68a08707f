"""Times the calls of models in sessions like an actor's: one thread, buffers bound once."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnxruntime as ort

from actorq.errors import InvalidInputError
from actorq.quantization.calibration import Batch
from actorq.text import reason_of
from actorq.timing import time_calls
from quantizer_service.emission.inference import open_session

Times = dict[str, dict[int, float]]


def time_models(models: Mapping[str, bytes], feeds: Batch, batches: Iterable[int], budget_s: float = 0.5) -> Times:
    """Seconds of one call by model and batch, with all models in turns (see actorq.timing).

    feeds: rows for every data input. A batch takes the first rows, repeated if needed.
    budget_s: wall-clock time for each batch.
    Raises InvalidInputError when a model cannot be loaded or run.
    """
    times: Times = {name: {} for name in models}
    for batch in batches:
        rows = {name: np.take(array, np.arange(batch) % len(array), axis=0) for name, array in feeds.items()}
        calls = {name: bound_call(open_session(model, name, arena=True), rows, name) for name, model in models.items()}
        for name, seconds in time_calls(calls, budget_s).items():
            times[name][batch] = seconds
    return times


def bound_call(session: ort.InferenceSession, rows: Batch, what: str) -> Callable[[], object]:
    """A call on these rows with bound buffers. Runs once; raises InvalidInputError when that fails."""
    binding = session.io_binding()
    for value in session.get_inputs():
        array = np.ascontiguousarray(rows[value.name])
        binding.bind_cpu_input(value.name, array)
    for value in session.get_outputs():
        binding.bind_output(value.name)

    def call() -> None:
        session.run_with_iobinding(binding)

    try:
        call()
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        count = len(next(iter(rows.values())))
        raise InvalidInputError(f"{what}: it does not run on {count} rows: {reason_of(error)}") from None
    return call
