"""Converts complete ONNX models of other libraries into policy graphs whose weights are inputs."""
