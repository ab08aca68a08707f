"""Opens models in ONNX Runtime. Imports it at the first use, because commands and the learner work without it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from actorq.domain.signature import METADATA, Signature, signature_of
from actorq.errors import InvalidInputError

if TYPE_CHECKING:
    import onnxruntime

Session: TypeAlias = "onnxruntime.InferenceSession"

# ONNX Runtime also logs the errors that it raises.
_FATAL_ONLY = 4


def open_session(model: bytes, arena: bool = True, without: Sequence[str] = ()) -> Session:
    """A session on one CPU thread, as in actors. Raises ONNX Runtime's errors.

    arena: keep memory between calls. This speeds up many calls; for a few calls it only occupies memory.
    without: names of ONNX Runtime's optimizations to leave out.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # By default ONNX Runtime starts a thread per core of the host and ignores the container's limit.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    # Weights stored in int8 become float once at loading, not at each call. All other optimizations stay on: they add
    # 0.1 ms to a load, and make convolutions 1.7 times faster.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.enable_cpu_mem_arena = arena
    # The fallback would print to standard output and retry the same provider.
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(
        model, options, providers=providers, enable_fallback=0, disabled_optimizers=list(without)
    )


def signature_of_session(session: Session) -> Signature:
    """The signature in a model's metadata, or inferred from its names. Raises InvalidInputError if it does not fit."""
    inputs, outputs = ([each.name for each in each] for each in (session.get_inputs(), session.get_outputs()))
    text = session.get_modelmeta().custom_metadata_map.get(METADATA)
    if text is None:
        return signature_of(inputs, outputs)
    found = Signature.from_text(text)
    for have, ports in ((inputs, found.inputs), (outputs, found.outputs)):
        if missing := {port.name for port in ports} - set(have):
            raise InvalidInputError(f"signature: the model has no {', '.join(sorted(missing))}")
    return found
