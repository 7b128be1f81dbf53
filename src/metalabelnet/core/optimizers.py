"""SGD and Adam with all state on the device.

The optimizers of `torch.optim` read the learning rate, and Adam its step count, on the host. A step that is captured
once as a CUDA graph and replayed must not, because values read on the host become constants of the graph. These
optimizers do the same arithmetic with tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class Optimizer:
    """Base class: updates weights in place from their `.grad`. The state is a dict of tensors, updated in place."""

    def __init__(self, weights: Iterable[Tensor], lr: float) -> None:
        self.weights = list(weights)
        first = self.weights[0]
        self.lr = torch.tensor(lr, dtype=first.dtype, device=first.device)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the following steps."""
        self.lr.fill_(lr)

    def step(self) -> None:
        """Update every weight."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for weight in self.weights:
            weight.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"lr": self.lr, **self.tensors()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the existing tensors."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state_dict[name])

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(weight, requires_grad=False) for weight in self.weights]


class SGD(Optimizer):
    """b ← μb + (∇ + dw), w ← w − λb: momentum μ, weight decay d, learning rate λ, as `torch.optim.SGD`."""

    def __init__(self, weights: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(weights, lr)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.buffers = self._zeros()

    @torch.no_grad()
    def step(self) -> None:
        """Update every weight that has a gradient, with one fused operation per line."""
        updated = [(w, b, w.grad) for w, b in zip(self.weights, self.buffers, strict=True) if w.grad is not None]
        if not updated:
            return
        weights, buffers, gradients = (list(tensors) for tensors in zip(*updated, strict=True))
        torch._foreach_mul_(buffers, self.momentum)
        torch._foreach_add_(buffers, gradients)
        torch._foreach_add_(buffers, weights, alpha=self.weight_decay)
        torch._foreach_sub_(weights, torch._foreach_mul(buffers, self.lr))  # noqa: SLF001 (as torch.optim does)

    def tensors(self) -> dict[str, Tensor]:
        """Return the momentum buffer of every weight."""
        return {f"momentum.{i}": buffer for i, buffer in enumerate(self.buffers)}


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980) with L2 weight decay, as `torch.optim.Adam`."""

    def __init__(
        self,
        weights: Iterable[Tensor],
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(weights, lr)
        self.weight_decay, self.betas, self.epsilon = weight_decay, betas, epsilon
        self.count = torch.zeros_like(self.lr)
        self.first, self.second = self._zeros(), self._zeros()

    @torch.no_grad()
    def step(self) -> None:
        """Update every weight that has a gradient."""
        self.count.add_(1)
        b1, b2 = self.betas
        step_size = self.lr / (1 - b1**self.count)
        correction = (1 - b2**self.count).sqrt()
        for weight, first, second in zip(self.weights, self.first, self.second, strict=True):
            if weight.grad is not None:
                gradient = weight.grad + self.weight_decay * weight
                first.lerp_(gradient, 1 - b1)
                second.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
                weight.sub_(step_size * first / (second.sqrt() / correction + self.epsilon))

    def tensors(self) -> dict[str, Tensor]:
        """Return the step count and both moments of every weight."""
        firsts = {f"first.{i}": tensor for i, tensor in enumerate(self.first)}
        seconds = {f"second.{i}": tensor for i, tensor in enumerate(self.second)}
        return {"count": self.count, **firsts, **seconds}
