"""Policy graphs and how schemes quantize them: numpy and onnx, without running a model."""
