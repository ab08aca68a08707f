"""The quantizer: receives FP32 checkpoints, emits quantized ONNX policies, and serves the newest to actors."""
