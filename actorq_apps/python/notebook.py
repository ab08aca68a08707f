"""Displays a run in a notebook: one output that is updated during the run."""

import html
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from actorq.domain.status import RunStatus
from actorq.text import return_text
from actorq_apps.cli.display import numbers
from actorq_apps.cli.display.display import status_line
from actorq_apps.cli.display.view import RunView
from actorq_apps.local.observer import ProcessView

_PERIOD_S = 0.5
_WIDTH, _HEIGHT = 320, 48


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


class NotebookDisplay(AbstractContextManager["NotebookDisplay", None]):
    """An observer that redraws its output in the cell that created it, at most twice a second."""

    def __init__(self, view: RunView, clock: Callable[[], float] = time.monotonic) -> None:
        from IPython.display import display

        self._view, self._clock = view, clock
        self._handle: Any = display(_Panel(view), display_id=True)  # type: ignore[no-untyped-call]
        self._drawn = clock()

    def process(self, view: ProcessView) -> None:
        """Ignored, because only the terminal's table shows processes."""

    def status(self, status: RunStatus) -> None:
        """Redraw periodically, and after each evaluation and change of state."""
        before = self._view.state
        is_news = self._view.update_status(status) or self._view.state != before
        if is_news or self._clock() - self._drawn >= _PERIOD_S:
            self._draw()

    def event(self, text: str) -> None:
        """Show the event until newer ones replace it."""
        self._view.events.append(text)
        self._draw()

    def __exit__(self, *_: object) -> None:
        self._draw()

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._handle.update(_Panel(self._view))


class _Panel:
    """A notebook's view of a run: HTML, or a line of text outside a browser."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        status = self._view.status
        text = status_line(status) if status else self._view.state
        return {"text/plain": f"{self._view.title}: {text}", "text/html": self._html(status)}

    def _html(self, status: RunStatus | None) -> str:
        view = self._view
        head = f"<b>{html.escape(view.algorithm)}</b> on {html.escape(view.environment)}: {html.escape(view.state)}"
        parts = [f"<div>{head}</div>"]
        if status is not None:
            figures = {
                "return": numbers.score(status.evaluation),
                "target": return_text(status.target_return),
                "steps": f"{status.environment_steps:,}",
                "steps/s": f"{status.environment_steps_per_s:,.0f}",
                "updates/s": f"{status.updates_per_s:,.0f}",
                "time": numbers.duration(status.elapsed_s),
                "policy": f"v{status.policy_version}",
            }
            cells = "".join(
                f'<div><div style="opacity:.65;font-size:85%">{name}</div><div>{html.escape(value)}</div></div>'
                for name, value in figures.items()
            )
            done, budget, _ = view.progress(status)
            share = min(1.0, done / max(1, budget))
            parts += [
                f'<progress value="{share:.3f}" style="width:{_WIDTH}px" title="share of the budget"></progress>',
                f'<div style="display:flex;flex-wrap:wrap;gap:4px 20px">{cells}</div>',
                _curve(view.evaluations, status.target_return),
            ]
        parts += [f'<div style="opacity:.65">{html.escape(event)}</div>' for event in view.events]
        return f'<div style="font-variant-numeric:tabular-nums">{"".join(parts)}</div>'


def _curve(returns: list[float], target: float | None) -> str:
    """The evaluated returns as a line, with the target; empty with fewer than two."""
    if len(returns) < 2:
        return ""
    low, high = min(returns), max([*returns, *([] if target is None else [target])])
    span = (high - low) or 1.0

    def y(value: float) -> float:
        return round(_HEIGHT - 4 - (value - low) / span * (_HEIGHT - 8), 1)

    points = " ".join(f"{round(i / (len(returns) - 1) * _WIDTH, 1)},{y(value)}" for i, value in enumerate(returns))
    line = (
        f'<line x1="0" x2="{_WIDTH}" y1="{y(target)}" y2="{y(target)}" stroke="gray" stroke-dasharray="4 3"/>'
        if target is not None
        else ""
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="evaluated return">{line}'
        f'<polyline points="{points}" fill="none" stroke="#d55e00" stroke-width="2"/></svg>'
    )
