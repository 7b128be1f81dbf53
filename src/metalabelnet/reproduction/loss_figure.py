"""The paper's illustration of the three losses, from a real iteration.

From θ, the iteration's first step goes to θ̂ = θ − α ∇θ L_c(θ, ŷ). Along that line, θ(τ) = θ − τ α ∇θ L_c(θ, ŷ), three
losses are measured: the training loss with the soft labels ŷ before the update of φ, the loss on the clean batch, and
the training loss with the soft labels after it. θ is at τ = 0 and θ̂ at τ = 1. A step on the new labels goes to θ̂′,
which does not lie on the line; its place there is its projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.core.forward_pass import Theta, forward, generate, trainable
from metalabelnet.core.losses import classification_loss, cross_entropy, scale_factor
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.errors import InputError, Stopped
from metalabelnet.methods.metalabelnet import MetaLabelNet
from metalabelnet.train.loop import Loop, Progress, train
from metalabelnet.train.prepare import prepare
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.train.settings import Run

AFTER = 2  # epochs of phase 2 before the iteration is taken
TAU = (-0.5, 2.0, 26)


def losses_along_a_step(
    run: Run,
    folder: Path,
    *,
    stop: Callable[[], bool],
    on_progress: Callable[[Progress], None],
) -> dict[str, Any]:
    """Train until phase 2 is under way, take one iteration, and measure. Stopped, it goes on from its folder."""
    until = min(run.warmup + AFTER, run.epochs - 1)
    reached = False

    def tell(progress: Progress) -> None:
        nonlocal reached
        reached = progress.epoch >= until
        on_progress(progress)

    files = RunFolder(folder)
    loop = _loop(run, files) if files.checkpoint.exists() else None
    if loop is None or loop.epoch < until:
        try:
            train(run, folder=folder, resume=True, on_progress=tell, stop=lambda: stop() or reached)
        except Stopped:
            if not reached:
                raise
        loop = _loop(run, files)
    if not isinstance(loop.method, MetaLabelNet):
        raise InputError(f"the losses along a step are those of metalabelnet, not of {run.method}")
    loop.method.begin_epoch(loop.epoch)
    batch = next(loop.batches.epoch(loop.epoch, labeled_only=False, start=loop.step))
    return {"epoch": loop.epoch, "step": loop.step} | measure(loop.method, batch)


def _loop(run: Run, files: RunFolder) -> Loop:
    loop = Loop(run, prepare(run), None, files)
    loop.restore()
    return loop


def measure(method: MetaLabelNet, batch: Batch) -> dict[str, Any]:
    """Take the iteration of this batch, and give the losses along the step it looked ahead by."""
    phase2 = method.phase2
    assert phase2 is not None
    f, s, seed = phase2.f, phase2.settings, batch.seed
    theta = {name: weight.detach().clone().requires_grad_() for name, weight in trainable(f).items()}
    v = phase2.g(batch.x)

    def log_y_hat() -> Tensor:
        return generate(phase2.m, v, seed=seed + 2, update_statistics=False).detach()

    before = log_y_hat()
    phase2.step(batch.x, batch.clean_x, batch.clean_y, seed=seed)
    after = log_y_hat()

    def l_c(at: Theta, labels: Tensor) -> Tensor:
        logits = forward(f, batch.x, at, seed=seed, update_statistics=False)
        return scale_factor(s.loss_scale, logits) * classification_loss(logits, labels).mean()

    @torch.no_grad()
    def l_meta(at: Theta) -> float:
        logits = forward(f, batch.clean_x, at, seed=seed + 1, update_statistics=False)
        return float(cross_entropy(logits, batch.clean_y).mean())

    old, new = (gradients(l_c(theta, labels), theta) for labels in (before, after))

    def along(gradient: Theta, tau: float) -> Theta:
        return {name: (weight - tau * s.inner_step * gradient[name]).detach() for name, weight in theta.items()}

    taus = torch.linspace(*TAU[:2], TAU[2], dtype=torch.float64).tolist()
    line = [along(old, tau) for tau in taus]
    with torch.no_grad():
        curves = {
            "train_before": [float(l_c(at, before)) for at in line],
            "meta": [l_meta(at) for at in line],
            "train_after": [float(l_c(at, after)) for at in line],
        }
    projection = sum((old[n] * new[n]).sum() for n in old) / sum(d.square().sum() for d in old.values())
    facts = {
        "meta_at_theta": l_meta(theta),
        "meta_at_theta_hat": l_meta(along(old, 1.0)),
        "meta_at_new_theta_hat": l_meta(along(new, 1.0)),
        "new_theta_hat_at": float(projection),
    }
    rounded = {name: [float(f"{x:.7g}") for x in values] for name, values in curves.items()}
    return {"tau": [round(t, 6) for t in taus], **rounded, **{n: float(f"{x:.7g}") for n, x in facts.items()}}
