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
                does where p is right as often by it as on clean samples, within two per cent, and they are enough
                to tell (a standard error of one at most); it then leaves one label in ten in doubt, whatever T says.
                Where p was asked about too few, p_F about more, and q of p_F passes: as often as by that one

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
Where they do, but not in warm-up, p_F is asked about all of them too, once it is p: for its t, and for what q is worth.
Not before: with a t from more samples than the others have it would win comparisons that it should lose. The epoch
selected for the model is the last p_E to be compared: that epoch alone, with its own t. Why q of p_F alone: a mean has
learned given labels already, which clean samples do not show, and Bayes' rule would count them twice.

What was tried beside it and left, with numbers, is in docs/labels.md; benchmarks/labels.py measures what is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from metalabelnet.core.posterior import doubted, noise_matrix, off_by, posterior
from metalabelnet.labels.snapshots import better, candidate, given_probability, log_of

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.labels.snapshots import Candidate, Clean, Snapshots

APART = 0.02  # by which p may be right more or less often by q than on clean samples
DOUBT = 0.1  # share of the labels that can be wrong in a way the noise matrix does not know


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


def corrected(
    history: Snapshots, selected: Candidate, given: Tensor, clean: Clean | None = None
) -> tuple[Candidate, Tensor]:
    """The selected epoch alone or, unless that is better, the best mean; or q. And the suspicion of all means."""
    suspicion = history.suspicion()
    if history.best is None or suspicion is None:
        return selected, 1 - given_probability(selected.p, given)
    found = selected if history.better(selected, history.best, given) else history.best
    if clean is None:
        return found, suspicion
    if found.refitted and history.fit is not None:
        found = history.fit
    asked = clean.asked(found)
    if not asked.countable:
        return _with_given_unseen(found, history.fit, given, clean), suspicion
    if history.fit is None:
        return found, suspicion
    with_given = _with_given(history.fit, given, asked)
    labeled = asked.labeled
    return (with_given if better(with_given.losses[labeled], found.losses[labeled]) else found), suspicion


def _with_given(fit: Candidate, given: Tensor, clean: Clean) -> Candidate:
    """The q of the training rows and of these clean ones, with t from them alone where p_F was asked about more."""
    if (n := len(clean.true)) < len(fit.clean):
        fit = candidate(log_of(fit.p), log_of(fit.clean[:n]), clean.true, fit.epochs)._replace(refitted=True)
    T = noise_matrix(fit.p, given)
    q = posterior(fit.clean, clean.given, T)
    losses = functional.nll_loss(log_of(q.double()), clean.true, reduction="none")
    return fit._replace(p=posterior(fit.p, given, T), clean=q, losses=losses, given=True)


def _with_given_unseen(found: Candidate, fit: Candidate | None, given: Tensor, clean: Clean) -> Candidate:
    """Where no clean row says what a given label is worth: the q of p, if p is as good by it as on clean rows.

    Where p could be asked about too few of these, and p_F about more: as by the q of p_F, if that one is right.
    """
    labeled = given >= 0
    if not labeled.any():
        return found
    expected = clean.told(found)
    if expected is None and fit is not None and len(fit.losses) > len(found.losses):
        first = _noise_matrix_if(clean.told(fit), fit.p, given)
        expected = None if first is None else off_by(posterior(fit.p, given, first)[labeled], found.p[labeled])
    T = _noise_matrix_if(expected, found.p, given)
    if T is None:
        return found
    return found._replace(p=posterior(found.p, given, doubted(T, found.p, DOUBT)), given=True)


def _noise_matrix_if(expected: float | None, p: Tensor, given: Tensor) -> Tensor | None:
    """T, if p is as far off by the q that it makes as expected."""
    if expected is None:
        return None
    T, labeled = noise_matrix(p, given), given >= 0
    return T if abs(off_by(posterior(p, given, T)[labeled], p[labeled]) - expected) <= APART else None
