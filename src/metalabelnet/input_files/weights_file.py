"""Weights of a network in a safetensors or torch file. No code in the file is executed."""

from __future__ import annotations

import pickle
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.input_files.regular_files import check_regular_file

if TYPE_CHECKING:
    from pathlib import Path


def read_weights(file: Path, remedy: str = "give a file of weights") -> dict[str, Tensor]:
    """Return the tensors of the file by name. `remedy` ends the message of an error."""
    try:
        check_regular_file(file)
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file; {remedy}") from None
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unknown pickle protocols, which raise an error too
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or foreign file may raise anything
        reason = " ".join(str(error).split())[:150] or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch's message advises to execute the content
            reason = "it contains objects other than tensors, which are not loaded"
        raise InputError(f"{file}: is not a file of weights ({reason}); {remedy}") from error
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{file}: contains no named weights; {remedy}")
    return content
