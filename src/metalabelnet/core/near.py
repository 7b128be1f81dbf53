"""A last layer fitted to a few labels that are right, near the layer that is there.

    z = W₀v + b₀   what the layer that is there says of the features v
    u              the features, each with mean 0 and deviation 1 over the labeled samples
    s, W, b        the least of the mean cross-entropy of s z + W u + b, plus λ/2 ‖W‖²
    λ              of DECAYS, beside the layer that is there or without it (s = 0): what says most of each fifth of the
                   samples when it is fitted to the others

Where the layer is good already the result is that layer, as sure as the samples show it to be right; where it is not,
the samples speak for themselves. Both are linear in v, and so is what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDS = 5
DECAYS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # from strong to weak: each fit begins where the one before ended
ITERATIONS = 50


class Fit(NamedTuple):
    """s, W and b."""

    scale: Tensor
    weight: Tensor
    bias: Tensor

    def logits(self, u: Tensor, z: Tensor) -> Tensor:
        """What it says of samples: s z + W u + b."""
        return self.scale * z + functional.linear(u, self.weight, self.bias)


def fit_near(v: Tensor, y: Tensor, weight: Tensor, bias: Tensor, randomness: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weight and bias of the layer fitted to features v (N, d) and labels y (N,), near these."""
    if len(y) < 2:  # nothing could be left out
        return weight.detach().clone(), bias.detach().clone()
    v, old_weight, old_bias = v.detach().double(), weight.detach().double(), bias.detach().double()
    mean, deviation = v.mean(0), v.std(0, correction=0)
    unit = torch.where(deviation > 1e-6 * deviation.max(), 1 / deviation, 0.0)  # what is constant says nothing
    u, z = (v - mean) * unit, functional.linear(v, old_weight, old_bias)
    fold = (torch.randperm(len(y), generator=randomness) % min(FOLDS, len(y))).to(y.device)
    errors = {beside: _left_out(u, beside * z, y, fold) for beside in (1.0, 0.0)}
    beside = min(errors, key=lambda beside: float(errors[beside].min()))
    fits = list(_fits(u, beside * z, y, 1 + int(errors[beside].argmin())))
    scale, added = beside * fits[-1].scale, fits[-1].weight * unit
    new_bias = scale * old_bias + fits[-1].bias - added @ mean
    return (scale * old_weight + added).to(weight), new_bias.to(bias)


def _left_out(u: Tensor, z: Tensor, y: Tensor, fold: Tensor) -> Tensor:
    """For each λ the mean cross-entropy of every sample under the fit without its fold."""
    total = torch.zeros(len(DECAYS), dtype=u.dtype, device=u.device)
    for number in range(int(fold.max()) + 1):
        apart = fold == number
        for k, fit in enumerate(_fits(u[~apart], z[~apart], y[~apart], len(DECAYS))):
            total[k] += functional.cross_entropy(fit.logits(u[apart], z[apart]), y[apart], reduction="sum")
    return total / len(y)


def _fits(u: Tensor, z: Tensor, y: Tensor, count: int) -> Iterator[Fit]:
    """The fits with the first of DECAYS, one after the other."""
    classes, width = z.shape[1], u.shape[1]
    shapes = ((), (classes, width), (classes,))
    scale, weight, bias = (torch.zeros(shape, dtype=u.dtype, device=u.device, requires_grad=True) for shape in shapes)
    scale.data.fill_(1)
    for decay in DECAYS[:count]:
        step = torch.optim.LBFGS([scale, weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss(step: torch.optim.LBFGS = step, decay: float = decay) -> Tensor:
            step.zero_grad()
            value = (
                functional.cross_entropy(Fit(scale, weight, bias).logits(u, z), y) + decay / 2 * weight.square().sum()
            )
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            step.step(loss)  # type: ignore[no-untyped-call]
        yield Fit(*(tensor.detach().clone() for tensor in (scale, weight, bias)))
