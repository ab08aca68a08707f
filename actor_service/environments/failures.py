"""Describes the failure of an environment on one line, with its file and line, and counts failures in a row."""

import linecache
import logging
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from actorq.errors import ActorQError, UserError
from actorq.plugins import Place, innermost
from actorq.text import one_line

_log = logging.getLogger(__name__)

# Consecutive faults of one environment that end the actor.
MOST_FAULTS = 10
# The lower limit before the batch's first good step. A broken environment needs no more restarts.
MOST_FAULTS_AT_START = 5
# All exceptions of an environment, including SystemExit: `sys.exit` would end the actor without a message.
FAILURES = (Exception, SystemExit)

_MOST_BYTES = 500
_NOT_THEIRS = tuple(f"{Path(file).parent}{os.sep}" for file in (Path(__file__).parent, gymnasium.__file__))
_UNPACKING = ("values to unpack", "cannot unpack")
_CONTRACT = "reset must return (observation, info), and step (observation, reward, terminated, truncated, info)"


class MisfitError(ValueError):
    """An environment returned a value that does not fit its spaces or Gymnasium's interface."""


def failure_text(error: BaseException) -> str:
    """The exception, its message and its place, such as "RuntimeError: no motor (arm.py:12)", on one bounded line.

    The place is the innermost line outside of Gymnasium, this project and Python's library. The source text of that
    line replaces a missing message.
    """
    text, place = " ".join(str(error).split()).rstrip("."), place_of(error)
    if isinstance(error, SystemExit):
        text = f"the environment called sys.exit({'' if error.code is None else repr(error.code)})"
    elif not isinstance(error, MisfitError):
        if place is not None and not text:
            text = linecache.getline(place.file, place.line).strip()
        # Messages of Gymnasium and of failed imports are clear without the exception's name.
        if not (isinstance(error, ImportError) or type(error).__module__.startswith("gymnasium.")):
            text = f"{type(error).__name__}: {text}"
        if place is None and any(words in text for words in _UNPACKING):
            text += f"; {_CONTRACT}"
    return one_line(text, _MOST_BYTES) + ("" if place is None else f" ({place})")


def place_of(error: BaseException) -> Place | None:
    """The place in the environment, or in a package that it uses."""
    return innermost(error, _NOT_THEIRS)


def observation_of_reset(result: Any) -> Any:
    """The observation in the result of `reset`. Raises MisfitError."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise MisfitError(f"reset must return (observation, info), got {kind_of(result)}")
    return result[0]


def kind_of(value: Any) -> str:
    """The type of a value in an error: dtype and shape of an array, such as float32[3]."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


class FaultLimits:
    """The consecutive faults of each of `count` environments."""

    def __init__(self, environment_id: str, count: int) -> None:
        self._environment_id = environment_id
        self._in_a_row = [0] * count
        self._faulty: set[int] = set()
        self._has_stepped = False

    def count(self, index: int, reason: str, cause: BaseException | None = None) -> None:
        """Count and log a fault of an environment.

        `MOST_FAULTS` faults in a row raise ActorQError. Before the first good step, `MOST_FAULTS_AT_START` raise
        UserError.
        """
        self._in_a_row[index] += 1
        self._faulty.add(index)
        reason = one_line(" ".join(reason.split()))
        _log.warning("environment %d of %s: %s", index, self._environment_id, reason)
        if not self._has_stepped and self._in_a_row[index] >= MOST_FAULTS_AT_START:
            raise UserError(f"environment {self._environment_id} does not work: {reason}") from cause
        if self._in_a_row[index] >= MOST_FAULTS:
            raise ActorQError(
                f"environment {self._environment_id} failed {MOST_FAULTS} times in a row; the last time: {reason}"
            ) from cause

    def settle(self, failed: set[int]) -> None:
        """Record a step: the environments that did not fail in it begin again at 0. failed: those that did."""
        if self._faulty:
            for index in self._faulty - failed:
                self._in_a_row[index] = 0
            self._faulty &= failed
        self._has_stepped = self._has_stepped or len(failed) < len(self._in_a_row)
