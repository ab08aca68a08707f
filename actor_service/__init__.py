"""An actor: environments stepped as one batch with a quantized policy in ONNX Runtime; no torch, no onnx.

Data flows one way: subscription -> policy slot -> rollout -> uploader -> learner.
"""
