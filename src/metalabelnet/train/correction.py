"""What a corrected label is made of. The rule, for a sample x with given label y:

    p_e(x)      the classifier's probabilities after epoch e
    p̄_E(x)      their mean over the epochs 0 to E
    p(x)        p̄_E^(1/t), normalised, with E and t such that the held-out clean samples are likeliest

    label       argmax p(x)
    confidence  max p(x)
    suspicion   1 − p_y(x), the probability that the given label is wrong
    suspect     label ≠ y

Why the mean: a network learns what samples have in common before it learns single labels by heart, and the mean
remembers what it said before. When it has begun to learn by heart, the clean samples it has not seen get less likely,
and that ends the mean. The epoch selected for the model is a candidate too: p of that epoch alone, with its own t.

What was tried beside it and left, with numbers, is in docs/labels.md; benchmarks/labels.py measures what is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from metalabelnet.core.calibration import at_temperature, calibrated
from metalabelnet.train.evaluate import logits_of

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data import Rows
    from metalabelnet.methods import Method

LEAST = 1e-12  # a probability that single precision has lost


class Verdict(NamedTuple):
    """What is said of each sample: (N,) each. A sample without a given label has suspicion NaN and is no suspect."""

    label: Tensor
    confidence: Tensor
    suspicion: Tensor
    suspect: Tensor


def judge(p: Tensor, given: Tensor) -> Verdict:
    """The last four lines of the rule."""
    confidence, label = p.max(1)
    labeled = given >= 0
    suspicion = 1 - p.gather(1, given.clamp_min(0)[:, None])[:, 0]
    unknown = torch.full_like(suspicion, float("nan"))
    return Verdict(label, confidence, torch.where(labeled, suspicion, unknown), labeled & (label != given))


class History:
    """The running mean of the classifier's probabilities, and the best such mean so far.

    looks  how many epochs of the run take part, evenly spread; more cost passes over the training rows
    """

    def __init__(self, looks: int, epochs: int) -> None:
        self.looks, self.epochs = min(looks, epochs), epochs
        self.train: Tensor | None = None
        self.select: Tensor | None = None
        self.count = 0
        self.best: dict[str, Any] | None = None

    def due(self, epoch: int) -> bool:
        """Whether this epoch takes part."""
        return (epoch + 1) * self.looks // self.epochs > epoch * self.looks // self.epochs

    def look(self, method: Method, train: Rows, select: Rows, epoch: int) -> None:
        """Take the epoch in, and keep the mean if the held-out clean rows are likelier by it than by those before."""
        p_train, p_select = (logits_of(method, rows.x).softmax(1) for rows in (train, select))
        self.train = p_train if self.train is None else self.train + p_train
        self.select = p_select if self.select is None else self.select + p_select
        self.count += 1
        t, loss = calibrated(_log(self.select / self.count), select.true)
        if self.best is None or loss < self.best["loss"]:
            mean = self.train / self.count
            self.best = {"mean": mean, "epoch": epoch, "temperature": t, "loss": loss}

    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here."""
        return {name: getattr(self, name) for name in ("train", "select", "count", "best")}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name, value in state.items():
            setattr(self, name, value)


class Corrected(NamedTuple):
    """p of every training row and where it is from: the first and last epoch of the mean, t, and the clean loss."""

    p: Tensor
    epochs: tuple[int, int]
    temperature: float
    loss: float


def corrected(history: History, logits: Tensor, select: Tensor, true: Tensor, epoch: int) -> Corrected:
    """The better of the best mean and the selected epoch alone, by the held-out clean rows.

    logits  (N, C) of the training rows at the selected epoch
    select  (n, C) of the held-out clean rows, whose classes are `true`
    """
    t, loss = calibrated(select, true)
    best = history.best
    if best is None or loss <= best["loss"]:
        return Corrected(at_temperature(logits, t), (epoch, epoch), t, loss)
    p = at_temperature(_log(best["mean"]), best["temperature"])
    return Corrected(p, (0, best["epoch"]), best["temperature"], best["loss"])


def _log(p: Tensor) -> Tensor:
    return p.clamp_min(LEAST).log()
