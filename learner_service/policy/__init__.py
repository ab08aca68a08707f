"""Turns a policy module into the ONNX graph for the quantizer."""
