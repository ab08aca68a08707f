"""Starts a process: its imports take most of that time, and two things that only slow them are left out.

`python -m actorq.start MODULE:FUNCTION ARGUMENTS...` starts a command that has no entry point of its own.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn


@contextmanager
def fast_imports() -> Iterator[None]:
    """Import modules in the block, without garbage collection: modules stay."""
    # NumPy would start threads that wait for work in a loop. PyTorch and ONNX Runtime have their own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def command_of(reference: str) -> tuple[str, ...]:
    """The command that starts a function in a process of its own."""
    return (sys.executable, "-m", "actorq.start", reference)


def start(reference: str) -> NoReturn:
    """Import a function by its reference MODULE:FUNCTION, run it as the body of this process, and end the process."""
    name, _, function = reference.partition(":")
    try:
        with fast_imports():
            module = import_module(name)
            from actorq.process import leave, main
    except KeyboardInterrupt:
        os._exit(130)
    leave(main(getattr(module, function)))


if __name__ == "__main__":
    start(sys.argv.pop(1))
