"""How PyTorch starts a linear layer, from a generator of one's own in place of the global one."""

from __future__ import annotations

import torch
from torch import nn


def uniform(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> nn.Parameter:
    """Weights or biases of a layer with so many inputs, uniform in ±1/√inputs."""
    bound = inputs**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))
