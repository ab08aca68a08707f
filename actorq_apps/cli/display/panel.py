"""The panel that displays a run on a terminal."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from actorq.domain.environments import group_returns
from actorq.domain.status import RunStatus
from actorq.text import return_text, size_text
from actorq_apps.cli.display import fidelity, numbers
from actorq_apps.cli.display.view import ProcessRow, Resources, RunView, measure
from actorq_apps.local.observer import ProcessState

_CHART_HEIGHT = 4
# Most agents with a number of their own.
_MOST_AGENTS = 6
_STATE_STYLES = {
    "running": "green",
    "starting": "yellow",
    "restarting": "bold yellow",
    "ending": "yellow",
    "exited": "dim",
    "gone": "red",
    "given up": "bold red",
}
_RUN_STYLES = {"training": "green", "solved": "bold green", "paused": "yellow", "stopping": "yellow"}
_WIDE = 100
_HIGH = 30

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def bars(values: Sequence[float], width: int, height: int, low: float, high: float) -> list[str]:
    """`height` lines of `width` columns, the oldest value on the left. Values are clipped to `low` and `high`.

    If there are more values than columns, neighbors are averaged. With fewer values the right side stays empty.
    """
    shown = _squeezed(values, width)
    span = (high - low) or 1.0
    levels = [max(1, round((min(max(value, low), high) - low) / span * height * 8)) for value in shown]
    return [
        "".join(_EIGHTHS[min(8, max(0, level - row * 8))] for level in levels).ljust(width)
        for row in reversed(range(height))
    ]


def _squeezed(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]


def render(
    view: RunView,
    elapsed_s: float,
    width: int,
    height: int | None = None,
    resources: Callable[[int], Resources | None] = measure,
    *,
    ended: bool = False,
) -> RenderableType:
    """The whole panel, `width` columns wide. To fit `height` it drops empty lines, then older events, then processes.

    ended: leave out processes that ended normally.
    """
    inner = width - 4
    low = height is not None and height < _HIGH
    gap: list[RenderableType] = [] if low else [Text()]
    parts: list[RenderableType] = [_header(view, elapsed_s, inner)]
    if view.status is not None:
        parts += [_progress(view, view.status, inner), *gap, _returns(view, view.status, inner), *gap]
        parts += [_figures(view.status, inner), _costs(view.status), *gap]
    events = tuple(view.events)[-2 if low else 0 :]
    texts = [Text(f"· {text}", style="dim", no_wrap=True, overflow="ellipsis") for text in events]
    below = [*(gap if events else ()), *texts]
    rows = [row for row in view.rows(resources) if not (ended and row.state == ProcessState.EXITED.value)]
    if height is not None:
        # The frame, the header of the process table, and the chart: one row of several lines.
        lines = 3 + (_CHART_HEIGHT - 1 if view.status else 0)
        room = height - lines - sum(part.row_count if isinstance(part, Table) else 1 for part in (*parts, *below))
        if room < len(rows):
            shown = max(1, room - 1)
            below.insert(0, Text(f"and {len(rows) - shown} more processes", style="dim"))
            rows = sorted(rows, key=lambda row: row.state == "running")[:shown]
    parts += [*([_processes(rows, inner)] if rows or not ended else []), *below]
    while isinstance(last := parts[-1], Text) and not last.plain:
        parts.pop()
    return Panel(Group(*parts), title="[bold]actorq[/]", box=box.ROUNDED, border_style="blue", width=width)


def _header(view: RunView, elapsed_s: float, width: int) -> RenderableType:
    left = Text(no_wrap=True, overflow="ellipsis")
    left.append(view.title, "bold").append(f"  {view.environment}  {view.algorithm.upper()}", "cyan")
    right = Text.assemble((view.state, _RUN_STYLES.get(view.state, "yellow")), "  ", numbers.duration(elapsed_s))
    grid = Table.grid(expand=False, padding=(0, 1))
    grid.add_column(width=width - right.cell_len - 1)
    grid.add_column(justify="right", width=right.cell_len)
    grid.add_row(left, right)
    return grid


def _progress(view: RunView, status: RunStatus, width: int) -> RenderableType:
    done, budget, unit = view.progress(status)
    steps = f"{done:,} / {budget:,} {unit}"
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=width - len(steps) - 1)
    grid.add_column(justify="right", width=len(steps))
    bar = ProgressBar(budget, min(done, budget))
    grid.add_row(bar, steps)
    return grid


def _returns(view: RunView, status: RunStatus, width: int) -> RenderableType:
    """Evaluations: the newest as numbers on the left, all of them as a chart on the right.

    The chart shows success rates if a success rate ends the run, and otherwise returns.
    """
    newest = status.evaluation
    has_rate = newest is not None and newest.success_rate is not None
    lines = Text.assemble(
        ("evaluation return\n", "dim"),
        (numbers.score(newest), "bold green" if view.state == "solved" else "bold"),
        (f" v{newest.policy_version}" if newest else "", "dim"),
        ("\ntarget ", "dim"),
        numbers.target(status) or "-",
        ("\ntraining return ", "dim"),
        return_text(status.training_return),
    )
    left, axis = 32 if has_rate else 24, 10
    columns = max(10, width - left - axis - 2)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=left)
    grid.add_column(width=axis, justify="right", style="dim")
    grid.add_column(width=columns, style="cyan")
    low, high = _range(view, status)
    chart = "\n".join(bars(view.evaluations, columns, _CHART_HEIGHT, low, high))
    scale = f"{_mark(high)} ┤" + "\n│" * (_CHART_HEIGHT - 2) + f"\n{_mark(low)} ┤"
    grid.add_row(lines, scale, Text(chart, no_wrap=True))
    return grid


def _mark(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else return_text(value)


def _range(view: RunView, status: RunStatus) -> tuple[float, float]:
    target = status.target_return if status.target_success is None else status.target_success
    values = [*view.evaluations, *([] if target is None else [target])]
    if not values:
        return 0.0, 1.0
    # The scale includes zero, because other scales exaggerate differences.
    low, high = min(0.0, *values), max(0.0, *values)
    return low, high if high > low else low + 1.0


class Figure(NamedTuple):
    """A number of the run with its name. `style` highlights a number that needs attention."""

    name: str
    value: str
    style: str = ""


def figures(status: RunStatus) -> list[Figure]:
    """The run's numbers, each with its name."""
    return [
        Figure("env steps/s", f"{status.environment_steps_per_s:,.0f}"),
        Figure("updates/s", f"{status.updates_per_s:,.0f}"),
        Figure("updates", f"{status.updates:,}"),
        Figure("samples/insert", f"{status.samples_per_insert:.1f}"),
        Figure("loss", f"{status.loss:.4g}"),
        Figure("episodes", f"{status.episodes:,}"),
        Figure("policy", f"v{status.policy_version}"),
        Figure("staleness p50/p99", f"{status.staleness_p50:.0f} / {status.staleness_p99:.0f}"),
        Figure("publish to act", "-" if status.activation_s is None else numbers.seconds(status.activation_s)),
        *_fidelity(status),
        Figure("learner starved", numbers.duration(status.starved_s)),
        Figure("quantizer", "connected" if status.quantizer_connected else "away"),
        *_queue(status),
        *_storage(status),
        *_agents(status),
    ]


