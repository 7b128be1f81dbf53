"""What a corrected label is made of.

The rule, for a sample x with given label y:

    p_F(x)      the classifier's features at the first look, with a last layer fitted without y (`refitted`)
    p_E(x)      the mean of the classifier's probabilities over the epochs 0 to E
                both to the power 1/t, normalised
    L_E         the mean cross-entropy of p_E on the n clean samples, with the t that makes it least; and so L_F
    p           p_F, until a p_E has a lower loss by more than one standard error, then that one, and so on; by more
                than two where p_E has learned labels by heart: it gives more of the given ones than q has for right
    q(x, y)     p_F and the given label, by Bayes' rule (`core/posterior.py`); it takes p's place where clean samples
                that carry a given label too, 30 at least, show a loss lower by more than two. Without these, q of p
                does where p is right as often by it as on clean samples, within 2.5 per cent by one standard error;
                it then leaves one label in ten in doubt, whatever the others say

    label       argmax p(x)
    confidence  max p(x)
    suspicion   1 − Π_E p_E,y(x)^w_E over all E and F,  Σ w = 1, w_E ∝ exp(−a (L_E − min L)), a = max(√n, n/10)
    suspect     the samples of highest suspicion, as many as p expects to be wrong: Σ_x (1 − p_y(x)); without clean
                samples p cannot know how many, and a suspect is a sample whose label is not y

Why p_F: a network that is large for its data learns labels by heart as soon as it learns the classes, and on clean
samples that does not show; p_F has not seen the label it is asked about. Why the mean: a network learns what samples
have in common before it learns single labels by heart, and the mean remembers what it said before. Why standard errors
(of the difference, sample by sample): of two that clean samples cannot tell apart the earlier is the safer. Why one or
two: labels learned by heart are seen on training samples. A classifier that has the classes alone agrees with as many
given labels as are right, or fewer; q, which trusts them rather too much, says how many these can be. For
suspicion it matters too how late a given label was learned; all means have a part in it, as large as their loss is
near the least: on the scale of its standard error, 1/√n; from 100 clean samples on by their likelihood, of which ten
count as one, because what is said of them hangs together. Why the product: it is the mean of −log p_y, the loss of the
given label, as L_E is that of clean ones. A mean that has learned the label by heart adds no loss, and leaves that of
the others standing; in a sum of probabilities its p_y near 1 would hide whether the others say 0.01 or 0.0001.

The clean samples are the held-out ones, and those the method learns from where its weights do not follow their labels.
The epoch selected for the model is the last p_E to be compared: that epoch alone, with its own t. Why q of p_F alone: a
mean has learned given labels already, which clean samples do not show, and Bayes' rule would count them twice.

What was tried beside it and left, with numbers, is in docs/labels.md; benchmarks/labels.py measures what is here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from metalabelnet.core.calibration import at_temperature, calibrated
from metalabelnet.core.posterior import apart, doubted, noise_matrix, posterior
from metalabelnet.train.evaluate import logits_of
from metalabelnet.train.refitted import refitted

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.data import Rows
    from metalabelnet.methods import Method
    from metalabelnet.train.prepare import Problem

LEAST = 1e-12  # a probability that single precision has lost
STANDARD_ERRORS, BY_HEART = 1.0, 2.0  # by which a loss is to be lower; where labels were learned by heart
ENOUGH = 10_000_000  # probabilities that tell how many given labels are right; more cost memory
COUNTABLE = 30  # clean samples with a given label that are enough to tell what it is worth
APART = 0.025  # by which p may be right more or less often by q than on clean samples
DOUBT = 0.1  # share of the labels that can be wrong in a way the noise matrix does not know
ALIKE = 10  # clean samples that count as one in suspicion, where there are many


class Verdict(NamedTuple):
    """What is said of each sample: (N,) each. A sample without a given label has suspicion NaN and is no suspect."""

    label: Tensor
    confidence: Tensor
    suspicion: Tensor
    suspect: Tensor


def judge(p: Tensor, given: Tensor, suspicion: Tensor | None = None, *, calibrated: bool = True) -> Verdict:
    """The last four lines of the rule; without a history suspicion is 1 − p_y."""
    confidence, label = p.max(1)
    labeled = given >= 0
    doubt = 1 - given_probability(p, given)
    suspicion = torch.where(labeled, doubt if suspicion is None else suspicion, float("nan"))
    if not calibrated:
        return Verdict(label, confidence, suspicion, labeled & (label != given))
    expected = round(float(doubt[labeled].double().sum()))
    order = torch.where(labeled, suspicion, -1.0).argsort(descending=True, stable=True)
    suspect = torch.zeros_like(labeled)
    suspect[order[:expected]] = True
    return Verdict(label, confidence, suspicion, suspect)


def given_probability(p: Tensor, given: Tensor) -> Tensor:
    """p_y of each sample (of class 0 where there is no label)."""
    return p.gather(1, given.clamp_min(0)[:, None])[:, 0]


def clean_rows(method: Method, problem: Problem) -> tuple[Rows, ...]:
    """The clean rows that tell how good probabilities are."""
    followed = method.learns_from_clean or problem.select is problem.clean
    return (problem.select,) if followed else (problem.select, problem.clean)


class Clean(NamedTuple):
    """The clean rows' true classes, and the labels they were given (−1: none)."""

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


