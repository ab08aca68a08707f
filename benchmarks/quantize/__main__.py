"""Quantizes policies of ten libraries, checks the printed errors, and compares with onnxruntime.quantization.

Each library builds its policies, and this benchmark exports them (see models). The schemes are compared as in `actorq
quantize`, on random rows and at a batch of 1. Then every emitted policy and fp32 run with ONNX Runtime and numpy only:
the printed errors must equal the measured ones. The choice of `auto` at a batch is compared with
onnxruntime.quantization on the same file, with its defaults: dynamic for int8 and int8-weights, static for int8-static,
blocks for int4. Sizes and errors are those of the scheme at a batch of 1.
"""

import argparse
import re
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from actorq.arithmetic import arithmetic
from actorq.config.sections import GateConfig
from actorq.domain.policy import FP32
from actorq.errors import ActorQError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options
from actorq.timing import time_calls
from benchmarks.harness import Target, run_benchmark
from benchmarks.policy.foreign.__main__ import export
from benchmarks.processor import DOT_PRODUCT
from benchmarks.quantize.models import Model, libraries
from quantizer_service.command.comparison import Comparison, bound_call, check_read, compact, compare
from quantizer_service.command.table import print_table
from quantizer_service.emission.inference import open_session

ROWS, IMAGE_ROWS, SEED = 500, 64, 7
BATCHES, SESSIONS = (1, 32), 5
# Percent: printed figures have two decimals.
ROUNDING = 0.005 + 1e-6
Feeds = dict[str, NDArray[Any]]


def main() -> int:
    """Measure and compare. Returns 1 with --check when a target is missed."""
    return run_benchmark(str(__doc__), _add_flags, _measure)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--libraries", nargs="*", default=sorted(libraries()), help="those to take")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for library in arguments.libraries:
        torch.manual_seed(SEED)
        with warnings.catch_warnings(action="ignore"):
            rows += [_row(model) for model in libraries()[library]()]
    return {"rows": ROWS, "models": rows}, targets(rows)


def _row(model: Model) -> dict[str, Any]:
    row: dict[str, Any] = {"library": model.policy.library, "policy": model.policy.name}
    try:
        row |= compared(model)
    except ActorQError as error:
        row["refused"] = str(error)
    told = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
    print(" ".join(f"{key}={value}" for key, value in told.items()), flush=True)
    return row


def compared(model: Model) -> dict[str, Any]:
    """The figures of one policy."""
    arrays = model.policy.rows(IMAGE_ROWS if len(model.policy.inputs[0]) == 3 else ROWS, SEED)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy.onnx"
        if model.write:
            model.write(path)
            names = [value.name for value in ort.InferenceSession(path).get_inputs()]
        else:
            names = export(model.policy.values, [array[:2] for array in arrays], path)
        feeds = dict(zip(names, arrays, strict=True))
        graph, parameters = Graph.from_model(path.read_bytes(), model.discrete)
        policy = compact(graph, parameters, feeds, Options(int8_storage=True))
        check_read(path.read_bytes(), policy)
        comparison = compare(policy, BATCHES, GateConfig(), arithmetic().weight_encoding, call_rows=1)
        difference = _largest_difference(comparison, feeds, model.discrete)
        figures: dict[str, Any] = {"difference": float(difference)}
        # The same float policy with a free batch, so that both start from one file.
        path.write_bytes(comparison.of(FP32).model)
        for batch in BATCHES:
            scheme = figures[f"scheme_{batch}"] = comparison.fastest(batch)
            if scheme == FP32:
                continue
            pair = {"ours": comparison.of(scheme).model, "theirs": _of_onnxruntime(path, scheme, feeds)}
            figures[f"time_{batch}"] = _relative_time(pair, feeds, batch)
            if batch == 1:
                figures |= _relative_size_and_error(pair, comparison.of(FP32).model, feeds, model.discrete)
        return figures


def _largest_difference(comparison: Comparison, feeds: Feeds, discrete: bool) -> float:
    """The largest difference between printed and measured errors (mean or largest), in percent."""
    with redirect_stdout(StringIO()) as printed:
        print_table(comparison, BATCHES, FP32)
    expected = by_rows(comparison.of(FP32).model, feeds)
    largest = 0.0
    for item in comparison.emitted:
        line = next(line for line in printed.getvalue().splitlines() if line[2:].startswith(f"{item.scheme} "))
        shown = [float(text) for text in re.findall(r"([\d.]+)%", line)[:2]]
        errors = relative_errors(expected, by_rows(item.model, feeds), discrete)
        measured = (100 * errors.mean(), 100 * errors.max())
        largest = max(largest, *(abs(a - b) for a, b in zip(shown, measured, strict=True)))
    return largest


