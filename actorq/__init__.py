"""ActorQ: reinforcement learning with a full-precision learner and many cheap int8 actors.

The three services share this package: wire format, configuration, domain objects, transport and command line.
It imports neither torch nor onnx nor gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorq.inference import load_policy
    from actorq_apps.python.datasets import Dataset, DatasetExport, export_dataset, import_dataset, show_dataset
    from actorq_apps.python.events import EndEvent, EvaluationEvent, NoticeEvent, Result, StatusEvent
    from actorq_apps.python.run import Run
    from actorq_apps.python.train import train

__all__ = [
    "Dataset",
    "DatasetExport",
    "EndEvent",
    "EvaluationEvent",
    "NoticeEvent",
    "Result",
    "Run",
    "StatusEvent",
    "export_dataset",
    "import_dataset",
    "load_policy",
    "show_dataset",
    "train",
]

__version__ = "0.1.0"

# The names that users import from this package. Most come from actorq_apps, which this package otherwise never imports.
_EVENTS = ("EndEvent", "EvaluationEvent", "NoticeEvent", "Result", "StatusEvent")
_DATASETS = ("Dataset", "DatasetExport", "export_dataset", "import_dataset", "show_dataset")
_DOORS = {
    "load_policy": "actorq.inference",
    "train": "actorq_apps.python.train",
    "Run": "actorq_apps.python.run",
    **dict.fromkeys(_DATASETS, "actorq_apps.python.datasets"),
    **dict.fromkeys(_EVENTS, "actorq_apps.python.events"),
}

ENVIRONMENT_PREFIX = "ACTORQ_"
"""Prefix of environment variables that hold settings."""


def __getattr__(name: str) -> Any:
    # These names are imported on demand, because services and commands import this package too and need none of them.
    if name in _DOORS:
        return getattr(import_module(_DOORS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