def clean_labels(method: Method, problem: Problem) -> Clean:
    """Both labels of the rows that tell how good probabilities are."""
    parts = clean_rows(method, problem)
    return Clean(torch.cat([rows.true for rows in parts]), torch.cat([rows.given for rows in parts]))


def clean_logits(method: Method, problem: Problem) -> tuple[Tensor, Tensor]:
    """Logits and classes of those rows."""
    parts = clean_rows(method, problem)
    return torch.cat([logits_of(method, rows.x) for rows in parts]), torch.cat([rows.true for rows in parts])


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


class History:
    """The running mean of the classifier's probabilities, the best such mean so far, and what all say of given labels.

    looks  how many epochs of the run take part, evenly spread; more cost passes over the training rows
    """

    def __init__(self, looks: int, epochs: int) -> None:
        self.looks, self.epochs = min(looks, epochs), epochs
        self.sum: Tensor | None = None  # of the probabilities of the training rows
        self.clean: Tensor | None = None  # and of the clean rows
        self.count = 0
        self.best: Candidate | None = None
        self.fit: Candidate | None = None  # p_F, where clean rows can tell what q would be worth
        self.least = math.inf  # L_E so far
        self.belief: Tensor | None = None  # Σ_E w_E log p_E,y, where the mean of least loss weighs 1
        self.weight = 0.0  # Σ_E w_E
        self.right: float | None = None  # the share of given labels that are right by q

    def due(self, epoch: int) -> bool:
        """Whether this epoch takes part."""
        return (epoch + 1) * self.looks // self.epochs > epoch * self.looks // self.epochs

    def look(self, method: Method, problem: Problem, epoch: int) -> None:
        """Take the epoch in."""
        said, true = clean_logits(method, problem)
        if self.count == 0:
            self._begin(method, problem, true, epoch)
        train, clean = logits_of(method, problem.train.x).softmax(1), said.softmax(1)
        self.sum = train if self.sum is None else self.sum + train
        self.clean = clean if self.clean is None else self.clean + clean
        self.count += 1
        new = candidate(_log(self.sum / self.count), _log(self.clean / self.count), true, (0, epoch))
        self.believe(given_probability(new.p, problem.train.given), new.losses)
        if self.best is None or self.better(new, self.best, problem.train.given):
            self.best = new

    def better(self, new: Candidate, than: Candidate, given: Tensor) -> bool:
        """Beyond doubt: by two standard errors, or by one where it can be seen that no labels were learned by heart."""
        doubtful = self.right is None or by_heart(new.p, given, self.right)
        return better(new.losses, than.losses, BY_HEART if doubtful else STANDARD_ERRORS)

    def _begin(self, method: Method, problem: Problem, true: Tensor, epoch: int) -> None:
        """p_F, where the network has a last layer that can be fitted."""
        found = refitted(method, problem.train, clean_rows(method, problem))
        if found is not None:
            train, clean = found
            first = candidate(train, clean, true, (epoch, epoch))
            self.best = first._replace(p=first.p.to(method.task.dtype), refitted=True)
            self.fit = self.best if problem.trusted and clean_labels(method, problem).countable else None
            self.right = expected_right(self.best.p, problem.train.given)
            self.believe(given_probability(self.best.p, problem.train.given), self.best.losses)

    def believe(self, p_y: Tensor, losses: Tensor) -> None:
        """Add log p_E,y with its weight; where its loss is the least so far, the others' weights go down."""
        loss, scale = float(losses.mean()), sharpness(len(losses))
        least = min(loss, self.least)
        now, before = math.exp(-scale * (loss - least)), math.exp(-scale * (self.least - least))
        said = now * _log(p_y)
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


def corrected(
    history: History, selected: Candidate, given: Tensor, clean: Clean | None = None
) -> tuple[Candidate, Tensor]:
    """The selected epoch alone or, unless that is better, the best mean; or q. And the suspicion of all means."""
    suspicion = history.suspicion()
    if history.best is None or suspicion is None:
        return selected, 1 - given_probability(selected.p, given)
    found = selected if history.better(selected, history.best, given) else history.best
    if clean is None:
        return found, suspicion
    if not clean.countable:
        return _with_given_unseen(found, given, clean), suspicion
    if history.fit is None:
        return found, suspicion
    with_given = _with_given(history.fit, given, clean)
    labeled = clean.labeled
    return (with_given if better(with_given.losses[labeled], found.losses[labeled]) else found), suspicion


def _with_given(fit: Candidate, given: Tensor, clean: Clean) -> Candidate:
    """The q of the training rows and of the clean ones."""
    T = noise_matrix(fit.p, given)
    q = posterior(fit.clean, clean.given, T)
    losses = functional.nll_loss(_log(q.double()), clean.true, reduction="none")
    return fit._replace(p=posterior(fit.p, given, T), clean=q, losses=losses, given=True)


def _with_given_unseen(found: Candidate, given: Tensor, clean: Clean) -> Candidate:
    """Where no clean row says what a given label is worth: the q of p, if p is as good by it as on clean rows."""
    labeled = given >= 0
    if not labeled.any():
        return found
    T = noise_matrix(found.p, given)
    if apart(found.p[labeled], posterior(found.p, given, T)[labeled], found.clean, clean.true) > APART:
        return found
    return found._replace(p=posterior(found.p, given, doubted(T, found.p, DOUBT)), given=True)


def _log(p: Tensor) -> Tensor:
    return p.clamp_min(LEAST).log()
