"""3×3 convolutions in bfloat16 by kernels of our own, for cards of compute capability 9.0 (H100, H200).

The library's kernels read every pixel nine times from the cache, once for each tap, and with the 64 to 200 channels of
small networks that is what they wait for. These read it once, and do on their way what else would read all of it again.

    conv3x3   the convolution, and back from the gradient by what comes out to that by what went in; sums for BatchNorm
    grad3x3   the gradient by the weights; joins the gradient of two, if it is yet to be

Where one does not take a layer, or cannot be compiled, the library does it.
"""

from __future__ import annotations

from metalabelnet.engine.hopper.conv3x3 import Line, Made, back, convolution, takes, without_idle_totals
from metalabelnet.engine.hopper.sm_share import in_company
from metalabelnet.engine.hopper.wgrad3x3 import Joined, by_weight, takes_by_weight

__all__ = [
    "Joined",
    "Line",
    "Made",
    "back",
    "by_weight",
    "convolution",
    "in_company",
    "takes",
    "takes_by_weight",
    "without_idle_totals",
]
