"""Displays a sweep: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from actorq.text import return_text
from actorq_apps.cli.display.display import is_live, wide_output
from actorq_apps.sweep.study import Study
from actorq_apps.sweep.sweep import settings_text
from actorq_apps.sweep.trials import Objective, Progress, TrialResult, TrialState

_STYLES = {TrialState.RUNNING: "cyan", TrialState.FAILED: "red", TrialState.PRUNED: "dim", TrialState.UNSOLVED: "dim"}
# Lines of a terminal outside the table's rows.
_FRAME_LINES = 8


class SweepView:
    """An `Observer` that prints. On a terminal it redraws a table below the printed lines."""

    def __init__(self, console: Console, trials: int, live: Live | None) -> None:
        self._console = console
        self._trials = trials
        self._live = live
        self._evaluations: dict[int, int] = {}

    def line(self, text: str) -> None:
        """Print an event."""
        self._console.print(Text(text), soft_wrap=True)

    def update(self, results: list[TrialResult], running: Mapping[int, Progress]) -> None:
        """Redraw the table with its newest rows. Outside a terminal, print a line for each new evaluation of a run."""
        if self._live is not None:
            ended = sum(result.state is not TrialState.RUNNING for result in results)
            newest = results[-max(1, self._console.height - _FRAME_LINES) :]
            shown = Group(Text(f"{ended} of {self._trials} trials have ended"), table(newest, running))
            self._live.update(shown, refresh=True)
            return
        for number, progress in running.items():
            if len(progress.evaluations) > self._evaluations.get(number, 0):
                self._evaluations[number] = len(progress.evaluations)
                self.line(f"trial {number}: return {return_text(progress.mean_return)} at {progress.steps:,} steps")


@contextmanager
def open_view(trials: int) -> Iterator[SweepView]:
    """The view for standard output. Uses colors only on a terminal."""
    console = wide_output()
    with Live(console=console, auto_refresh=False, transient=True) if is_live(console) else nullcontext() as live:
        yield SweepView(console, trials, live)


def print_results(study: Study, objective: Objective) -> None:
    """Print the table of all trials, and the best one."""
    console, best = wide_output(), study.best()
    console.print(table(study.results(), {}, best))
    if best is not None:
        console.print(Text(f"best: trial {best.number}, {objective.value} {best.value:,.6g}"), soft_wrap=True)
        console.print(Text(settings_text(best.params)), soft_wrap=True)


def table(results: Sequence[TrialResult], running: Mapping[int, Progress], best: TrialResult | None = None) -> Table:
    """One row for each trial. running: the progress of trials without a result."""
    shown = Table(box=None, pad_edge=False)
    for name in ("trial", "state", "return", "steps", "seconds"):
        shown.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    names = list(results[0].params) if results else []
    ends = [name.rpartition(".")[2] for name in names]
    for name, end in zip(names, ends, strict=True):
        shown.add_column(end if ends.count(end) == 1 else name, overflow="fold")
    for result in results:
        progress = running.get(result.number)
        at = progress if progress and result.state is TrialState.RUNNING else result
        style = "bold green" if best and result.number == best.number else _STYLES.get(result.state, "")
        values = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in result.params.values())
        figures = (return_text(at.mean_return), f"{at.steps:,}", f"{at.seconds:,.1f}")
        shown.add_row(str(result.number), result.state.value, *figures, *values, style=style)
    return shown
