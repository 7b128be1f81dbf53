"""Use a finished run: load it, predict, relabel other data, export to ONNX."""
