"""Starts processes and commands quickly: imports without garbage collection, and fewer threads.

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

# Exit codes that a shell reports for processes ended by SIGINT and SIGPIPE.
_INTERRUPTED, _BROKEN_PIPE = 130, 141
# Errors of the machine: a disk that is full, broken or without locks, missing permissions, too many open files. Any
# other error is a bug in this program.
_OF_THE_MACHINE = (
    *(*DISK_FULL, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOLCK, errno.EMFILE, errno.ENFILE),
)


@contextmanager
def fast_imports() -> Iterator[None]:
    """Imports inside the block run without garbage collection. gRPC and NumPy get quiet defaults."""
    # gRPC reads this when imported. Its own lines would precede ours, which say what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # NumPy would start threads that wait in a busy loop. PyTorch and ONNX Runtime have their own threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def command_of(reference: str) -> tuple[str, ...]:
    """The command that starts a function in its own process."""
    return (sys.executable, "-m", "actorq.start", reference)


def start(reference: str, sigterm: int | None = None, extra: str = BASE) -> NoReturn:
    """Import a function by its reference MODULE:FUNCTION, run it as the body of this process, and end the process.

    extra: the extra whose packages the function needs. Without them the process ends with one line, as for a user's
        mistake.
    sigterm: exit code for a SIGTERM that arrives before the service handles signals. Nothing needs saving then. Without
        a handler, the first process of a container would ignore the signal.
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
            # The stream was closed. Otherwise the next opened file would get the descriptor of the stream.
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
        # The reader of our output is gone. Otherwise the interpreter would report the lost reader again when it ends.
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
