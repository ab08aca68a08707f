"""ActorQ: reinforcement learning with a full-precision learner and many cheap int8 actors.

The three services share this package: wire format, configuration, domain objects, transport and command line.
It imports neither torch nor onnx nor gymnasium.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorq.inference import load_policy

__all__ = ["load_policy"]

__version__ = "0.1.0"

ENVIRONMENT_PREFIX = "ACTORQ_"
"""Prefix of environment variables that hold settings."""


def __getattr__(name: str) -> Any:
    # Imported on demand: services and commands import this package too, and need no policy.
    if name == "load_policy":
        from actorq.inference import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
