"""ActorQ: reinforcement learning with a full-precision learner and many cheap int8 actors.

The three services share this package: wire format, configuration, domain objects, transport and command line.
It imports neither torch nor onnx nor gymnasium.
"""

__version__ = "0.1.0"

ENVIRONMENT_PREFIX = "ACTORQ_"
"""Of each environment variable that is a setting."""
