"""The plot of inference.py."""

from collections.abc import Sequence
from pathlib import Path

from actorq.domain.policy import FP32
from benchmarks.policy.figures import Cell


def plot(cells: Sequence[Cell], file: Path) -> None:
    """Draw all speeds relative to ONNX Runtime fp32, by width and batch size, and for the CNN."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    batches = sorted({cell.batch for cell in cells})
    names = [name for name in cells[0].timings if name != FP32]
    colors = {name: f"C{index}" for index, name in enumerate(names)}
    drawing, panels = pyplot.subplots(2, 3, figsize=(10.5, 6), layout="constrained")
    of_batches, others = panels.flat[: len(batches)], panels.flat[len(batches) :]
    for axes, batch in zip(of_batches, batches, strict=True):
        for kind, style in (("mlp", "-o"), ("d4pg", "--D")):
            found = [cell for cell in cells if cell.batch == batch and cell.network.startswith(kind)]
            widths = [int(cell.network.split()[1]) for cell in found]
            for name in names:
                axes.plot(
                    widths,
                    [cell.speedup(name) for cell in found],
                    style,
                    color=colors[name],
                    markersize=3.5,
                    linewidth=1.2,
                    markerfacecolor="white" if kind == "d4pg" else None,
                )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_title(f"batch {batch}", fontsize=9)
        axes.set_xlabel("width")
    frames = [cell for cell in cells if cell.network == "cnn"]
    for index, name in enumerate(names):
        positions = [column + (index - (len(names) - 1) / 2) * 0.14 for column in range(len(frames))]
        others[0].bar(positions, [cell.speedup(name) for cell in frames], 0.13, color=colors[name], label=name)
    others[0].set_xticks(range(len(frames)), [str(cell.batch) for cell in frames])
    others[0].set_title("Nature CNN", fontsize=9)
    others[0].set_xlabel("batch")
    for axes in (*of_batches, others[0]):
        axes.axhline(1, color="0.6", linewidth=1)
        axes.yaxis.set_major_formatter("{x:g}x")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    for axes in others[1:]:
        axes.set_axis_off()
    handles, labels = others[0].get_legend_handles_labels()
    note = "times faster than\nONNX Runtime fp32\n\nfilled: ReLU MLP\nhollow: D4PG policy"
    others[-1].legend(handles, labels, frameon=False, fontsize=9, loc="center left", title=note, alignment="left")
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
