"""Prints the table of a comparison: plain text, or a rich table on a terminal."""

import math
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from actorq.domain.policy import FP32
from quantizer_service.command.comparison import Comparison, Emitted

_LEFT = ("scheme", "gate")


def print_table(comparison: Comparison, batches: Sequence[int], chosen: str) -> None:
    """Print the comparison and mark the chosen scheme."""
    header = ["scheme", "bytes", *(f"us, batch {batch}" for batch in batches), "mean error", "max error"]
    header += ["agreement", "value loss", "mean KL", "max KL", "in float", "gate"]
    rows = [_row(item, batches, item.scheme == chosen) for item in comparison.emitted]
    # Agreement needs discrete actions. Divergence needs a distribution.
    kept = [index for index in range(len(header)) if any(row[index] for row in rows)]
    header, rows = [header[index] for index in kept], [[row[index] for index in kept] for row in rows]
    console = Console(highlight=False)
    if console.file.isatty() and not console.is_dumb_terminal:
        console.print(rich_table(header, rows))
    else:
        sys.stdout.write(_plain(header, rows))
    for note in _notes(comparison):
        sys.stdout.write(note + "\n")


def _notes(comparison: Comparison) -> Iterator[str]:
    reports = next((item.report.layers for item in comparison.emitted), ())
    if narrower := [layer for layer in reports if layer.units]:
        told = (f"{layer.name} {layer.units} of {layer.published_units}" for layer in narrower)
        yield f"live units: {', '.join(told)}; dead units are removed in all schemes"
    for item in comparison.emitted:
        kept = [layer for layer in item.report.layers if layer.in_float]
        for rung in item.report.refused:
            errors = f"mean error {rung.relative_mean_error:.2%}, max error {rung.relative_max_error:.2%}"
            if math.isinf(rung.relative_mean_error):
                errors = "the emitted policy does not run, or an output is not finite"
            agreement = "" if rung.argmax_agreement is None else f", agreement {rung.argmax_agreement:.1%}"
            kl = "" if rung.mean_kl is None else f", mean KL {rung.mean_kl:.2g}, max KL {rung.max_kl:.2g}"
            yield f"{item.scheme}: refused with {len(rung.float_layers)} layers in float: {errors}{agreement}{kl}"
        if kept and item.scheme != FP32:
            told = (f"{layer.name} ({layer.reason})" if layer.reason else layer.name for layer in kept)
            yield f"{item.scheme}: in float {', '.join(told)}"
        if item.scheme != FP32 and not item.refused and not item.gains(comparison.of(FP32)):
            why = "no layer is quantized" if item.is_float else "it is neither smaller nor faster"
            yield f"{item.scheme}: nothing is gained over fp32: {why}"
    for scheme, reason in comparison.failed.items():
        yield f"{scheme}: {reason}"


def _row(item: Emitted, batches: Sequence[int], is_chosen: bool) -> list[str]:
    report = item.report
    layers = report.layers
    return [
        f"{'*' if is_chosen else ' '} {item.scheme}",
        f"{len(item.model):,}",
        *(f"{item.seconds[batch] * 1e6:,.1f}" for batch in batches),
        f"{report.relative_mean_error:.2%}",
        f"{report.relative_max_error:.2%}",
        "" if report.argmax_agreement is None else f"{report.argmax_agreement:.1%}",
        "" if report.value_loss is None else f"{report.value_loss:.2%}",
        "" if report.mean_kl is None else f"{report.mean_kl:.1e}",
        "" if report.max_kl is None else f"{report.max_kl:.1e}",
        f"{sum(layer.in_float for layer in layers)} of {len(layers)}",
        _verdict(item),
    ]


def _verdict(item: Emitted) -> str:
    refused = len(item.report.refused)
    if not item.report.passed:
        return "refused"
    if not refused:
        return "passed"
    return f"refused, so fp32 ({refused} tried)" if item.is_float else f"passed after {refused} refused"


def rich_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The table for a terminal, with the chosen row in green."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in header:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row, style="green" if row[0].startswith("*") else "")
    return table


def _plain(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        )
        return "  ".join(cells).rstrip() + "\n"

    return "".join(line(row) for row in (header, *rows))
