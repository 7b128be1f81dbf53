"""Custom 3×3 convolution kernels in bfloat16 for GPUs of compute capability 9.0 (H100, H200).

cuDNN's kernels read every pixel nine times from the L2 cache, once per tap, and with the 64 to 200 channels of small
networks these reads limit their speed. Our kernels read a pixel once into shared memory and fuse what would otherwise
read all outputs again into the epilogue.

    conv3x3    forward and dgrad; BatchNorm's sums, an addition, or an affine function and ReLU in the epilogue
    wgrad3x3   wgrad; can compute BatchNorm's gradient from its two operands while it loads them

A layer that they do not support, or whose kernel cannot be compiled, is left to cuDNN.
"""

from __future__ import annotations

from metalabelnet.engine.hopper.hopper_kernels import HopperKernels

__all__ = ["HopperKernels"]
