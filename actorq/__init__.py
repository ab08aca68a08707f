"""ActorQ: reinforcement learning with a full-precision learner and many cheap int8 actors.

This package is what the three services share: the wire, the configuration, the domain objects, the
transport and the command line. It imports neither torch nor onnx nor gymnasium.
"""

__version__ = "0.1.0"

ENVIRONMENT_PREFIX = "ACTORQ_"
"""Of each environment variable that is a setting."""
