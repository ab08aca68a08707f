"""Displays a running run: a live panel on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from actorq.domain.status import RunStatus
from actorq.text import return_text
from actorq_apps.cli.display import fidelity, numbers
from actorq_apps.cli.display.panel import render
from actorq_apps.cli.display.view import RunView, news
from actorq_apps.local.observer import Observer, ProcessState, ProcessView

_LINE_PERIOD_S = 2.0
_REFRESH_PER_S = 4
_LONGEST_LINE = 240


class Display(Observer, AbstractContextManager["Display", None], Protocol):
    """An observer that displays the run. As a context manager it owns the screen."""


def display_of(view: RunView) -> Display:
    """The display that suits standard output."""
    console = Console(highlight=False)
    return _LiveDisplay(view, console) if is_live(console) else PlainDisplay(view, console.file)


def is_terminal() -> bool:
    """Whether standard output is a terminal that can show a panel."""
    return is_live(Console())


def wide_output() -> Console:
    """A console on standard output. Outside a terminal, lines are never wrapped."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _LONGEST_LINE)


def is_live(console: Console) -> bool:
    """Whether a panel can be redrawn here. rich decides separately about color (NO_COLOR)."""
    return console.file.isatty() and not console.is_dumb_terminal


class _LiveDisplay:
    """A panel, redrawn several times a second."""

    def __init__(self, view: RunView, console: Console) -> None:
        self._view = view
        self._started = time.monotonic()
        self._ended = False
        self._live = Live(self, console=console, refresh_per_second=_REFRESH_PER_S, transient=False)

    def process(self, view: ProcessView) -> None:
        self._view.update_process(view)

    def status(self, status: RunStatus) -> None:
        self._view.update_status(status)

    def event(self, text: str) -> None:
        """Show the event below the table until newer ones replace it."""
        self._view.events.append(f"{numbers.duration(time.monotonic() - self._started)} {text}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self._view.status
        elapsed_s = status.elapsed_s if status else time.monotonic() - self._started
        yield render(self._view, elapsed_s, options.max_width, console.size.height, ended=self._ended)

    def __enter__(self) -> "_LiveDisplay":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._live.stop()


class PlainDisplay(AbstractContextManager["PlainDisplay", None]):
    """A line every other second, and a line for each event and each new evaluation."""

    def __init__(self, view: RunView, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._view, self._file, self._clock = view, file, clock
        # The view may have a status before the first line.
        self._printed: RunStatus | None = None
        self._started = self._next_line = clock()

    def process(self, view: ProcessView) -> None:
        """Print when the process starts and when it serves. Later changes are printed as events."""
        if view.state in (ProcessState.STARTING, ProcessState.RUNNING):
            self._line(f"{view.name} {view.state.value} (process {view.pid})")

    def status(self, status: RunStatus) -> None:
        """Print the status after a new evaluation, after a change of state, or when the period is over."""
        before = self._view.state
        for text in news(self._printed, status):
            self._line(text)
        self._printed = status
        is_news = self._view.update_status(status) or self._view.state != before
        if is_news or self._clock() >= self._next_line:
            self._next_line = self._clock() + _LINE_PERIOD_S
            self._line(status_line(status))

    def event(self, text: str) -> None:
        """Print the event."""
        self._line(text)

    def __exit__(self, *_: object) -> None:
        pass

    def _line(self, text: str) -> None:
        try:
            print(f"{self._clock() - self._started:7.1f}s  {text}", file=self._file, flush=True)
        except OSError as error:
            # The run continues without this line, for example when the output goes to a file on a full disk.
            if isinstance(error, BrokenPipeError):
                raise


def status_line(status: RunStatus) -> str:
    """The run's status in one line."""
    evaluation = status.evaluation
    parts = [
        status.state.value,
        f"steps {status.environment_steps:,}",
        f"return(eval) {numbers.score(evaluation)} v{evaluation.policy_version}" if evaluation else "return(eval) -",
        f"train {return_text(status.training_return)}",
        f"{status.environment_steps_per_s:,.0f} steps/s",
        f"{status.updates_per_s:,.0f} updates/s",
        f"policy v{status.policy_version}",
        f"staleness {status.staleness_p50:.0f}/{status.staleness_p99:.0f}",
        f"samples/insert {status.samples_per_insert:.1f}",
    ]
    if status.emitted is not None:
        name, value = fidelity.error(status.emitted.fidelity)
        parts.append(f"{fidelity.scheme(status.emitted)} {name} {value}")
        if drift := fidelity.drift(status.emitted.fidelity):
            parts.append(f"state drift {drift}")
    if status.energy.kwh > 0:
        parts.append(f"{status.energy.kwh * 1000:.3f} Wh")
    return "  ".join(parts)
