"""From a policy module to the ONNX graph that the quantizer gets."""
