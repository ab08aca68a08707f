"""Compares the agreement that `actorq quantize` prints with an independent measurement.

The twelve untrained policies come from three libraries (see models). Each is exported in two forms: values of the
actions, and the index of the best action. The command quantizes each with 2,000 random rows for calibration and without
a gate. Then the exported and the written file run on the same rows in one batch, with ONNX Runtime and numpy only.
"""

import argparse
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.harness import Target, run_benchmark
from benchmarks.policy.foreign.models import Actions, Foreign, cleanrl, rllib, stable_baselines3
from quantizer_service.command import command

ROWS, SEED = 2000, 7
# Schemes with uint8 activations from calibration, and the scheme with the coarsest weights.
SCHEMES = ("int8-static", "int4")
# Percent: the printed figure has one decimal.
ROUNDING = 0.05 + 1e-9
Feeds = dict[str, NDArray[Any]]


def main() -> int:
    """Measure and compare. Returns 1 with --check when a printed figure differs from the measured one."""
    return run_benchmark(str(__doc__), lambda parser: None, _measure)


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for family in (stable_baselines3, cleanrl, rllib):
        torch.manual_seed(SEED)
        for policy in family():
            for form in ("values", "actions"):
                rows += compare(policy, form)
    return {"rows": ROWS, "models": rows}, targets(rows)


def targets(rows: list[dict[str, Any]]) -> list[Target]:
    """Targets: printed and measured agreement are equal, and there are twelve policies in both forms."""
    found = [
        Target(
            f"{form}: largest difference of printed and measured agreement in percent",
            max(abs(row["printed"] - row["measured"]) for row in rows if row["form"] == form),
            ROUNDING,
        )
        for form in ("values", "actions")
    ]
    count = len({(row["library"], row["policy"], row["form"]) for row in rows})
    lowest = min(row["measured"] for row in rows)
    return [
        *found,
        Target("policies, in two forms each", count / 2, 12, at_most=False),
        # If every agreement were 100%, the comparison would show nothing.
        Target("lowest measured agreement in percent", lowest, 99.0),
    ]


def compare(policy: Foreign, form: str) -> list[dict[str, Any]]:
    """Printed and measured agreement in percent, for one policy in one form and each scheme."""
    module = policy.values if form == "values" else Actions(policy.values)
    arrays = policy.rows(ROWS, SEED)
    rows = []
    with TemporaryDirectory() as folder:
        model, calibration = Path(folder) / "policy.onnx", Path(folder) / "observations.npz"
        names = export(module, [array[:2] for array in arrays], model)
        feeds = dict(zip(names, arrays, strict=True))
        np.savez(calibration, **feeds)  # type: ignore[arg-type]
        for scheme in SCHEMES:
            output = Path(folder) / f"{scheme}.onnx"
            printed = quantize(model, calibration, scheme, output)
            measured = agreement(model, output, feeds)
            row = {"library": policy.library, "policy": policy.name, "form": form, "scheme": scheme}
            rows.append({**row, "printed": printed, "measured": measured})
            print(
                f"{policy.library:18} {policy.name:18} {form:8} {scheme:12} {printed:5.1f}% {measured:8.3f}%",
                flush=True,
            )
    return rows


def export(module: nn.Module, examples: list[NDArray[Any]], path: Path) -> list[str]:
    """Write a policy with torch's exporter. Returns the names of its inputs."""
    batch = torch.export.Dim("batch", min=1)
    tensors = tuple(torch.from_numpy(array) for array in examples)
    program = torch.onnx.export(
        module.eval(),
        tensors,
        dynamo=True,
        # All inputs are one argument of `forward`.
        dynamic_shapes=(tuple({0: batch} for _ in tensors),),
        verbose=False,
    )
    assert program is not None
    program.save(str(path))
    return [value.name for value in program.model_proto.graph.input]


def quantize(model: Path, calibration: Path, scheme: str, output: Path) -> float:
    """Run the command, and return the printed agreement in percent."""
    given = ["--calibration", str(calibration), "--scheme", scheme, "-o", str(output), "--discrete-actions"]
    with redirect_stdout(StringIO()) as printed:
        code = command.run([str(model), *given, "--gate.min-agreement", "0"])
    assert code == 0
    (row,) = [line for line in printed.getvalue().splitlines() if line.startswith("*")]
    # Mean error, max error, agreement.
    return float(re.findall(r"([\d.]+)%", row)[2])


def agreement(model: Path, quantized: Path, feeds: Feeds) -> float:
    """Percent of rows for which both models choose the same action."""
    first, second = (chosen(outputs(path, feeds)) for path in (model, quantized))
    return float((first == second).mean() * 100)


def outputs(path: Path, feeds: Feeds) -> NDArray[Any]:
    """The first output for all rows."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def chosen(output: NDArray[Any]) -> NDArray[Any]:
    """The actions: integer outputs unchanged, otherwise the index of the largest value."""
    return output if output.ndim == 1 else output.argmax(axis=1)


if __name__ == "__main__":
    sys.exit(main())
