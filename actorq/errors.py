"""The errors of the domain, each with one meaning.

Code raises an error where it finds the fault, with the expected and the actual value. `actorq.transport.errors` maps
errors to gRPC statuses and back. The command line prints each error as one line. No other code translates errors.
"""


class ActorQError(Exception):
    """Base of all errors that this project raises on purpose."""


def foreign_cause(error: BaseException) -> BaseException | None:
    """The user's or the library's exception behind one of our errors; None if there is none."""
    cause: BaseException | None = error
    while isinstance(cause, ActorQError):
        cause = cause.__cause__
    return cause


class UserError(ActorQError):
    """The user who started a process gave invalid input. The process ends with exit code 2."""


class InvalidInputError(ActorQError):
    """A message or file is malformed: wrong dtype, shape, size or digest, or a value that is not finite."""


class NotFoundError(ActorQError):
    """The named run, version, scheme or file does not exist."""


class ConflictError(ActorQError):
    """The request is well-formed, but conflicts with the state of the service, such as another run's id."""


class ExhaustedError(ActorQError):
    """A stated bound (message size, queue, watchers) would be exceeded."""


class DeniedError(ActorQError):
    """The peer's certificate does not allow this call, by role, run or name, or the deny list contains it."""


class UnavailableError(ActorQError):
    """The peer cannot be reached or is draining; the same call may succeed later."""


class UnreadableError(UserError, UnavailableError):
    """A file cannot be read now: its disk fails, or a permission is missing. Its content may be intact.

    Callers must therefore change nothing. A process that needs the file to start ends with this error.
    """


class CorruptedError(UnavailableError):
    """Bytes changed in transit, or an answer does not fit its request; the same call may succeed later."""
