"""Forward correction (Patrini et al. 2017, https://arxiv.org/abs/1609.03683).

    estimate T
    θ ← θ − SGD(∇θ (1/N) Σ_i −log (pT)_y)

    p     the prediction softmax(f_θ(x)) of the true class
    T     the transition matrix: T_ij is the probability that a sample of class i is given label j
    pT    the prediction of the given label
    y     the given label

T comes from one of four sources (`transition`):

    anchor      a full run of cross-entropy; T is read off its predictions at anchor points, and training starts again
                with a new network (the paper's procedure)
    estimated   a short stage of cross-fitting (`cross_fit`) and the clean set
    counted     clean samples that have a given label as well
    a file      T itself

The learning rate schedule restarts with the stage that gives the result. The common schedule is the paper's for
CIFAR-10; the paper's network is a ResNet. The sources other than anchor are not in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from metalabelnet.core.state_check import check_keys, check_tensor
from metalabelnet.core.tensor_state import Estimates
from metalabelnet.core.transition_matrix import count_transitions, transitions_from_anchors
from metalabelnet.data.disk_tensor import map_chunks
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.methods.cross_fit import CrossFit
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.noise import read_matrix
from metalabelnet.run_options import CIFAR10_SCHEDULE

if TYPE_CHECKING:
    from torch import Tensor, nn

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Stateful
    from metalabelnet.methods.task import Task

TRANSITION_SOURCES = ("anchor", "counted", "estimated")
MATRIX_SUFFIXES = (".npy", ".csv", ".txt")


def forward_cross_entropy(logits: Tensor, labels: Tensor, T: Tensor) -> Tensor:
    """Return −log (pT)_y = −log Σ_i p_i T_iy of every sample. It is cross-entropy if T is the identity.

    The minimum over p is one-hot at the class most likely to be given label y; with a uniform T the loss is log C. The
    sum is computed from logarithms, with zeros in T replaced by the smallest positive number: a label that T excludes
    for all classes then has no gradient, and the loss stays finite.
    """
    log_T = T.to(logits).clamp_min(torch.finfo(logits.dtype).tiny).log()
    return -(functional.log_softmax(logits, dim=1) + log_T.T[labels]).logsumexp(1)


def stored_transitions(estimates: dict[str, Any], task: Task) -> Tensor:
    """Return T from the estimates in a checkpoint. Raise InputError if it has another shape or type."""
    classes = len(task.train.classes)
    check_keys(estimates, ("T",), "estimates")
    check_tensor(estimates["T"], (classes, classes), task.dtype, "estimates.T")
    T: Tensor = estimates["T"]
    return T


@dataclass(frozen=True, kw_only=True)
class ForwardSettings:
    """Settings with the paper's values."""

    transition: str = field(
        default="anchor",
        metadata={
            "help": "source of the transition matrix T: anchor (as in the paper), counted (clean samples that have a "
            "given label as well), estimated (cross-fitting and the clean set), or a .npy, .csv or .txt file"
        },
    )

    def __post_init__(self) -> None:
        if self.transition not in TRANSITION_SOURCES and Path(self.transition).suffix.lower() not in MATRIX_SUFFIXES:
            raise unknown_name_error(
                "transition", self.transition, [*TRANSITION_SOURCES, "the path of a .npy, .csv or .txt file"]
            )


