"""The interface between graph rewrites and custom convolution kernels, and the choice of an implementation.

The rewrites know this interface only. `select_kernels` returns an implementation for a device: custom kernels where the
device has some, else `NoKernels`, which supports no layer, so that every convolution stays with the library (cuDNN).

BatchNorm reads all outputs of a convolution again for its sums. A custom kernel can compute such sums in its epilogue.
Whether an epilogue is needed is known only when the operators behind the convolution are traced. A `ConvResult`
therefore remembers its operands: it is issued again with the epilogue, and dead code elimination removes the first
call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, fx

HOPPER = (9, 0)  # compute capability of H100 and H200


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

    def reissue(
        self, *, addend: Tensor | None = None, factor: Tensor | None = None, relu_mask: ChannelAffine | None = None
    ) -> ConvResult:
        """Compute `y + addend` and, per channel, the sums of the output and of its product with `factor`.

        With `relu_mask` the output is zero where that expression is not positive, and the factor is `relu_mask.x`.
        """

    def affine_relu(self, scale: Tensor, shift: Tensor) -> Tensor:
        """Compute `relu(scale * y + shift)` instead of y."""

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

    def finalize(self, module: fx.GraphModule, concurrent_runs: int) -> None:
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

    def finalize(self, module: fx.GraphModule, concurrent_runs: int) -> None:
        """Do nothing."""

    def used_in(self, module: fx.GraphModule) -> bool:
        """Return False."""
        return False


def select_kernels(choice: str, device: torch.device, *, bf16: bool) -> ConvKernels:
    """Return the kernels for convolutions on a device.

    Parameters
    ----------
    choice : {"auto", "cudnn", "hopper"}
        auto: custom kernels where the device has some; cudnn: never; hopper: custom kernels, or an error.
    device : torch.device
        The device of the run.
    bf16 : bool
        Whether the run computes products in bfloat16, the only type the custom kernels have.

    Raises
    ------
    InputError
        If the choice is "hopper" and the kernels cannot be used here.
    """
    if choice == "cudnn":
        return NoKernels()
    if reason := _hopper_unusable(device, bf16=bf16):
        if choice == "hopper":
            raise InputError(f"--kernels hopper cannot be used: {reason}; choose auto or cudnn")
        return NoKernels()
    try:
        from metalabelnet.engine.hopper import HopperKernels
    except ImportError as error:
        if choice == "hopper":
            raise InputError(f"--kernels hopper cannot be used: {error}; choose auto or cudnn") from error
        none = NoKernels()
        none.failures.append(f"Hopper kernels cannot be imported ({error})")
        return none
    return HopperKernels(strict=choice == "hopper")


def _hopper_unusable(device: torch.device, *, bf16: bool) -> str:
    """Return why Hopper kernels cannot be used on a device, or an empty string."""
    if not bf16:
        return "it needs --dtype bf16"
    if device.type != "cuda":
        return f"it needs a GPU of compute capability 9.0 (H100, H200), and the device is {device}"
    capability = torch.cuda.get_device_capability(device)
    if capability != HOPPER:
        found = ".".join(map(str, capability))
        return f"it needs a GPU of compute capability 9.0 (H100, H200), and this one has {found}"
    return ""
