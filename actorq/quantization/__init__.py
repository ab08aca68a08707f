"""Analyzes policy graphs and quantizes them in schemes. Uses numpy and onnx. Never runs a model."""
