"""The plot of fanout.py."""

from collections.abc import Mapping
from pathlib import Path


def plot(seconds: Mapping[str, list[float]], subscribers: int, path: Path) -> None:
    """Draw the times of each way: a dot for each send, and a bar for the median."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for place, times in enumerate(seconds.values()):
        milliseconds = sorted(1e3 * value for value in times)
        axes.barh(place, milliseconds[len(milliseconds) // 2], color=f"C{place}", alpha=0.4)
        axes.plot(milliseconds, [place] * len(milliseconds), ".", color=f"C{place}")
    axes.set_yticks(range(len(seconds)), list(seconds))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"ms until the last of {subscribers} subscribers has the policy; median and each time")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
