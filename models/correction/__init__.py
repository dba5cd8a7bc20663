"""What `correct` does: forecasts of the input, engines that correct them, members and products, files to write.

Everything but `torch_engine` works on numpy arrays and imports no PyTorch: forecasts are also corrected where only ONNX
Runtime is installed.
"""
