"""SOP, sparse over-parameterization (Liu et al. 2022, https://arxiv.org/abs/2202.14026).

    s_i = u_i² y_i − v_i² (1 − y_i)
    θ   ← θ − SGD(∇θ (1/N) Σ_i −log φ(p_i + s_i)_y)
    u_i ← P(u_i − (α_u/N) ∂/∂u_i [−log φ(p_i + s_i)_y])
    v_i ← P(v_i − (α_v/N) ∂/∂v_i ‖o_i + s_i − y_i‖²)

    y_i       the given label of sample i, one-hot; y is its class
    p_i, o_i  the prediction softmax(f_θ(x_i)), and its most likely class, one-hot
    s_i       the estimated label noise: what the given label has more than the true one
    u_i, v_i  one number, and one per class; at first random, close to 0 (squares and products by element)
    φ(h)      max(h, ε) divided by its sum
    P         clips to [−1, 1]

u and v start near 0 and grow exponentially, at a rate that depends on how far prediction and given label are apart. So
the noise of wrong labels is absorbed by s before the network memorizes it, and s stays near 0 elsewhere: the implicit
regularization of the squares makes s sparse. u and v are updated with the predictions for weakly augmented samples,
whatever the recipe adds to the loss. The clean set is used only to select the epoch.

Departures from the paper:

-   o is the most likely class, as in all versions of the authors' code, with which the paper's results were computed;
    the paper writes p.
-   The current version of the code trains u by the squared error as well, and needs smaller α_u for it. Here, as in the
    paper and the first version of the code, only the cross-entropy trains u.
-   α_u and α_v are the paper's values for 300 epochs, or 120, of batches of 128 samples. A sample takes one step per
    epoch, and v needs 18/log(1 + 4α_v/N) steps to grow from 10⁻⁸ to 1: 68 epochs at the defaults. Larger values make
    up for fewer epochs or larger batches.
-   `--recipe own` has the paper's schedule for CIFAR-10 with symmetric noise and a ResNet-34; for asymmetric noise the
    paper has α_v = 100.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import Theta, forward, trainable_parameters
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.one_hot import one_hot
from metalabelnet.core.ranks import own_span
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.soft_label_table import gather_soft_labels
from metalabelnet.core.tensor_state import TensorState
from metalabelnet.core.top_classes import MAX_VALUES_PER_CHUNK
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task

MIN_PROBABILITY = 1e-4  # ε, before normalization, as in the authors' code
INITIAL_SCALE = 1e-8  # standard deviation of the initial u and v


def label_noise(u: Tensor, v: Tensor, y: Tensor) -> Tensor:
    """Return s = u² y − v² (1 − y) of every sample: at least 0 for the given class, at most 0 for the others.

    u has shape (N, 1), v and the one-hot labels y have shape (N, C).
    """
    return u.square() * y - v.square() * (1 - y)


def normalize(h: Tensor) -> Tensor:
    """Return φ(h) = max(h, ε) divided by its sum over the classes."""
    clipped = h.clamp_min(MIN_PROBABILITY)
    return clipped / clipped.sum(1, keepdim=True)


def sop_loss(logits: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """Return −log φ(p + s)_y of every sample. It is cross-entropy for s = 0, if no probability is below ε.

    It is 0 where s explains the given label: s = y − p. A sample with p_y + s_y < ε has no gradient.
    """
    return -(y * normalize(logits.softmax(1) + noise).log()).sum(1)


def noise_gradients(logits: Tensor, u: Tensor, v: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of −log φ(p + s)_y with respect to u, and of ‖o + s − y‖² with respect to v.

    With h = max(p + s, ε):

        ∂/∂u   = 2u (1/Σ_c h_c − 1/h_y)        0 if p_y + u² < ε
        ∂/∂v_c = −4 v_c (o_c − v_c²)           for c ≠ y, 0 for c = y
    """
    p = logits.softmax(1)
    h = (p + label_noise(u, v, y)).clamp_min(MIN_PROBABILITY)
    h_y = (h * y).sum(1, keepdim=True)
    du = torch.where(h_y > MIN_PROBABILITY, 2 * u * (1 / h.sum(1, keepdim=True) - 1 / h_y), 0.0)
    return du, -4 * v * (one_hot(p.argmax(1), p) - v.square()) * (1 - y)


