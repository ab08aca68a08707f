"""The plot of sparse_policy.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from actorq.domain.policy import FP32
from benchmarks.policy.figures import Bytes, Calls

_COLORS = {"random": "0.7", "trained": "C0", "structured": "C1"}


def plot(found: Sequence[Bytes], calls: Sequence[Calls], bounds: Mapping[str, float], file: Path) -> None:
    """Draw the gains over dense fp32: bytes of an update, and time of a call.

    bounds: the target of each task for bytes.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, panels = pyplot.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)
    tasks = list(dict.fromkeys(each.task for each in found))
    for offset, (masks, color) in enumerate(_COLORS.items()):
        own = [each for each in found if each.masks == masks]
        places = [tasks.index(each.task) + (offset - 1) * 0.27 for each in own]
        panels[0].bar(places, [each.saved() for each in own], 0.25, color=color, label=f"{masks} masks")
    for index, task in enumerate(tasks):
        panels[0].plot([index - 0.42, index + 0.42], [bounds[task]] * 2, color="0.2", linewidth=1)
    panels[0].set_xticks(range(len(tasks)), tasks)
    panels[0].set_title("bytes of an update: times fewer (int8-weights)", fontsize=9)
    panels[0].legend(frameon=False, fontsize=8)
    for axes, batch in zip(panels[1:], sorted({each.batch for each in calls}), strict=True):
        own_calls = [each for each in calls if each.batch == batch]
        dense = next(each for each in own_calls if each.masks == "dense").timings[FP32].median
        schemes = list(own_calls[0].timings)
        for index, scheme in enumerate(schemes):
            places = [place + (index - (len(schemes) - 1) / 2) * 0.13 for place in range(len(own_calls))]
            axes.bar(places, [dense / each.timings[scheme].median for each in own_calls], 0.12, label=scheme)
        names = [each.masks if each.masks == "dense" else f"{each.masks}\n{each.sparsity:.0%}" for each in own_calls]
        axes.set_xticks(range(len(own_calls)), names, fontsize=6)
        axes.axhline(1, color="0.6", linewidth=1)
        axes.set_title(f"calls, batch {batch}: times faster", fontsize=9)
    panels[2].legend(frameon=False, fontsize=7)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
