"""What computes a correction: PyTorch, or ONNX Runtime for an exported corrector, behind the protocols of `engine`."""
