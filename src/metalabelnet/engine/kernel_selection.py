"""Which convolution kernels a run uses: those of PyTorch, or the custom ones for Hopper GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.engine.kernels import NoKernels
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from metalabelnet.engine.kernels import ConvKernels

HOPPER = (9, 0)  # compute capability of H100 and H200


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