def own_normal_rows(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return this process's rows of `torch.randn(rows, columns)` in float64; several ranks draw all, in chunks.

    PyTorch draws 16 numbers at a time, so that chunks of a multiple of 16 rows have the numbers of a single draw.
    """
    own = own_span(rows)
    if own == slice(0, rows):
        return torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    chunk, start, parts = 16 * max(1, MAX_VALUES_PER_CHUNK // (16 * columns)), 0, []
    while start < rows:
        end = start + chunk if start + 2 * chunk <= rows else rows
        drawn = torch.randn(end - start, columns, dtype=torch.float64, generator=generator)
        parts.append(drawn[max(own.start - start, 0) : max(own.stop - start, 0)].clone())
        start = end
    return torch.cat(parts)


@dataclass(frozen=True, kw_only=True)
class SOPSettings:
    """Settings with the paper's values for symmetric noise on CIFAR-10."""

    u_step: float = field(default=10.0, metadata={"help": "α_u, step size of u, for batch size 128"})
    v_step: float = field(
        default=10.0, metadata={"help": "α_v, step size of v, for batch size 128 (100 for asymmetric noise)"}
    )


class SOP(Method):
    """Minimize the cross-entropy of the sum of prediction and estimated label noise over the labeled rows.

    Attributes
    ----------
    noise : TensorState
        u and v of every training row.
    has_labels : bool
        False after a model is loaded: u and v belong to the rows of the training run.
    """

    traits = MethodTraits(
        summary="label noise of each sample as a sparse term that is learned together with the network",
        reference="Liu et al. 2022",
        paper_url="https://arxiv.org/abs/2202.14026",
        traceable=True,
        relative_cost=1.1,
        own_recipe={
            "epochs": 120,
            "lr": 0.02,
            "lr_milestones": (40, 80),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 128,
            "settings": {"u_step": 10.0, "v_step": 10.0},
        },
    )
    Settings: ClassVar[type] = SOPSettings

    settings: SOPSettings

    def __init__(self, task: Task, settings: SOPSettings) -> None:
        super().__init__(task, settings)
        given, classes = task.train.given, len(task.train.classes)
        random = own_normal_rows(len(given), 1 + classes, generator(task.seed, "sop"))
        initial = (INITIAL_SCALE * random).to(given.device, task.dtype)
        u, v = (ShardedTable(part.clone(), len(given)) for part in (initial[:, :1], initial[:, 1:]))
        self.noise = TensorState(u=u, v=v)
        self.has_labels = True

    def step(self, batch: Batch) -> Tensor:
        """Take one step of the network, and one of u and v of the batch."""
        theta, index = trainable_parameters(self.net), batch.index
        logits = forward(self.net, batch.x, theta, seed=batch.seed, update_statistics=True)
        tables = self.noise.table("u"), self.noise.table("v")
        u, v = (table[index] for table in tables)
        y = one_hot(batch.given, v)
        loss = self.network_loss(theta, logits, y, label_noise(u, v, y), batch)
        du, dv = noise_gradients(logits.detach(), u, v, y)
        tables[0][index] = (u - self.settings.u_step / len(index) * du).clamp(-1, 1)
        tables[1][index] = (v - self.settings.v_step / len(index) * dv).clamp(-1, 1)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def network_loss(self, theta: Theta, logits: Tensor, y: Tensor, noise: Tensor, batch: Batch) -> Tensor:
        """Return the loss that trains the network. `logits` are those of the weakly augmented samples."""

        def loss_of(z: Tensor, y: Tensor, noise: Tensor) -> Tensor:
            return sop_loss(z, y, noise).mean()

        return self.recipe_loss(self.net, theta, loss_of, batch.views, (y, noise), batch.seed, logits=logits)

    def soft_labels(self) -> ClassTable | None:
        """Return φ(y − s) of all training rows: the given labels without their noise, uniform if there is none."""
        if not self.has_labels:
            return None
        u, v, given = self.noise["u"], self.noise["v"], self.task.train.given
        y = one_hot(given[own_span(len(given))], v)
        return gather_soft_labels(normalize(y - label_noise(u, v, y)), given)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the network. u and v are not part of a model."""
        super().load_model_state_dict(tensors)
        self.has_labels = False

    def components(self) -> dict[str, Stateful]:
        """Add u and v."""
        return super().components() | {"noise": self.noise}
