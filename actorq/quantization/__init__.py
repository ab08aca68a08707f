"""Analyzes policy graphs and quantizes them in schemes. Uses numpy and onnx, and never runs a model."""
