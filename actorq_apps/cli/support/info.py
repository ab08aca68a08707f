"""`actorq info`: versions, processor and number formats of this machine, for bug reports."""

import json
import os
import platform
from collections.abc import Sequence
from typing import Any

from actorq import ENVIRONMENT_PREFIX, __version__
from actorq.arithmetic import arithmetic
from actorq.config.parser import OneLineParser
from actorq.process import EXIT_OK
from actorq.telemetry.machine import package_version, this_machine, usable_cores

_DESCRIPTION = """Print the versions of actorq, Python and packages, the processor, and the int8 encoding that
actors use here. Add this to a bug report. Values of environment variables are not printed."""
_PACKAGES = (
    *("numpy", "torch", "onnx", "onnxscript", "onnxruntime", "safetensors", "grpcio", "protobuf", "pydantic", "PyYAML"),
    *("gymnasium", "ale-py", "dm-control", "envpool", "mujoco", "rich", "codecarbon", "tensorboard", "kubernetes"),
    *("optuna", "matplotlib", "obstore", "mlflow", "wandb"),
)


def run(arguments: Sequence[str]) -> int:
    """Print the facts as lines or as JSON."""
    parser = OneLineParser(prog="actorq info", usage="actorq info [flags]", description=_DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    found = facts()
    if given.json:
        print(json.dumps(found, indent=1))
        return EXIT_OK
    packages = found.pop("packages")
    found["packages"] = ", ".join(f"{name} {number}" for name, number in packages.items() if number != "-")
    found["not installed"] = ", ".join(name for name, number in packages.items() if number == "-")
    for name, value in found.items():
        shown = ", ".join(value) if isinstance(value, list) else str(value)
        print(f"{name:<14} {shown or 'none'}")
    return EXIT_OK


def facts() -> dict[str, Any]:
    """Facts about this machine for a bug report, by name."""
    machine = this_machine()
    try:
        here = arithmetic()
    except ImportError:
        encodings, wrong = "not known without onnxruntime", []
    else:
        encodings, wrong = ", ".join(here.weight_encodings) or "none is exact", list(here.inexact_schemes)
    return {
        "actorq": __version__,
        "python": f"{platform.python_implementation()} {machine.python}",
        "system": f"{platform.platform()} {platform.machine()}",
        "processor": machine.cpu or "not known",
        "cores": f"{usable_cores()} usable of {machine.cores}",
        "memory": f"{machine.memory_gb:g} GB",
        "GPUs": machine.gpus,
        "int8 encodings": encodings,
        "wrong schemes": wrong,
        "settings": sorted(name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)),
        "packages": {name: package_version(name) for name in _PACKAGES},
    }
