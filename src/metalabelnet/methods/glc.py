"""GLC, Gold Loss Correction (Hendrycks et al. 2018, https://arxiv.org/abs/1802.05300).

First stage, a network of its own:

    θ ← θ − SGD(∇θ (1/N) Σ_i −log p_y(x_i))

Once, at its end:

    T_cy ← mean of p_y(x_m) over the clean samples of class c

Second stage, with a new network:

    θ ← θ − SGD(∇θ ((1/N) Σ_i −log (pT)_y(x_i) + (1/M) Σ −log p_{y_m}(x_m)))

    x, y      a training batch and its given labels
    x_m, y_m  a batch of the clean set
    p         softmax(f_θ(x))
    T         transition matrix; a row is one-hot if its class has no clean sample

Each stage takes all epochs of the recipe, as in the paper; only epochs of the second are candidates for the result.

Departure from the paper: it draws batches from noisy and clean samples together, so that a small clean set weighs
little. Here every step has a noisy and a clean batch, as for the other methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.tensor_state import Estimates
from metalabelnet.data.disk_tensor import map_chunks
from metalabelnet.methods.forward import forward_cross_entropy, stored_transitions
from metalabelnet.methods.method import Method, MethodTraits

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


def gold_transitions(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return T from the predicted probabilities of the clean samples, (M, C), and their labels."""
    classes = probabilities.shape[1]
    one_hot = functional.one_hot(labels, classes).to(probabilities)
    count = one_hot.sum(0)[:, None]
    return torch.where(count > 0, one_hot.T @ probabilities / count.clamp_min(1), torch.eye(classes).to(count))


class GLC(Method):
    """Train on the given labels, estimate T on the clean set, then train a new network on both sets.

    Attributes
    ----------
    estimates : Estimates or None
        T; None in the first stage.
    """

    traits = MethodTraits(
        summary="a transition matrix estimated on the clean set corrects the loss; clean samples are trained on, too",
        reference="Hendrycks et al. 2018",
        paper_url="https://arxiv.org/abs/1802.05300",
        needs_clean=True,
        traceable=True,
        relative_cost=3.1,
    )
    settings: Any

    def __init__(self, task: Task, settings: Any) -> None:
        super().__init__(task, settings)
        self.clean_from: int = task.recipe.epochs
        self.candidates_from = task.recipe.epochs
        self.epochs = 2 * task.recipe.epochs
        self.estimates: Estimates | None = None

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of the recipe, which restarts with the second stage."""
        return super().lr_at(epoch % self.task.recipe.epochs)

    def begin_epoch(self, epoch: int) -> None:
        """Estimate T and create the new network at the start of the second stage."""
        if epoch >= self.candidates_from and self.estimates is None:
            clean = self.task.clean
            p = map_chunks(self.logits, clean.x).softmax(1)
            self._start_second_stage(gold_transitions(p, clean.true))
        super().begin_epoch(epoch)

    def _start_second_stage(self, T: Tensor) -> None:
        self.estimates = Estimates(T=T.to(self.task.train.x.device, self.task.dtype))
        self.net = self.task.make_net(1)
        self.sgd = self.make_sgd(self.net)
        self.average_weights("net", self.net)

    def phase(self) -> str:
        """Return "first" or "second": the stage."""
        return "first" if self.estimates is None else "second"

    def step(self, batch: Batch) -> Tensor:
        """Take one step of the current stage."""
        if self.estimates is None:
            return self.cross_entropy_step(batch.views, batch.given, batch.seed)
        T, theta = self.estimates.get_buffer("T"), trainable_parameters(self.net)
        noisy_loss = self.recipe_loss(
            self.net,
            theta,
            lambda logits, y: forward_cross_entropy(logits, y, T).mean(),
            batch.views,
            (batch.given,),
            batch.seed,
        )
        clean_loss = self.recipe_loss(
            self.net,
            theta,
            lambda logits, y: cross_entropy(logits, y).mean(),
            batch.clean_views,
            (batch.clean_y,),
            batch.seed + 1,
        )
        loss = noisy_loss + clean_loss
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def components(self) -> dict[str, Stateful]:
        """Add T in the second stage."""
        return super().components() | ({} if self.estimates is None else {"estimates": self.estimates})

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either stage."""
        if "estimates" in state:
            self._start_second_stage(stored_transitions(state["estimates"], self.task))
        super().load_state_dict(state)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the second network and T."""
        if self.estimates is None:
            self._start_second_stage(tensors["estimates.T"])
        super().load_model_state_dict(tensors)
