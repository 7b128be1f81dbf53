"""What is done with a finished run: load it, predict, relabel other data, export to ONNX."""
