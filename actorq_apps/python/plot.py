"""Plots the evaluations of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actorq.errors import UserError
from actorq.rundirectory import RunDirectory
from actorq.statefiles.lines import read_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Most agents with a line of their own.
_MOST_NAMED = 10


@dataclass(frozen=True)
class Plot:
    """A plot of a run. A notebook displays it. `figure` is Matplotlib's, for changes."""

    figure: "Figure"

    def save(self, path: str | Path) -> Path:
        """Write the plot to a file. The file extension chooses the format, such as .png or .svg."""
        self.figure.savefig(path, dpi=150)
        return Path(path)

    def _repr_png_(self) -> bytes:
        written = BytesIO()
        self.figure.savefig(written, format="png", dpi=110)
        return written.getvalue()


def plot_run(run: RunDirectory, target: float | None) -> Plot:
    """Mean return of each evaluation over the environment steps, with its lowest and highest return.

    The steps of an offline run are its updates.
    With several agents, thin lines are the mean returns of each agent, and the thick line is the team's. Dashed lines
    are the returns of groups.
    target: target of the mean return. Raises UserError without Matplotlib, and before the first evaluation.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("plot needs Matplotlib: pip install 'actorq[compare]'") from None
    points = [values for _, values in read_lines(run.evaluations) if values] if run.evaluations.exists() else []
    if not points:
        raise UserError(f"{run.root}: no evaluation has ended yet")
    settings = run.config_tree()
    is_offline = settings.get("offline", False)
    steps = [point["evaluation"]["learner_step"] if is_offline else point["environment_steps"] for point in points]
    returns = [np.asarray(point["evaluation"]["returns"]) for point in points]
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(steps, [r.min() for r in returns], [r.max() for r in returns], alpha=0.18, linewidth=0)
    agents = points[-1]["evaluation"].get("agents", ())
    axes.plot(steps, [r.mean() for r in returns], marker="o", markersize=4, label="team" if agents else None)
    if agents:
        each = np.stack([_means(point["evaluation"]) for point in points])
        for name, column in zip(agents[:_MOST_NAMED], each.T, strict=False):
            axes.plot(steps, column, linewidth=0.9, label=name)
        groups: Mapping[str, Sequence[str]] = settings.get("policies") or {}
        for name, members in [*groups.items()][:_MOST_NAMED]:
            own = each[:, [agents.index(agent) for agent in members]].sum(axis=1)
            axes.plot(steps, own, linewidth=1.2, linestyle="dashed", label=f"group {name}")
    if target is not None:
        axes.axhline(target, color="gray", linewidth=0.8, linestyle=(0, (4, 3)), label=f"target {target:g}")
    if target is not None or agents:
        axes.legend(frameon=False)
    axes.set(
        xlabel="updates" if is_offline else "environment steps",
        ylabel="evaluated return",
        title=points[-1]["evaluation"]["scheme"],
    )
    axes.spines[["top", "right"]].set_visible(False)
    return Plot(figure)


def _means(evaluation: Mapping[str, Any]) -> NDArray[np.float64]:
    """The mean return of each agent in an evaluation."""
    returns = np.reshape(evaluation["agent_returns"], (-1, len(evaluation["agents"])))
    means: NDArray[np.float64] = returns.mean(axis=0)
    return means
