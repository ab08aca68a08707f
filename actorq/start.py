"""Starts processes and commands: imports take most of that time, and two things that only slow them are left out.

`python -m actorq.start MODULE:FUNCTION ARGUMENTS...` starts a command that has no entry point of its own.
"""

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn

from actorq.errors import ActorQError, UserError
from actorq.extras import BASE, explain, require
from actorq.statefiles.files import DISK_FULL

# As a shell reports processes that SIGINT or SIGPIPE has ended.
_INTERRUPTED, _BROKEN_PIPE = 130, 141
# A disk that is full or broken or has no locks, missing permissions, too many open files. Any other error is a fault of
# this program.
_OF_THE_MACHINE = (
    *(*DISK_FULL, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOLCK, errno.EMFILE, errno.ENFILE),
)


@contextmanager
def fast_imports() -> Iterator[None]:
    """Import modules in the block, without garbage collection: modules stay. gRPC and NumPy get quiet defaults."""
    # gRPC reads it when it is imported. Its own lines would stand before ours, which say what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
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


def start(reference: str, sigterm: int | None = None, extra: str = BASE) -> NoReturn:
    """Import a function by its reference MODULE:FUNCTION, run it as the body of this process, and end the process.

    extra: whose packages it needs. Without them the process ends with one line, as for any mistake of a user.
    sigterm: exit code of a service that gets SIGTERM before it handles signals itself. It has nothing to save then. The
        first process of a container would otherwise not notice the signal.
    """
    if sigterm is not None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(sigterm))
    name, _, function = reference.partition(":")
    what = f"the {extra}" if extra else "this command"
    try:
        require(what, (BASE, extra))
        with fast_imports():
            module = import_module(name)
            from actorq.process import leave, main
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    except UserError as error:
        sys.exit(_fail(error, 2))
    except ImportError as error:
        if (explained := explain(what, error)) is None:
            raise
        sys.exit(_fail(explained, 2))
    leave(main(getattr(module, function)))


def run_command(run: Callable[[], int]) -> int:
    """Run a command's body. Returns its exit code: 2 for an error of the user, 1 for another error of ours."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:
            # It was closed. Otherwise the next file that is opened would take its descriptor.
            setattr(sys, stream, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    try:
        code = run()
        sys.stdout.flush()
        return code
    except ActorQError as error:
        return _fail(error, 2 if isinstance(error, UserError) else 1)
    except ImportError as error:
        if (explained := explain("this command", error)) is None:
            raise
        return _fail(explained, 2)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left. Otherwise the interpreter would report that again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        what = error.filename or "standard output or a file"
        return _fail(ActorQError(f"{what} cannot be read or written: {error.strerror}"), 1)


def _fail(error: ActorQError, code: int) -> int:
    sys.stderr.write(f"error: {error}\n")
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    start(sys.argv.pop(1))
