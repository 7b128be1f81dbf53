"""The Hopper kernels behind the engine's kernel interface (`metalabelnet.engine.kernels.ConvKernels`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.engine.hopper.conv3x3 import (
    HopperConvResult,
    conv_compile_failure,
    dgrad,
    drop_unused_sums,
    forward,
    make_conv_plan,
)
from metalabelnet.engine.hopper.tiling import is_supported_layer
from metalabelnet.engine.hopper.wgrad3x3 import make_wgrad_plan, wgrad, wgrad_compile_failure
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, fx

    from metalabelnet.engine.kernels import AffineGrad

MAX_SM_DIVISOR = 4  # a kernel uses at least a quarter of the SMs, however many runs are concurrent
SM_COUNT_ARGUMENT = 2  # the position of `sm_count` among the arguments of both operators


class HopperKernels:
    """3×3 convolution kernels for compute capability 9.0.

    Parameters
    ----------
    strict : bool
        Raise `InputError` if a kernel cannot be compiled, instead of leaving the layer to cuDNN.
    """

    name = "hopper"

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.failures: list[str] = []

    def supports_forward(self, x: Tensor, weight: Tensor, *geometry: Sequence[int]) -> bool:
        """Tell whether `forward` computes this layer; `geometry` is stride, padding, dilation."""
        out_channels, in_channels = weight.shape[:2]
        return self._supports_conv(x, weight, in_channels, out_channels, *geometry)

    def supports_dgrad(self, grad: Tensor, weight: Tensor, *geometry: Sequence[int]) -> bool:
        """Tell whether `dgrad` computes this layer."""
        out_channels, in_channels = weight.shape[:2]
        return self._supports_conv(grad, weight, out_channels, in_channels, *geometry)

    def _supports_conv(
        self, x: Tensor, weight: Tensor, in_channels: int, out_channels: int, *geometry: Sequence[int]
    ) -> bool:
        if not is_supported_layer(x, weight, *geometry):
            return False
        plan = make_conv_plan(*x.shape[2:], in_channels, out_channels)
        return plan is not None and self._compiles(conv_compile_failure(plan, x.device))

    def supports_wgrad(self, x: Tensor, weight: Tensor, *geometry: Sequence[int]) -> bool:
        """Tell whether `wgrad` computes this layer."""
        if not is_supported_layer(x, weight, *geometry):
            return False
        plan = make_wgrad_plan(*x.shape[2:], weight.shape[1], weight.shape[0])
        return plan is not None and self._compiles(wgrad_compile_failure(plan, x.device))

    def forward(self, x: Tensor, weight: Tensor) -> HopperConvResult:
        """Return the convolution, with the sums of its outputs and of their squares."""
        return forward(x, weight)

    def dgrad(self, grad: Tensor, weight: Tensor) -> HopperConvResult:
        """Return the gradient with respect to the input, without sums."""
        return dgrad(grad, weight)

    def wgrad(self, x: Tensor, grad: Tensor, affine_grad: AffineGrad | None = None) -> Tensor:
        """Return the gradient with respect to the weights in float32."""
        return wgrad(x, grad, affine_grad)

    def finalize(self, graph: fx.Graph, concurrent_runs: int) -> None:
        """Drop sums that nothing reads and leave SMs to concurrent runs."""
        drop_unused_sums(graph)
        limit_sms(graph, concurrent_runs)

    def used_in(self, module: fx.GraphModule) -> bool:
        """Tell whether a graph calls one of these kernels."""
        return any(node.target in _operators() for node in module.graph.nodes)

    def _compiles(self, failure: str | None) -> bool:
        """Note why a kernel does not compile."""
        if failure is None:
            return True
        reason = f"Hopper kernels cannot be compiled ({failure})"
        if self.strict:
            raise InputError(f"--kernels hopper cannot be used: {reason}; choose auto or cudnn")
        if not self.failures:  # one line, even if many layers fail
            self.failures.append(reason)
        return False


def limit_sms(graph: fx.Graph, concurrent_runs: int) -> None:
    """Let the kernels of a graph use a share of the SMs where several runs are concurrent on the GPU.

    A kernel that runs alone uses all SMs to finish soon. With concurrent runs, fewer SMs with more work each are
    faster: prologues and epilogues, in which nothing is multiplied, are rarer, there are fewer partial sums to add,
    and the other runs use the remaining SMs. Partial sums over other pixels round differently: in bfloat16, a
    concurrent run is not bit-identical to the same run alone.
    """
    divisor = min(concurrent_runs, MAX_SM_DIVISOR)
    for node in graph.nodes:
        if node.target in _operators():
            node.update_arg(SM_COUNT_ARGUMENT, max(1, node.args[SM_COUNT_ARGUMENT] // divisor))


def _operators() -> tuple[object, ...]:
    return torch.ops.metalabelnet.conv3x3.default, torch.ops.metalabelnet.wgrad3x3.default