def _agents(status: RunStatus) -> list[Figure]:
    """The evaluated return of each group and agent, or before the first evaluation the return while it trains."""
    evaluated = status.evaluation.mean_agent_returns if status.evaluation else {}
    returns = evaluated or status.agent_returns
    groups = [*group_returns(status.groups, returns).items()][:_MOST_AGENTS]
    of_groups = [Figure(f"group {name}", return_text(value)) for name, value in groups]
    shown = [Figure(agent, return_text(value)) for agent, value in [*returns.items()][:_MOST_AGENTS]]
    more = [Figure("more agents", f"{len(returns) - len(shown)}")] if len(shown) < len(returns) else []
    return [*of_groups, *shown, *more]


def _queue(status: RunStatus) -> list[Figure]:
    """The queue of an on-policy algorithm, and the distance of its data from the policy."""
    queue = status.rollout_queue
    if queue is None:
        return []
    dropped = [Figure("dropped as stale", f"{queue.dropped_transitions:,}", "yellow")]
    return [
        Figure("waiting", f"{queue.waiting_transitions:,}"),
        Figure("policy lag", "-" if queue.policy_lag is None else f"{queue.policy_lag:.2f}"),
        Figure("mismatch", "-" if queue.mismatch is None else f"{queue.mismatch:.2g}"),
        *(dropped if queue.dropped_transitions else []),
    ]


