"""SGD and Adam whose every number lives on the device.

`torch.optim`'s read the rate, and Adam its step count, on the host. A step that is recorded once and replayed many
times must not: what it reads on the host is frozen into the recording. These do the same arithmetic with tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class Optimizer:
    """Steps against the gradients in `.grad`, in place. The state is a dict of tensors that stay where they are."""

    def __init__(self, weights: Iterable[Tensor], lr: float) -> None:
        self.weights = list(weights)
        first = self.weights[0]
        self.lr = torch.tensor(lr, dtype=first.dtype, device=first.device)

    def set_lr(self, lr: float) -> None:
        """Change the learning rate from the next step on."""
        self.lr.fill_(lr)

    def step(self) -> None:
        """Move every weight."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for weight in self.weights:
            weight.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes from step to step."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The state, for a checkpoint."""
        return {"lr": self.lr, **self.tensors()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over, into the tensors that are there."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state_dict[name])

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(weight, requires_grad=False) for weight in self.weights]


class SGD(Optimizer):
    """b ← μb + (∇ + dw), w ← w − λb: momentum μ, weight decay d, rate λ, as `torch.optim.SGD`."""

    def __init__(self, weights: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(weights, lr)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.buffers = self._zeros()

    @torch.no_grad()
    def step(self) -> None:
        """Move every weight that has a gradient, all of them at once."""
        known = [(w, b, w.grad) for w, b in zip(self.weights, self.buffers, strict=True) if w.grad is not None]
        if not known:
            return
        weights, buffers, gradients = (list(tensors) for tensors in zip(*known, strict=True))
        torch._foreach_mul_(buffers, self.momentum)
        torch._foreach_add_(buffers, gradients)
        torch._foreach_add_(buffers, weights, alpha=self.weight_decay)
        torch._foreach_sub_(weights, torch._foreach_mul(buffers, self.lr))  # noqa: SLF001 (as torch.optim does)

    def tensors(self) -> dict[str, Tensor]:
        """The momentum of every weight."""
        return {f"momentum.{i}": buffer for i, buffer in enumerate(self.buffers)}


class Adam(Optimizer):
    """Kingma and Ba 2015 with L2 weight decay, as `torch.optim.Adam`."""

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
        """Move every weight that has a gradient."""
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
        """The step count, and both moments of every weight."""
        firsts = {f"first.{i}": tensor for i, tensor in enumerate(self.first)}
        seconds = {f"second.{i}": tensor for i, tensor in enumerate(self.second)}
        return {"count": self.count, **firsts, **seconds}
