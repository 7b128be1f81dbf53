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
`metalabelnet.core.algorithm`, which lists the forward passes and what each does to BatchNorm and dropout. The code the
two MetaLabelNet methods share is in `label_net_method`.

Departure from the paper's equations: L_c and L_e are means over classes, as in the authors' code; set
`loss_scale=sum` for the equations.
"""

from __future__ import annotations

from typing import ClassVar

from metalabelnet.methods.label_net_method import LabelNetMethod, LabelNetSettings
from metalabelnet.methods.method import MethodTraits


class MetaLabelNet(LabelNetMethod):
    """Warm-up on the given labels, then Algorithm 1 of the paper."""

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
    Settings: ClassVar[type] = LabelNetSettings