class Forward(Method):
    """Minimize −log (pT)_y over the labeled rows, after a first stage that estimates T if needed.

    Attributes
    ----------
    cross_fit : CrossFit or None
        The stage of cross-fitting while it runs (`transition=estimated`).
    estimates : Estimates or None
        T; None in the first stage.
    """

    traits = MethodTraits(
        summary="cross-entropy on predictions multiplied by the noise transition matrix, which is estimated first",
        reference="Patrini et al. 2017",
        paper_url="https://arxiv.org/abs/1609.03683",
        traceable=True,
        relative_cost=2.1,
        own_recipe={**CIFAR10_SCHEDULE, "settings": {"transition": "anchor"}},
    )
    Settings: ClassVar[type] = ForwardSettings

    settings: ForwardSettings

    def __init__(self, task: Task, settings: ForwardSettings) -> None:
        super().__init__(task, settings)
        self.cross_fit = CrossFit(task, self.make_sgd, first_net=1) if settings.transition == "estimated" else None
        self.estimates: Estimates | None = None
        first_stage = {"anchor": task.recipe.epochs, "estimated": self.cross_fit.epochs if self.cross_fit else 0}
        self.candidates_from = first_stage.get(settings.transition, 0)
        self.epochs += self.candidates_from

    @classmethod
    def reads_clean(cls, settings: ForwardSettings) -> bool:
        """Return whether T is estimated with the clean set."""
        return settings.transition in ("counted", "estimated")

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of the schedule, which restarts with the second stage."""
        first = self.candidates_from
        return self.task.recipe.lr_at(epoch - first if epoch >= first else epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Estimate T and start the second stage at the end of the first."""
        if epoch >= self.candidates_from and self.estimates is None:
            self._start_second_stage(self._transition_matrix())
        super().begin_epoch(epoch)

    def _start_second_stage(self, T: Tensor) -> None:
        if self.settings.transition == "anchor":
            self.net = self.task.make_net(1)
            self.sgd = self.make_sgd(self.net)
            self.average_weights("net", self.net)
        self.cross_fit = None
        self.estimates = Estimates(T=T.to(self.task.train.x.device, self.task.dtype))

    def _transition_matrix(self) -> Tensor:
        """Return T from the chosen source. Rows without a given label are not used."""
        source, train, clean = self.settings.transition, self.task.train, self.task.clean
        classes = len(train.classes)
        if source == "anchor":
            labeled = train.take((train.given != UNLABELED).nonzero()[:, 0]).x
            return transitions_from_anchors(map_chunks(self.logits, labeled).softmax(1))
        if self.cross_fit is not None:
            return self.cross_fit.estimate().T
        if source == "counted":
            both = (clean.true != UNLABELED) & (clean.given != UNLABELED)
            if not both.any():
                raise InputError(
                    f"transition=counted needs clean samples with a given label, but none of the {len(clean)} clean "
                    "samples has one: use transition=estimated or transition=anchor"
                )
            return count_transitions(clean.true[both], clean.given[both], classes).T
        return read_matrix(Path(source), classes)

    def phase(self) -> str:
        """Return "first" or "second": the stage."""
        return "second" if self.estimates is not None else "first"

    def step(self, batch: Batch) -> Tensor:
        """Take one step of the current stage."""
        if self.cross_fit is not None:
            return self.cross_fit.step(batch)
        if self.estimates is None:
            return self.cross_entropy_step(batch.views, batch.given, batch.seed)
        T = self.estimates.get_buffer("T")

        def loss(logits: Tensor, given: Tensor) -> Tensor:
            return forward_cross_entropy(logits, given, T).mean()

        return self.sgd_step(loss, batch.views, (batch.given,), batch.seed)

    def end_epoch(self, epoch: int) -> None:
        """Update the estimate in the stage of cross-fitting."""
        if self.cross_fit is not None:
            self.cross_fit.end_epoch()

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of the true class, to which T is not applied."""
        return super().logits(x) if self.cross_fit is None else self.cross_fit.logits(x)

    def feature_net(self) -> nn.Module:
        """Return the classifier, or a network of cross-fitting while that stage runs."""
        return self.net if self.cross_fit is None else self.cross_fit.nets[0]

    def components(self) -> dict[str, Stateful]:
        """Add T in the second stage, and the networks of cross-fitting in the first."""
        estimates: dict[str, Stateful] = {} if self.estimates is None else {"estimates": self.estimates}
        return super().components() | estimates | ({} if self.cross_fit is None else self.cross_fit.components())

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint of either stage."""
        if "estimates" in state:
            self._start_second_stage(stored_transitions(state["estimates"], self.task))
        super().load_state_dict(state)

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the classifier and T."""
        if self.estimates is None:
            self._start_second_stage(tensors["estimates.T"])
        super().load_model_state_dict(tensors)
