"""The three losses along one step of MetaLabelNet (the paper's illustration), measured in a training iteration.

The first step of the iteration moves θ to θ̂ = θ − α ∇θ L_c(θ, ŷ). Along the line θ(τ) = θ − τ α ∇θ L_c(θ, ŷ), three
losses are measured: the training loss with the soft labels ŷ before the update of φ, the loss on the clean batch, and
the training loss with the soft labels after it. θ is at τ = 0 and θ̂ at τ = 1. A step on the updated labels
moves θ to θ̂′, which is not on the line; its position is that of its projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.core.forward_pass import Theta, forward, label_net_forward, trainable_parameters
from metalabelnet.core.losses import classification_loss, cross_entropy, scale_factor
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.errors import InputError, RunStopped
from metalabelnet.methods.metalabelnet import MetaLabelNet
from metalabelnet.train.loop import TrainingLoop
from metalabelnet.train.prepare import prepare
from metalabelnet.train.run_folder import RunFolder
from metalabelnet.train.train_run import train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.train.result import Progress
    from metalabelnet.train.settings import Run

PHASE2_EPOCHS = 2  # before the iteration
TAU_RANGE = (-0.5, 2.0)
TAU_STEPS = 26


def losses_along_step(
    run: Run,
    folder: Path,
    *,
    stop: Callable[[], bool],
    on_progress: Callable[[Progress], None],
) -> dict[str, Any]:
    """Train into phase 2, do one iteration and return the losses along its step; resumes from the folder."""
    last_epoch = min(run.warmup + PHASE2_EPOCHS, run.epochs - 1)
    reached = False

    def report(progress: Progress) -> None:
        nonlocal reached
        reached = progress.epoch >= last_epoch
        on_progress(progress)

    files = RunFolder(folder)
    loop = _loop(run, files) if files.checkpoint.exists() else None
    if loop is None or loop.epoch < last_epoch:
        try:
            train(run, folder=folder, resume=True, on_progress=report, stop=lambda: stop() or reached)
        except RunStopped:
            if not reached:
                raise
        loop = _loop(run, files)
    if not isinstance(loop.method, MetaLabelNet):
        raise InputError(f"method {run.method!r} has no losses along a step; use metalabelnet")
    loop.method.begin_epoch(loop.epoch)
    batch = next(loop.batches.epoch(loop.epoch, labeled_only=False, start=loop.step))
    return {"epoch": loop.epoch, "step": loop.step} | measure_losses(loop.method, batch)


def _loop(run: Run, files: RunFolder) -> TrainingLoop:
    loop = TrainingLoop(run, prepare(run), None, files)
    loop.restore()
    return loop


def measure_losses(method: MetaLabelNet, batch: Batch) -> dict[str, Any]:
    """Do one iteration on the batch and return the losses along its look-ahead step."""
    phase2 = method.phase2
    assert phase2 is not None
    f, s, seed = phase2.f, phase2.settings, batch.seed
    theta = {name: weight.detach().clone().requires_grad_() for name, weight in trainable_parameters(f).items()}
    v = phase2.g(batch.x)

    def log_y_hat() -> Tensor:
        return label_net_forward(phase2.m, v, seed=seed + 2, update_statistics=False).detach()

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

    taus = torch.linspace(*TAU_RANGE, TAU_STEPS, dtype=torch.float64).tolist()
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
