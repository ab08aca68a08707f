"""Loads trained policies and computes their actions in ONNX Runtime.

policy = actorq.load_policy("policy.onnx")
action = policy.predict(observation)
"""

from actorq.inference.loading import DESCRIPTION_FORMAT, LoadedPolicy, description_file, load_policy

__all__ = ["DESCRIPTION_FORMAT", "LoadedPolicy", "description_file", "load_policy"]
