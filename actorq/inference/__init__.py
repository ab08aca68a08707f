"""Acts with trained policies in ONNX Runtime: `load_policy` for users, and the one way to open a model.

policy = actorq.load_policy("policy.onnx")
action = policy.predict(observation)
"""

from actorq.arithmetic.sessions import open_session, signature_of_session
from actorq.inference.loading import DESCRIPTION_FORMAT, LoadedPolicy, description_file, load_policy

__all__ = [
    "DESCRIPTION_FORMAT",
    "LoadedPolicy",
    "description_file",
    "load_policy",
    "open_session",
    "signature_of_session",
]
