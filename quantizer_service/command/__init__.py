"""`actorq quantize`: any ONNX policy in every scheme."""
