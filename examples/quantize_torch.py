"""Quantize your own PyTorch policy: export it to ONNX, quantize it, and compare the actions.

    python examples/quantize_torch.py

Needs the packages of learner and quantizer. Replace `network`, and use observations of real
episodes in the place of the random ones.
"""

import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import torch

SCHEME = "int8"
OBSERVATIONS, ACTIONS = 24, 6


def main(folder: Path = Path("quantized")) -> None:
    """Write policy.onnx and policy-int8.onnx, and print the largest difference of their actions."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        *(torch.nn.Linear(OBSERVATIONS, 256), torch.nn.ReLU()),
        *(torch.nn.Linear(256, 256), torch.nn.ReLU()),
        *(torch.nn.Linear(256, ACTIONS), torch.nn.Tanh()),
    ).eval()
    observations = np.random.default_rng(0).normal(size=(500, OBSERVATIONS)).astype(np.float32)
    np.savez(folder / "calibration.npz", observations=observations)

    given, written = folder / "policy.onnx", folder / f"policy-{SCHEME}.onnx"
    # The first dimension is the batch. It stays free.
    torch.onnx.export(
        *(network, (torch.zeros(2, OBSERVATIONS),), given),
        input_names=["observations"],
        output_names=["actions"],
        dynamic_shapes=({0: "batch"},),
        external_data=False,
    )
    # Each action is from -1 to 1. `--scheme auto` would write the fastest scheme that is close enough.
    spans = ",".join(["2"] * ACTIONS)
    command = ["actorq", "quantize", str(given), "--calibration", str(folder / "calibration.npz")]
    subprocess.run(
        [*command, "--action-spans", spans, "--scheme", SCHEME, "-o", str(written), "--force"],
        check=True,
    )

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    before, after = (
        onnxruntime.InferenceSession(str(file), options).run(None, {"observations": observations})[0]
        for file in (given, written)
    )
    print(f"{given.stat().st_size:,} bytes before, {written.stat().st_size:,} after")
    print(f"largest difference of an action: {np.abs(before - after).max():.4f} of a span of 2")


if __name__ == "__main__":
    main()
