"""The interface between graph rewrites and custom convolution kernels.

The rewrites use this interface only. `kernel_selection.select_kernels` returns an implementation for a device: custom
kernels where the device has some, else `NoKernels`, which supports no layer, so that cuDNN computes every convolution.

BatchNorm reads all outputs of a convolution again for its sums. A custom kernel can compute such sums in its epilogue.
Whether an epilogue is needed is known only when the operators behind the convolution are traced. A `ConvResult`
therefore remembers its operands: it is issued again with the epilogue, and dead code elimination removes the first
call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, fx


class ChannelAffine(NamedTuple):
    """`scale * x + shift`, with one scale and shift for each channel."""

    x: Tensor
    scale: Tensor
    shift: Tensor


class AffineGrad(NamedTuple):
    """BatchNorm's input gradient before it is computed: `grad_scale * grad + x_scale * x + shift`, per channel."""

    grad: Tensor
    x: Tensor
    grad_scale: Tensor
    x_scale: Tensor
    shift: Tensor


class ConvResult(Protocol):
    """The output of a custom convolution kernel, which can be computed again with another epilogue."""

    @property
    def y(self) -> Tensor:
        """The output; it may have more channels than the layer, with zeros in those that are padding."""

    @property
    def addend(self) -> Tensor | None:
        """The tensor that the kernel adds to the convolution."""

    def add(self, addend: Tensor) -> ConvResult:
        """Compute the convolution plus this addend, with the sums of the output and of its squares.

        The result has one addend: that of `self`, if any, is replaced.
        """

    def reissue(self, *, factor: Tensor | None = None, relu_mask: ChannelAffine | None = None) -> ConvResult:
        """Compute y again and, with a factor, the sums per channel of the output and of its product with the factor.

        With `relu_mask` the output is zero where that expression is not positive, and the factor is `relu_mask.x`.
        """

    def affine_relu(self, scale: Tensor, shift: Tensor) -> Tensor:
        """Compute `relu(scale * y + shift)` instead of y, for a result without an addend."""

    def channel_sums(self, channels: int) -> tuple[Tensor, Tensor]:
        """Return the sums of the first channels' outputs, and of their squares or of their products with the factor."""


class ConvKernels(Protocol):
    """Custom kernels for some convolution layers. Tensors have channels in multiples of eight."""

    name: str
    failures: list[str]  # why kernels that should support a layer cannot be used; each reason once

    def supports_forward(self, x: Tensor, weight: Tensor, *geometry: Sequence[int]) -> bool:
        """Tell whether `forward` computes this layer; `geometry` is stride, padding, dilation."""

    def supports_dgrad(self, grad: Tensor, weight: Tensor, *geometry: Sequence[int]) -> bool:
        """Tell whether `dgrad` computes this layer."""

    def supports_wgrad(self, x: Tensor, weight: Tensor, *geometry: Sequence[int]) -> bool:
        """Tell whether `wgrad` computes this layer."""

    def forward(self, x: Tensor, weight: Tensor) -> ConvResult:
        """Return the convolution, with the sums of its outputs and of their squares."""

    def dgrad(self, grad: Tensor, weight: Tensor) -> ConvResult:
        """Return the gradient with respect to the input, without sums."""

    def wgrad(self, x: Tensor, grad: Tensor, affine_grad: AffineGrad | None = None) -> Tensor:
        """Return the gradient with respect to the weights in float32; `affine_grad`, if given, is used for `grad`."""

    def finalize(self, graph: fx.Graph, concurrent_runs: int) -> None:
        """Adjust the calls in a complete graph: drop sums that nothing reads, leave SMs to concurrent runs."""

    def used_in(self, module: fx.GraphModule) -> bool:
        """Tell whether a graph calls one of these kernels."""


class NoKernels:
    """No custom kernels: every convolution stays with the library."""

    name = "cudnn"

    def __init__(self) -> None:
        self.failures: list[str] = []

    def supports_forward(self, x: Tensor, weight: Tensor, *geometry: Sequence[int]) -> bool:
        """Return False."""
        return False

    supports_dgrad = supports_wgrad = supports_forward

    def forward(self, x: Tensor, weight: Tensor) -> ConvResult:
        """Raise: no layer is supported."""
        raise NotImplementedError

    def dgrad(self, grad: Tensor, weight: Tensor) -> ConvResult:
        """Raise: no layer is supported."""
        raise NotImplementedError

    def wgrad(self, x: Tensor, grad: Tensor, affine_grad: AffineGrad | None = None) -> Tensor:
        """Raise: no layer is supported."""
        raise NotImplementedError

    def finalize(self, graph: fx.Graph, concurrent_runs: int) -> None:
        """Do nothing."""

    def used_in(self, module: fx.GraphModule) -> bool:
        """Return False."""
        return False
