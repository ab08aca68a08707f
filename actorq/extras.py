"""Checks that required packages are installed. A missing package gives one line with the install command."""

import importlib.util
from collections.abc import Iterable, Sequence

from actorq.errors import UserError

BASE, COMMAND_LINE = "", "the command line"
"""The extras that `pip install actorq` includes: for all processes, and for commands. Images lack the latter."""

# Modules by extra, as in pyproject.toml. Environments report missing packages themselves, so their extras are left out.
MODULES: dict[str, tuple[str, ...]] = {
    BASE: (
        *("google.protobuf", "grpc", "grpc_health", "grpc_reflection", "isal", "numpy", "prometheus_client", "psutil"),
        *("pydantic", "yaml"),
    ),
    COMMAND_LINE: ("rich",),
    "learner": ("onnx", "onnxscript", "safetensors", "tensorboard", "torch"),
    "quantizer": ("onnx", "onnxruntime", "safetensors"),
    "actor": ("gymnasium", "onnxruntime"),
    "cluster": ("cryptography", "kubernetes", "urllib3"),
    "operator": ("cryptography", "jsonpatch", "kubernetes", "urllib3"),
    "s3": ("obstore",),
    "datasets": ("h5py", "minari"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "compare": ("matplotlib", "scipy"),
    "sweep": ("matplotlib", "optuna"),
}
_SOURCES = {"google.protobuf": "protobuf", "grpc": "grpcio", "yaml": "PyYAML"}


def require(what: str, extras: Iterable[str]) -> None:
    """Raise UserError unless all packages of these extras are installed. Imports none of them.

    what: the command, service or setting that needs them.
    """
    needed = {extra: missing for extra in extras if (missing := [name for name in MODULES[extra] if not _found(name)])}
    if needed:
        raise UserError(_line(what, {name for names in needed.values() for name in names}, list(needed)))


def explain(what: str, error: ImportError) -> UserError | None:
    """The error of `what` for one of our packages that cannot be imported; None for any other module."""
    name = error.name or ""
    missing = next((each for names in MODULES.values() for each in names if f"{name}.".startswith(f"{each}.")), None)
    if missing is None:
        return None
    if not isinstance(error, ModuleNotFoundError) or name != missing:
        return UserError(f"{what}: the package {_package(missing)} is broken: {error}; install it again")
    extras = [extra for extra, names in MODULES.items() if missing in names]
    return UserError(_line(what, [missing], extras[:1]))


def _line(what: str, modules: Iterable[str], extras: Sequence[str]) -> str:
    packages = ", ".join(sorted(map(_package, modules), key=str.lower))
    chosen = ",".join(extra for extra in extras if extra not in (BASE, COMMAND_LINE))
    target = f"'actorq[{chosen}]'" if chosen else "actorq"
    return f"{what} needs {packages}: pip install {target}"


def _package(module: str) -> str:
    return _SOURCES.get(module, module).replace("_", "-")


def _found(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        # The parent package is missing.
        return False
    # A plain folder of that name has no origin. W&B keeps its files in such a folder.
    return spec is not None and spec.origin is not None