def relative_errors(expected: NDArray[Any], found: NDArray[Any], discrete: bool) -> NDArray[Any]:
    """|found - expected| in units of each component's range, or of the range of all values of discrete actions."""
    spans = (
        np.ptp(expected) if discrete else np.maximum(np.ptp(expected, axis=0), 0.01 * np.ptp(expected, axis=0).max())
    )
    result: NDArray[Any] = np.abs(found - expected) / spans
    return result


def by_rows(model: bytes, feeds: Feeds) -> NDArray[Any]:
    """The first output, in calls of one row."""
    session = open_session(model, "policy")
    count = len(next(iter(feeds.values())))
    calls = [session.run(None, {name: array[i : i + 1] for name, array in feeds.items()})[0] for i in range(count)]
    return np.concatenate(calls).reshape(count, -1).astype(np.float64)


def _relative_time(models: Mapping[str, bytes], feeds: Feeds, batch: int) -> float:
    """The time of one call of our model relative to theirs: the median of several sessions of both. The speed of a
    session depends on the place of its weights in memory.
    """
    rows = {name: np.take(array, np.arange(batch) % len(array), axis=0) for name, array in feeds.items()}
    ratios = []
    for _ in range(SESSIONS):
        calls = {name: bound_call(open_session(each, name, arena=True), rows, name) for name, each in models.items()}
        seconds = time_calls(calls, 0.2)
        ratios.append(seconds["ours"] / seconds["theirs"])
    return float(np.median(ratios))


def _relative_size_and_error(
    models: Mapping[str, bytes], fp32: bytes, feeds: Feeds, discrete: bool
) -> dict[str, float]:
    """Bytes and mean error of our model relative to theirs."""
    expected = by_rows(fp32, feeds)
    errors = {name: relative_errors(expected, by_rows(each, feeds), discrete).mean() for name, each in models.items()}
    return {
        "bytes": len(models["ours"]) / len(models["theirs"]),
        "error": float(errors["ours"] / errors["theirs"]) if errors["theirs"] else 1.0,
    }


def _of_onnxruntime(path: Path, scheme: str, feeds: Feeds) -> bytes:
    from onnxruntime import quantization

    output = path.with_name("theirs.onnx")
    if scheme == "int8-static":
        quantization.quantize_static(path, output, _Reader(feeds))
    elif scheme == "int4":
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
        from onnxruntime.quantization.onnx_model import ONNXModel

        # Their tool keeps Gemm in float.
        products = ONNXModel(onnx.load(path))
        products.replace_gemm_with_matmul()
        quantizer = MatMulNBitsQuantizer(products.model, block_size=128, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        return bytes(quantizer.model.model.SerializeToString())
    else:
        quantization.quantize_dynamic(path, output, weight_type=quantization.QuantType.QInt8)
    return output.read_bytes()


class _Reader:
    """Feeds for onnxruntime's calibration, one row at a time."""

    def __init__(self, feeds: Feeds) -> None:
        count = min(256, len(next(iter(feeds.values()))))
        self._rows = iter([{name: array[i : i + 1] for name, array in feeds.items()} for i in range(count)])

    def get_next(self) -> Feeds | None:
        """The next row; None after the last."""
        return next(self._rows, None)


def targets(rows: list[dict[str, Any]]) -> list[Target]:
    """The targets of the command on these policies."""
    taken = [row for row in rows if "refused" not in row]

    def of(name: str) -> list[float]:
        return [row[name] for row in taken if name in row]

    def share(name: str) -> float:
        return float(np.mean(np.less(of(name), 1.0))) if of(name) else 1.0

    slowest = {batch: max(of(f"time_{batch}"), default=1.0) for batch in BATCHES}
    return [
        Target("policies", len(rows), 60, at_most=False),
        Target("libraries", len({row["library"] for row in rows}), 10, at_most=False),
        Target("accepted share of the policies", len(taken) / len(rows), 0.9, at_most=False),
        Target("largest difference of printed and measured errors, %", max(r["difference"] for r in taken), ROUNDING),
        # Elsewhere onnxruntime.quantization is faster with products that overflow, and 30 times as wrong.
        *(
            Target(f"largest time beside onnxruntime.quantization, batch {b}", slowest[b], 1.03, needs=DOT_PRODUCT)
            for b in BATCHES
        ),
        Target("share smaller than onnxruntime.quantization", share("bytes"), 0.9, at_most=False),
        Target("share more accurate than onnxruntime.quantization", share("error"), 0.9, at_most=False),
    ]


if __name__ == "__main__":
    sys.exit(main())
