"""The one logger set-up: lines on standard error, which launchers and clusters collect."""

import logging
import sys


def configure_logging(name: str) -> None:
    """Log to standard error as "TIME NAME LEVEL module: message"; `name` is the process's name in the run."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s.%(msecs)03d {name} %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    # These tell at INFO what their callers tell better.
    for noisy in ("grpc", "asyncio", "onnx_ir", "onnxscript", "torch.onnx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
