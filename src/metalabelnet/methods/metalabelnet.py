"""MetaLabelNet (Algan and Ulusoy 2021, https://arxiv.org/abs/2103.10869).

Phase 1, warm-up:

    θ ← θ − SGD(∇θ (1/N) Σ_i −log p_y(x_i))

Phase 2, Algorithm 1:

    v ← g(x)                                          features, from the classifier as it was at the end of warm-up
    ŷ ← m_φ(v)                                        soft labels
    θ̂ ← θ − α ∇θ L_c(f_θ(x), ŷ)                       look-ahead
    φ ← φ − Adam_β(∇φ L_meta(f_θ̂(x_m), y_m))          meta-gradient, through θ̂
    ŷ ← m_φ(v)
    θ ← θ − SGD_λ(∇θ (L_c(f_θ(x), ŷ) + L_e(f_θ(x))))

    x, y      a training batch and its given labels, which phase 2 does not read
    x_m, y_m  a batch of the clean set
    f, θ      the classifier and its weights; p = softmax(f_θ(x))
    g         the classifier without its last layer, fixed from the end of warm-up
    m, φ      the label net and its weights
    L_c, L_e  KL(p ‖ ŷ) and the entropy of p
    L_meta    cross-entropy on the clean batch

The clean set trains the label net only; the classifier learns from the soft labels. Phase 2 is in
`metalabelnet.core.algorithm`, which lists the forward passes and what each does to BatchNorm and dropout.

Departure from the paper's equations: L_c and L_e are means over classes, as in the authors' code; set
`loss_scale=sum` for the equations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from metalabelnet.core.algorithm import Phase2, Phase2Settings
from metalabelnet.core.forward_pass import predict
from metalabelnet.core.label_net import LabelNetKind, make_label_net
from metalabelnet.core.optimizers import Adam
from metalabelnet.core.top_classes import collect, row_chunks, top_probabilities
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.streamed_tensor import StreamedTensor
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.head import FeatureExtractor, find_head
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task


@dataclass(frozen=True, kw_only=True)
class MetaLabelNetSettings(Phase2Settings):
    """Settings of phase 2, the label net and its optimizer, with the paper's values for CIFAR-10."""

    beta: float = field(default=1e-2, metadata={"help": "β, the learning rate of the label net (Adam)"})
    label_net_decay: float = field(default=1e-4, metadata={"help": "weight decay of the label net (Adam)"})
    label_net: LabelNetKind = field(
        default="single-layer",
        metadata={"help": "architecture of the label net: a single linear layer, or an MLP with one hidden layer"},
    )


class MetaLabelNet(Method):
    """Phase 1 is cross-entropy on the labeled rows; phase 2 is Algorithm 1 of the paper, on all rows.

    Attributes
    ----------
    warmup : int
        Number of epochs of phase 1.
    phase2 : Phase2 or None
        Extractor, label net and optimizers of phase 2; None during warm-up.
    features : list of Tensor or None
        Cache of g(x) of the training rows, which do not change in phase 2.
    """

    traits = MethodTraits(
        summary="soft labels from a label net, meta-learned so that training on them lowers the loss on the clean set",
        reference="Algan and Ulusoy 2021",
        paper_url="https://arxiv.org/abs/2103.10869",
        uses_unlabeled=True,
        needs_clean=True,
        has_warmup=True,
        traceable=True,
        looks_ahead=True,
        relative_cost=2.9,
    )
    Settings: ClassVar[type] = MetaLabelNetSettings

    settings: MetaLabelNetSettings

    def __init__(self, task: Task, settings: MetaLabelNetSettings) -> None:
        super().__init__(task, settings)
        self.warmup = task.recipe.warmup
        examples = to_input(task.train.x[:2], task.dtype)
        self.head = find_head(self.net, examples, len(task.train.classes), task.head)
        self.phase2: Phase2 | None = None
        self.features: list[Tensor] | None = None

    def labeled_only(self, epoch: int) -> bool:
        """Return True in warm-up; phase 2 also uses unlabeled rows."""
        return epoch < self.warmup

    def begin_epoch(self, epoch: int) -> None:
        """Create the components of phase 2 at the end of warm-up."""
        super().begin_epoch(epoch)
        if epoch >= self.warmup and self.phase2 is None:
            self._build_phase2()

    def _build_phase2(self) -> None:
        s = self.settings
        self.features = None
        g = FeatureExtractor(self.net, self.head)
        randomness = generator(self.task.seed, "label net")
        m = make_label_net(s.label_net, g.width, len(self.task.train.classes), randomness)
        m.to(self.task.train.x.device, self.task.dtype)
        adam = Adam(m.parameters(), lr=s.beta, weight_decay=s.label_net_decay)
        self.phase2 = Phase2(self.net, g, m, sgd=self.sgd, adam=adam, settings=s)

    def phase(self) -> str:
        """Return "warm-up" or "phase 2"."""
        return "warm-up" if self.phase2 is None else "phase 2"

    def step(self, batch: Batch) -> Tensor:
        """Take one step on the given labels in warm-up; one iteration of Algorithm 1, without them, in phase 2."""
        if self.phase2 is None:
            return self.cross_entropy_step(batch.views, batch.given, batch.seed)
        soft_loss = self.soft_label_loss(self.phase2.l_c_and_l_e, batch)
        return self.phase2.step(batch.x, batch.clean_x, batch.clean_y, seed=batch.seed, soft_loss=soft_loss)

    @torch.no_grad()
    def soft_labels(self) -> ClassTable | None:
        """Return ŷ of all training rows, computed in eval mode without augmentation; None in warm-up."""
        if self.phase2 is None:
            return None
        return collect(self._soft_label_chunks(self.phase2.m), len(self.task.train))

    def _soft_label_chunks(self, m: nn.Module) -> Iterator[ClassTable]:
        start = 0
        for v in self._train_features():
            log_y_hat, given = predict(m, v), self.task.train.given[start : start + len(v)]
            for rows in row_chunks(log_y_hat.shape, log_y_hat.device):
                yield top_probabilities(log_y_hat[rows].exp(), given[rows])
            start += len(v)

    def _train_features(self) -> Iterable[Tensor]:
        """Return g(x) of the training rows in chunks, cached if the samples themselves are in memory.

        g does not change after warm-up.
        """
        if self.features is not None:
            return self.features
        assert self.phase2 is not None
        g, dtype = self.phase2.g, self.task.dtype
        features = (g(to_input(x, dtype)) for x in chunks(self.task.train.x))
        if isinstance(self.task.train.x, StreamedTensor):
            return features
        self.features = list(features)
        return self.features

    def components(self) -> dict[str, Stateful]:
        """Add the extractor, the label net and its Adam in phase 2."""
        if self.phase2 is None:
            return super().components()
        p = self.phase2
        return super().components() | {"extractor": p.g, "label_net": p.m, "adam": p.adam}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either phase."""
        if "adam" in state:
            self._build_phase2()
        self.features = None
        super().load_state_dict(state)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the classifier and, if stored, the extractor and the label net."""
        if any(name.startswith("label_net.") for name in tensors) and self.phase2 is None:
            self._build_phase2()
        self.features = None
        super().load_model_state_dict(tensors)
