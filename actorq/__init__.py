"""ActorQ: reinforcement learning with a full-precision learner and many cheap int8 actors.

This package is what the three services share: the wire, the configuration, the domain objects, the
transport and the command line. It imports neither torch nor onnx nor gymnasium.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorq.inference import load_policy

__all__ = ["load_policy"]

__version__ = "0.1.0"

ENVIRONMENT_PREFIX = "ACTORQ_"
"""Of each environment variable that is a setting."""


def __getattr__(name: str) -> Any:
    # Services and commands import this package too, and need no policy.
    if name == "load_policy":
        from actorq.inference import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
