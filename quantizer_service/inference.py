"""Running models: the one way in which this service opens an ONNX Runtime session."""

import onnxruntime as ort

from actorq.errors import InvalidInputError

_ERRORS_ONLY = 3


def open_session(model: bytes, what: str) -> ort.InferenceSession:
    """A session on one CPU thread; raises InvalidInputError when ONNX Runtime refuses the model named `what`."""
    options = ort.SessionOptions()
    # One thread: the service shares its machine with learners and actors, and its batches are small.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    # Each session runs once or a few times: an arena would only hold memory.
    options.enable_cpu_mem_arena = False
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class.
        reason = " ".join(str(error).split())[:300]
        raise InvalidInputError(
            f"{what}: ONNX Runtime {ort.__version__} cannot load it ({reason}); export it with operators and an opset "
            "that this version has"
        ) from None
