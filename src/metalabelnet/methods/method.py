"""What a method is given, and what it offers. The training loop knows nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from metalabelnet.core.algorithm import descend
from metalabelnet.core.forward_pass import forward, predict, trainable
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.optimizers import SGD
from metalabelnet.data.batches import to_input

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metalabelnet.data.batches import Batch
    from metalabelnet.data.rows import Rows


# The CIFAR-10 recipe of the paper, and of several others it is compared with, as fields of a run.
CIFAR10_RECIPE: dict[str, Any] = {
    "epochs": 120,
    "lr": 1e-2,
    "lr_milestones": (40, 80),
    "batch_size": 128,
    "momentum": 0.9,
    "weight_decay": 1e-4,
}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast: epochs, warm-up, and the classifier's SGD."""

    epochs: int
    warmup: int
    lr: float
    lr_milestones: tuple[int, ...]
    momentum: float
    weight_decay: float

    def lr_at(self, epoch: int) -> float:
        """λ in this epoch: a tenth after each drop. Epochs count from 0."""
        return self.lr * float(0.1 ** sum(epoch >= drop for drop in self.lr_milestones))


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a method works on.

    make_net  the k-th new network of the run, on the right device
    train     the rows with untrusted labels, some perhaps without one
    clean     the rows with labels to trust, as many as may be learned from
    """

    make_net: Callable[[int], nn.Module]
    train: Rows
    clean: Rows
    schedule: Schedule
    dtype: torch.dtype
    seed: int
    head: str | None = None


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """For methods with nothing to set."""


class Part(Protocol):
    """Something with a state: a network, an optimizer, a label table."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state over."""
        ...


class Method(ABC):
    """A method owns its networks, optimizers and label tables.

    The constructor builds what the first epoch needs; later parts come in `begin_epoch`. The classifier's SGD,
    with its momentum, is one and the same through all phases. `parts` names everything that has a state.

    epochs           how many epochs the method takes: those of the schedule, unless it has stages of its own
    candidates_from  the first epoch whose model may be the result: what comes before only prepares
    strong_from      the first epoch that wants a strong view of the training samples; None: none does
    clean_from       the first epoch in which the classifier's weights follow the clean labels; None: none does
    """

    summary: ClassVar[str]
    reference: ClassVar[str]
    Settings: ClassVar[type] = NoSettings
    unlabeled: ClassVar[Literal["used", "left out"]] = "left out"
    needs_clean: ClassVar[bool] = False  # whether it learns from clean rows whatever its settings are
    has_warmup: ClassVar[bool] = False  # whether the schedule's warm-up means something to it
    reads_given: ClassVar[bool] = True  # whether the given labels, and so their noise, have a part in what comes out
    traceable: ClassVar[bool] = False  # whether a step reads nothing on the host that changes within a phase
    strong_from: int | None = None
    clean_from: int | None = None
    own: ClassVar[Mapping[str, Any]] = {}  # what `--preset own` changes in a run: its own paper's settings

    def __init__(self, task: Task, settings: Any) -> None:
        self.task = task
        self.settings = settings
        self.epochs = task.schedule.epochs
        self.candidates_from = task.schedule.warmup if self.has_warmup else 0
        self.net = task.make_net(0)
        self.sgd = self.make_sgd(self.net)

    @property
    def learns_from_clean(self) -> bool:
        """Whether the classifier's weights follow the clean labels, sooner or later."""
        return self.clean_from is not None

    @classmethod
    def reads_clean(cls, settings: Any) -> bool:  # noqa: ARG003 (some ask them)
        """Whether the method, with these settings, learns anything from the clean rows: without any it cannot run."""
        return cls.needs_clean

    def make_sgd(self, net: nn.Module) -> SGD:
        """The schedule's optimizer for a classifier."""
        s = self.task.schedule
        return SGD(trainable(net).values(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)

    def lr_at(self, epoch: int) -> float:
        """The classifier's learning rate in this epoch."""
        return self.task.schedule.lr_at(epoch)

    def labeled_only(self, epoch: int) -> bool:
        """Whether this epoch goes over the labeled rows only, or over all."""
        return True

    def begin_epoch(self, epoch: int) -> None:
        """Get ready for an epoch: the rate, train mode, and whatever changes between phases.

        Called again when a run is resumed within the epoch, and must then leave the state it finds.
        """
        for part in self.parts().values():
            if isinstance(part, nn.Module):
                part.train()
            elif isinstance(part, SGD):
                part.set_lr(self.lr_at(epoch))

    def phase(self) -> str:
        """Which of its kinds of step the method takes now: what is recorded in one phase is not replayed in another."""
        return "only"

    @abstractmethod
    def step(self, batch: Batch) -> Tensor:
        """Learn from one batch; give the loss, on the device."""

    def end_epoch(self, epoch: int) -> None:
        """Revise what is revised once an epoch."""

    def logits(self, x: Tensor) -> Tensor:
        """The classifier's logits for samples as they are stored."""
        return predict(self.classifier(), to_input(x, self.task.dtype))

    def classifier(self) -> nn.Module:
        """The module that predicts: from what a network reads (`to_input`) to logits."""
        return self.net

    def reader(self) -> nn.Module:
        """A network that has learned from given labels by now, whose features can be asked."""
        return self.net

    def soft_labels(self) -> Tensor | None:
        """The soft label of every training row, where the method has made some."""
        return None

    def parts(self) -> dict[str, Part]:
        """Everything with a state, by name. The modules among them are the model."""
        return {"net": self.net, "sgd": self.sgd}

    def state(self) -> dict[str, dict[str, Any]]:
        """All that is needed to go on from here."""
        return {name: part.state_dict() for name, part in self.parts().items()}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from there."""
        for name, part in self.parts().items():
            part.load_state_dict(state[name])

    def model(self) -> dict[str, Tensor]:
        """The tensors of all networks, by name: what is kept of a finished run."""
        return {
            f"{name}.{key}": tensor
            for name, part in self.parts().items()
            if isinstance(part, nn.Module)
            for key, tensor in part.state_dict().items()
        }

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """Take over the networks of a finished run."""
        for name, part in self.parts().items():
            if isinstance(part, nn.Module):
                own = {k.removeprefix(f"{name}."): t for k, t in tensors.items() if k.startswith(f"{name}.")}
                part.load_state_dict(own)

    def minimise(self, loss_of: Callable[[Tensor], Tensor], x: Tensor, seed: int) -> Tensor:
        """One step of the classifier against a scalar loss of its logits; gives that loss."""
        theta = trainable(self.net)
        loss = loss_of(forward(self.net, x, theta, seed=seed, update_statistics=True))
        descend(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def learn(self, x: Tensor, labels: Tensor, seed: int) -> Tensor:
        """One conventional step: cross-entropy on these labels."""
        return self.minimise(lambda logits: cross_entropy(logits, labels).mean(), x, seed)
