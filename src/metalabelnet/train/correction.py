"""What a corrected label is made of.

The rule, for a sample x with given label y:

    p_E(x)      the mean of the classifier's probabilities over the epochs 0 to E, to the power 1/t, normalised
    L_E         the mean cross-entropy of p_E on the n clean samples, with the t that makes it least
    p           p_E with the least L_E

    label       argmax p(x)
    confidence  max p(x)
    suspicion   1 − Σ_E w_E p_E,y(x),  w_E ∝ exp(−√n (L_E − min L))
    suspect     the samples of highest suspicion, as many as p expects to be wrong: Σ_x (1 − p_y(x))

Why the mean: a network learns what samples have in common before it learns single labels by heart, and the mean
remembers what it said before. When it begins to learn by heart, clean samples get less likely, and that ends the mean.
For suspicion it matters too how late a given label was learned, so that later means have a part in it: as large as
their loss is near the least, by the order of its standard error, 1/√n.

The clean samples are the held-out ones, and those the method learns from where its weights do not follow their labels.
The epoch selected for the model is a candidate for p as well: that epoch alone, with its own t.

What was tried beside it and left, with numbers, is in docs/labels.md; benchmarks/labels.py measures what is here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from metalabelnet.core.calibration import at_temperature, calibrated
from metalabelnet.train.evaluate import logits_of

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.methods import Method
    from metalabelnet.train.prepare import Problem

LEAST = 1e-12  # a probability that single precision has lost


class Verdict(NamedTuple):
    """What is said of each sample: (N,) each. A sample without a given label has suspicion NaN and is no suspect."""

    label: Tensor
    confidence: Tensor
    suspicion: Tensor
    suspect: Tensor


def judge(p: Tensor, given: Tensor, suspicion: Tensor | None = None) -> Verdict:
    """The last four lines of the rule; without a history suspicion is 1 − p_y."""
    confidence, label = p.max(1)
    labeled = given >= 0
    doubt = 1 - given_probability(p, given)
    suspicion = torch.where(labeled, doubt if suspicion is None else suspicion, float("nan"))
    expected = round(float(doubt[labeled].double().sum()))
    order = torch.where(labeled, suspicion, -1.0).argsort(descending=True, stable=True)
    suspect = torch.zeros_like(labeled)
    suspect[order[:expected]] = True
    return Verdict(label, confidence, suspicion, suspect)


def given_probability(p: Tensor, given: Tensor) -> Tensor:
    """p_y of each sample (of class 0 where there is no label)."""
    return p.gather(1, given.clamp_min(0)[:, None])[:, 0]


def clean_rows(method: Method, problem: Problem) -> tuple[Tensor, Tensor]:
    """Samples and classes of the clean rows that tell how good probabilities are."""
    if method.learns_from_clean or problem.select is problem.clean:
        return problem.select.x, problem.select.true
    parts = (problem.select, problem.clean)
    return torch.cat([rows.x for rows in parts]), torch.cat([rows.true for rows in parts])


class History:
    """The running mean of the classifier's probabilities, the best such mean so far, and the weighted sum of all.

    looks  how many epochs of the run take part, evenly spread; more cost passes over the training rows
    """

    def __init__(self, looks: int, epochs: int) -> None:
        self.looks, self.epochs = min(looks, epochs), epochs
        self.sum: Tensor | None = None  # of the probabilities of the training rows
        self.clean: Tensor | None = None  # and of the clean rows
        self.count = 0
        self.best: dict[str, Any] | None = None
        self.belief: Tensor | None = None  # Σ_E w_E p_E,y, with the weight of the best mean 1
        self.weight = 0.0  # Σ_E w_E

    def due(self, epoch: int) -> bool:
        """Whether this epoch takes part."""
        return (epoch + 1) * self.looks // self.epochs > epoch * self.looks // self.epochs

    def look(self, method: Method, problem: Problem, epoch: int) -> None:
        """Take the epoch in."""
        x, true = clean_rows(method, problem)
        train, clean = (logits_of(method, samples).softmax(1) for samples in (problem.train.x, x))
        self.sum = train if self.sum is None else self.sum + train
        self.clean = clean if self.clean is None else self.clean + clean
        self.count += 1
        t, loss = calibrated(_log(self.clean / self.count), true)
        p = at_temperature(_log(self.sum / self.count), t)
        least = loss if self.best is None else min(loss, self.best["loss"])
        before = 0.0 if self.best is None else math.exp(-math.sqrt(len(true)) * (self.best["loss"] - least))
        now = math.exp(-math.sqrt(len(true)) * (loss - least))
        p_y = given_probability(p, problem.train.given)
        self.belief = now * p_y + (0 if self.belief is None else before * self.belief)
        self.weight = now + before * self.weight
        if self.best is None or loss < self.best["loss"]:
            self.best = {"p": p, "epoch": epoch, "temperature": t, "loss": loss}

    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here."""
        return {name: getattr(self, name) for name in ("sum", "clean", "count", "best", "belief", "weight")}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name, value in state.items():
            setattr(self, name, value)


class Corrected(NamedTuple):
    """p and suspicion of every training row, and where p is from: first and last epoch, t, and the clean loss."""

    p: Tensor
    suspicion: Tensor
    epochs: tuple[int, int]
    temperature: float
    loss: float


def corrected(history: History, logits: Tensor, given: Tensor, clean: Tensor, true: Tensor, epoch: int) -> Corrected:
    """The better of the best mean and the selected epoch alone, and the suspicion of all means.

    logits  (N, C) of the training rows at the selected epoch; `given` are their labels
    clean   (n, C) of the clean rows at that epoch; `true` are their classes
    """
    t, loss = calibrated(clean, true)
    p, best = at_temperature(logits, t), history.best
    if best is None or history.belief is None:
        return Corrected(p, 1 - given_probability(p, given), (epoch, epoch), t, loss)
    suspicion = 1 - history.belief / history.weight
    if loss <= best["loss"]:
        return Corrected(p, suspicion, (epoch, epoch), t, loss)
    return Corrected(best["p"], suspicion, (0, best["epoch"]), best["temperature"], best["loss"])


def _log(p: Tensor) -> Tensor:
    return p.clamp_min(LEAST).log()
