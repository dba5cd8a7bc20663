"""Kernels for GPUs in Triton, for layers that move far more bytes or start far more kernels in PyTorch's operators.

A layer asks `choice.usable` and computes the same numbers in PyTorch where the answer is no. The modules of kernels
import Triton, so layers import them only then (docs/gpu.md).
"""
