"""Forward correction: the prediction goes through the noise before it is compared with the given label.

T   the transition matrix: T_ij is the probability that a sample of class i is given label j
pT  the prediction of the given label
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from metalabelnet.core.tensor_state import Estimates
from metalabelnet.core.transition_matrix import anchor, counted
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError, unknown
from metalabelnet.methods.cross_fit import Halves
from metalabelnet.methods.method import CIFAR10_RECIPE, Method, Task
from metalabelnet.noise import read_matrix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from metalabelnet.data.batches import Batch
    from metalabelnet.methods.method import Part

WAYS = ("anchor", "counted", "estimated")
FILES = (".npy", ".csv", ".txt")


def forward_cross_entropy(logits: Tensor, labels: Tensor, T: Tensor) -> Tensor:
    """−log (pT)_y = −log Σ_i p_i T_iy (Patrini et al. 2017). Cross-entropy where T is the identity.

    Least where p is one-hot at the class that gives label y most often, and log C everywhere where T is uniform. The
    sum is taken in logarithms: a 0 in T counts as the least positive number, so that a label that T rules out for all
    classes teaches nothing, and costs no infinity.
    """
    log_T = T.to(logits).clamp_min(torch.finfo(logits.dtype).tiny).log()
    return -(functional.log_softmax(logits, dim=1) + log_T.T[labels]).logsumexp(1)


@dataclass(frozen=True, kw_only=True)
class ForwardSettings:
    """Where T comes from; the default is the paper's."""

    transition: str = field(
        default="anchor",
        metadata={
            "help": "where T comes from: anchor (as in the paper), counted (clean samples that carry a given label "
            "too), estimated (two networks' answers on clean samples), or a file .npy or .csv with T"
        },
    )

    def __post_init__(self) -> None:
        if self.transition not in WAYS and Path(self.transition).suffix.lower() not in FILES:
            raise unknown("transition", self.transition, [*WAYS, "a file .npy, .csv or .txt"])


class Forward(Method):
    """Minimises −log (pT)_y over the labeled rows, with T found before.

    anchor     a whole run of cross-entropy comes first, T is read off its last epoch, and a new network starts
    estimated  a short stage with two networks comes first
    otherwise  T is there from the start

    The rate schedule starts anew with the stage that gives the result. The common recipe is the paper's for CIFAR-10,
    but for the network: a ResNet there.
    """

    summary = "cross-entropy behind the transition matrix of the noise, which is found first"
    reference = "Patrini et al. 2017"
    traceable = True
    Settings: ClassVar[type] = ForwardSettings
    own: ClassVar[Mapping[str, Any]] = {**CIFAR10_RECIPE, "settings": {"transition": "anchor"}}

    settings: ForwardSettings

    def __init__(self, task: Task, settings: ForwardSettings) -> None:
        super().__init__(task, settings)
        self.halves = Halves(task, self.make_sgd, first_net=1) if settings.transition == "estimated" else None
        self.found: Estimates | None = None
        first = {"anchor": task.schedule.epochs, "estimated": self.halves.epochs if self.halves else 0}
        self.candidates_from = first.get(settings.transition, 0)
        self.epochs += self.candidates_from

    @classmethod
    def reads_clean(cls, settings: ForwardSettings) -> bool:
        """To find T, by two of the ways."""
        return settings.transition in ("counted", "estimated")

    def lr_at(self, epoch: int) -> float:
        """The schedule, once for each stage."""
        first = self.candidates_from
        return self.task.schedule.lr_at(epoch - first if epoch >= first else epoch)

    def begin_epoch(self, epoch: int) -> None:
        """At the end of the first stage, find T and start the second."""
        if epoch >= self.candidates_from and self.found is None:
            self._start_second(self._transition())
        super().begin_epoch(epoch)

    def _start_second(self, T: Tensor) -> None:
        if self.settings.transition == "anchor":
            self.net = self.task.make_net(1)
            self.sgd = self.make_sgd(self.net)
        self.halves = None
        self.found = Estimates(T=T.to(self.task.train.x.device, self.task.dtype))

    def _transition(self) -> Tensor:
        """T, by the way that was chosen. Rows without a label have no part in it."""
        way, train, clean = self.settings.transition, self.task.train, self.task.clean
        classes = len(train.classes)
        if way == "anchor":
            labeled = train.take((train.given != UNLABELED).nonzero()[:, 0]).x
            return anchor(torch.cat([self.logits(x).softmax(1) for x in chunks(labeled)]))
        if self.halves is not None:
            return self.halves.estimate().T
        if way == "counted":
            both = (clean.true != UNLABELED) & (clean.given != UNLABELED)
            if not both.any():
                raise InputError(
                    f"transition=counted needs clean samples that carry a given label too, and none of the "
                    f"{len(clean)} does: use transition=estimated or transition=anchor"
                )
            return counted(clean.true[both], clean.given[both], classes).T
        return read_matrix(Path(way), classes)

    def phase(self) -> str:
        """The stage."""
        return "second" if self.found is not None else "first"

    def step(self, batch: Batch) -> Tensor:
        """A step of the stage it is in."""
        if self.halves is not None:
            return self.halves.step(batch)
        if self.found is None:
            return self.learn(batch.x, batch.given, batch.seed)
        T = self.found.get_buffer("T")
        return self.minimise(lambda logits: forward_cross_entropy(logits, batch.given, T).mean(), batch.x, batch.seed)

    def end_epoch(self, epoch: int) -> None:
        """Gather what the two networks say, in their stage."""
        if self.halves is not None:
            self.halves.end_epoch()

    def logits(self, x: Tensor) -> Tensor:
        """The classifier's logits: p is of the true class, and T has no part in it."""
        return super().logits(x) if self.halves is None else self.halves.logits(x)

    def reader(self) -> nn.Module:
        """One of those that estimate, while they do."""
        return self.net if self.halves is None else self.halves.nets[0]

    def parts(self) -> dict[str, Part]:
        """In the second stage T, too; before, the networks that estimate it."""
        found: dict[str, Part] = {} if self.found is None else {"found": self.found}
        return super().parts() | found | ({} if self.halves is None else self.halves.parts())

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from there, in the stage it was."""
        if "found" in state:
            self._start_second(state["found"]["T"])
        super().load_state(state)

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """Take over the classifier, and T."""
        if self.found is None:
            self._start_second(tensors["found.T"])
        super().load_model(tensors)
