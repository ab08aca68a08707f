"""The actor: steps environments as one batch with a quantized policy in ONNX Runtime. Needs no torch and no onnx.

Data flows one way: subscription -> policy slot -> segment collector -> uploader -> learner.
"""
