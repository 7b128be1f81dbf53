"""What a run says of its samples while it learns.

The means of the classifier's probabilities over epochs, compared on clean samples, and what all of them say of given
labels. The rule these are made for, and why, is in `correction`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from metalabelnet.core.calibration import at_temperature, calibrated
from metalabelnet.core.posterior import noise_matrix, off, posterior
from metalabelnet.labels.loo_refit import refitted
from metalabelnet.labels.metrics import logits_of

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data import Rows
    from metalabelnet.data.problem import Problem
    from metalabelnet.engine import Engine
    from metalabelnet.methods import Method

LEAST = 1e-12  # a probability that single precision has lost
STANDARD_ERRORS, BY_HEART = 1.0, 2.0  # by which a loss is to be lower; where labels were learned by heart
ENOUGH = 10_000_000  # probabilities that tell how many given labels are right; more cost memory
COUNTABLE = 30  # clean samples with a given label that are enough to tell what it is worth
TOLD = 0.01  # the standard error up to which clean samples can tell how often p is right
ALIKE = 10  # clean samples that count as one in suspicion, where there are many


def given_probability(p: Tensor, given: Tensor) -> Tensor:
    """p_y of each sample (of class 0 where there is no label)."""
    return p.gather(1, given.clamp_min(0)[:, None])[:, 0]


def log_of(p: Tensor) -> Tensor:
    """The logarithm, finite where p is 0."""
    return p.clamp_min(LEAST).log()


def clean_rows(method: Method, problem: Problem, epoch: int | None = None) -> tuple[Rows, ...]:
    """The clean rows that tell how good probabilities are, of this epoch or of any: the held-out ones, then the others.

    The others tell nothing once the weights have followed their labels.
    """
    unlearned = method.clean_from is None or (epoch is not None and epoch < method.clean_from)
    return (
        (problem.validation, problem.clean)
        if unlearned and problem.validation is not problem.clean
        else (problem.validation,)
    )


class Clean(NamedTuple):
    """True classes of clean rows, the held-out ones first, and the labels they were given (−1: none)."""

    true: Tensor
    given: Tensor

    @property
    def labeled(self) -> Tensor:
        """Which were given one."""
        return self.given >= 0

    @property
    def countable(self) -> bool:
        """Whether they are enough to tell what a given label is worth."""
        return int(self.labeled.sum()) >= COUNTABLE

    def asked(self, found: Candidate) -> Clean:
        """Those among them that this one was asked about."""
        n = len(found.losses)
        return Clean(self.true[:n], self.given[:n])

    def told(self, found: Candidate) -> float | None:
        """How much more often it is right on those than it expects; None where they are too few to tell."""
        expected, error = off(found.clean, self.asked(found).true)
        return expected if error <= TOLD else None


def clean_labels(method: Method, problem: Problem, epoch: int | None = None) -> Clean:
    """Both labels of the rows that tell how good probabilities are, of this epoch or of any."""
    parts = clean_rows(method, problem, epoch)
    return Clean(torch.cat([rows.true for rows in parts]), torch.cat([rows.given for rows in parts]))


def clean_logits(
    method: Method, problem: Problem, validation: Tensor | None = None, by: Engine | None = None
) -> tuple[Tensor, Tensor]:
    """Logits and classes of those rows, of any epoch. Logits of the held-out ones may be known already."""
    parts = clean_rows(method, problem)
    validation = logits_of(by or method, problem.validation.x) if validation is None else validation
    others = [logits_of(by or method, rows.x) for rows in parts[1:]]
    return torch.cat([validation, *others]), torch.cat([rows.true for rows in parts])


class Said(NamedTuple):
    """What the classifier says in an epoch of which the history takes note: logits of training rows and of clean ones.

    true  the classes of the latter
    """

    train: Tensor
    clean: Tensor
    true: Tensor


def said(method: Method, problem: Problem, validation: Tensor | None = None, by: Engine | None = None) -> Said:
    """Ask it: by the engine, if there is one. Logits of the held-out rows may be known already."""
    clean, true = clean_logits(method, problem, validation, by)
    return Said(logits_of(by or method, problem.train.x), clean, true)


def better(losses: Tensor, than: Tensor, errors: float = BY_HEART) -> bool:
    """Whether losses of the same samples are lower by more than so many standard errors of the mean difference."""
    gain = (than - losses).double()
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return float(gain.mean()) > errors * error


def sharpness(n: int) -> float:
    """How sharply n clean samples tell means apart in suspicion: a of the rule."""
    return max(math.sqrt(n), n / ALIKE)


def expected_right(p: Tensor, given: Tensor) -> float:
    """The share of given labels that are right by q: the mean of q_y, with p in which the given labels have no part."""
    labeled = given >= 0
    p, given = p[labeled], given[labeled]
    step = max(1, math.ceil(p.numel() / ENOUGH))
    p, given = p[::step], given[::step]
    return float(given_probability(posterior(p, given, noise_matrix(p, given)), given).double().mean())


def by_heart(p: Tensor, given: Tensor, right: float) -> bool:
    """Whether p gives more of the given labels than are right."""
    labeled = given >= 0
    return float((p.argmax(1) == given)[labeled].double().mean()) > right


class Candidate(NamedTuple):
    """p of every training row, where it is from — first and last epoch, t —, p of the clean rows and its loss on each.

    refitted  whether it is p_F, which has a last layer of its own
    given     whether it is q, in which the given label has a part
    """

    p: Tensor
    epochs: tuple[int, int]
    temperature: float
    clean: Tensor
    losses: Tensor
    refitted: bool = False
    given: bool = False

    def about(self) -> dict[str, Any]:
        """Where it is from and how good it is, for a file."""
        loss, samples = float(self.losses.mean()), len(self.losses)
        about = {"temperature": self.temperature, "epochs": list(self.epochs), "loss": loss, "samples": samples}
        return about | {"refitted": self.refitted, "given": self.given}


def candidate(train: Tensor, clean: Tensor, true: Tensor, epochs: tuple[int, int]) -> Candidate:
    """From the logits (or log-probabilities) of training and clean rows, calibrated on the latter."""
    t, _ = calibrated(clean, true)
    losses = functional.cross_entropy(clean.double() / t, true, reduction="none")
    return Candidate(at_temperature(train, t), epochs, t, at_temperature(clean, t), losses)


class Snapshots:
    """The running mean of the classifier's probabilities, the best such mean so far, and what all say of given labels.

    looks  how many epochs of the run take part, evenly spread; more cost passes over the training rows
    """

    def __init__(self, snapshots: int, epochs: int) -> None:
        self.snapshots, self.epochs = min(snapshots, epochs), epochs
        self.sum: Tensor | None = None  # of the probabilities of the training rows
        self.clean: Tensor | None = None  # and of the clean rows
        self.count = 0
        self.best: Candidate | None = None
        self.fit: Candidate | None = None  # p_F by all clean rows of its epoch, where they can tell what q is worth
        self.least = math.inf  # L_E so far
        self.belief: Tensor | None = None  # Σ_E w_E log p_E,y, where the mean of least loss weighs 1
        self.weight = 0.0  # Σ_E w_E
        self.right: float | None = None  # the share of given labels that are right by q

    def due(self, epoch: int) -> bool:
        """Whether this epoch takes part."""
        return (epoch + 1) * self.snapshots // self.epochs > epoch * self.snapshots // self.epochs

    def look(self, method: Method, problem: Problem, epoch: int, found: Said | None = None) -> None:
        """Take the epoch in, with what the classifier says then, if it was asked already."""
        found = said(method, problem) if found is None else found
        true = found.true
        if self.count == 0:
            self._begin(method, problem, true, epoch)
        train, clean = found.train.softmax(1), found.clean.softmax(1)
        self.sum = train if self.sum is None else self.sum + train
        self.clean = clean if self.clean is None else self.clean + clean
        self.count += 1
        new = candidate(log_of(self.sum / self.count), log_of(self.clean / self.count), true, (0, epoch))
        self.believe(given_probability(new.p, problem.train.given), new.losses)
        if self.best is None or self.better(new, self.best, problem.train.given):
            self.best = new

    def better(self, new: Candidate, than: Candidate, given: Tensor) -> bool:
        """Beyond doubt: by two standard errors, or by one where it can be seen that no labels were learned by heart."""
        doubtful = self.right is None or by_heart(new.p, given, self.right)
        return better(new.losses, than.losses, BY_HEART if doubtful else STANDARD_ERRORS)

    def _begin(self, method: Method, problem: Problem, true: Tensor, epoch: int) -> None:
        """p_F, where the network has a last layer that can be fitted."""
        found = refitted(method, problem.train, clean_rows(method, problem, epoch))
        if found is not None:
            train, clean = found

            def first(true: Tensor) -> Candidate:
                made = candidate(train, clean[: len(true)], true, (epoch, epoch))
                return made._replace(p=made.p.to(method.task.dtype), refitted=True)

            known = clean_labels(method, problem, epoch)
            more = len(known.true) > len(true)
            self.best = first(true)
            fit = first(known.true) if more else self.best
            tells = known.countable or (more and known.told(fit) is not None)
            self.fit = fit if problem.has_clean_set and tells else None
            self.right = expected_right(self.best.p, problem.train.given)
            self.believe(given_probability(self.best.p, problem.train.given), self.best.losses)

    def believe(self, p_y: Tensor, losses: Tensor) -> None:
        """Add log p_E,y with its weight; where its loss is the least so far, the others' weights go down."""
        loss, scale = float(losses.mean()), sharpness(len(losses))
        least = min(loss, self.least)
        now, before = math.exp(-scale * (loss - least)), math.exp(-scale * (self.least - least))
        said = now * log_of(p_y)
        self.belief = said if self.belief is None else said + before * self.belief
        self.weight = now + before * self.weight
        self.least = least

    def suspicion(self) -> Tensor | None:
        """Of all means so far; None before the first."""
        return None if self.belief is None else -torch.expm1(self.belief / self.weight)

    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here."""
        state = {name: getattr(self, name) for name in ("sum", "clean", "count", "least", "belief", "weight", "right")}
        candidates = {"best": self.best, "fit": self.fit}
        return state | {name: None if found is None else found._asdict() for name, found in candidates.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name in ("best", "fit"):
            found = state.pop(name)
            setattr(self, name, None if found is None else Candidate(**found))
        for name, value in state.items():
            setattr(self, name, value)