def _storage(status: RunStatus) -> list[Figure]:
    storage = status.storage
    if storage is None:
        return []
    missing = storage.damaged_segments + storage.dropped_segments + storage.lost_segments
    full = [Figure("disk", "full: actors wait", "yellow")] if storage.disk_low else []
    return full + ([Figure("missing segments", f"{missing:,}", "yellow")] if missing else [])


def _fidelity(status: RunStatus) -> list[Figure]:
    if status.emitted is None:
        return [Figure("policy error", "-"), Figure("float layers", "-"), Figure("fidelity gate", "-")]
    report = status.emitted.fidelity
    gated = len(report.gated_layers)
    return [
        Figure(*fidelity.error(report)),
        *([Figure("state drift", drift)] if (drift := fidelity.drift(report)) else []),
        Figure("float layers", f"{len(report.float_layers)} of {len(report.layers)}"),
        Figure("fidelity gate", f"{gated} to float" if gated else "passed", "yellow" if gated else ""),
    ]


def _figures(status: RunStatus, width: int) -> RenderableType:
    columns = 3
    cell = (width - 2 * (columns - 1)) // columns
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for _ in range(columns):
        grid.add_column(width=cell)
    cells = [_figure(figure, cell) for figure in figures(status)]
    for start in range(0, len(cells), columns):
        grid.add_row(*cells[start : start + columns])
    return grid


def _costs(status: RunStatus) -> Text:
    """Energy and bytes of the run on one line, because the texts are too long for cells."""
    energy, emitted = status.energy, status.emitted
    line = Text(no_wrap=True, overflow="ellipsis")
    if emitted is not None:
        line.append(f"{fidelity.scheme(emitted)} ", "dim").append(size_text(emitted.size_bytes))
        line.append(" fp32 ", "dim").append(f"{size_text(emitted.fp32_size_bytes)}   ")
    line.append("energy ", "dim")
    if energy.kwh > 0:
        line.append(f"{energy.kwh * 1000:.3f} Wh, {energy.co2_kg * 1000:.3f} g CO2 ")
    return line.append(energy.method or "-", "dim")


def _figure(figure: Figure, width: int) -> Text:
    name, value, style = figure
    room = max(1, width - len(name) - 1)
    shown = value if len(value) <= room else value[: room - 1] + "…"
    gap = " " * (width - len(name) - len(shown))
    return Text.assemble((name, "dim"), gap, (shown, style), no_wrap=True)


def _processes(rows: list[ProcessRow], width: int) -> RenderableType:
    """The table of processes. Process ids and CPU time are left out if space is short."""
    table = Table(box=None, width=width, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    wide = width >= _WIDE
    table.add_column("process", no_wrap=True, min_width=9)
    table.add_column("state", no_wrap=True, min_width=10)
    if wide:
        table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("doing", no_wrap=True, overflow="ellipsis", ratio=1)
    for name, least in {"policy": None, "steps/s": 7, "memory": 8, "CPU s": 6, "restarts": None}.items():
        if wide or name != "CPU s":
            table.add_column(name, justify="right", no_wrap=True, min_width=least)
    for row in rows:
        table.add_row(
            row.name,
            Text(row.state, _STATE_STYLES.get(row.state, "")),
            *(["-" if row.pid is None else str(row.pid)] if wide else []),
            row.doing,
            f"v{row.version}" if row.version else "-",
            numbers.optional(row.steps_per_s, 0),
            "-" if row.resident_bytes is None else size_text(row.resident_bytes),
            *([numbers.optional(row.cpu_s)] if wide else []),
            str(row.restarts) if row.restarts else "",
        )
    return table
