"""Where wrong labels go, estimated from few clean samples.

    P(y | c, x) = λ r_y(x) / (1 − r_c(x)) + (1 − λ) O_cy        of a wrong label y ≠ c

    r     a prediction of the true class c of the sample x
    O     frequencies of the wrong labels in each class, 0 on the diagonal
    λ     the part of wrong labels that follow the prediction

Noise that follows the features confuses a sample with the class that it looks like, which may be another one for each
sample: λ = 1. Uniform noise has λ = 0 and the same frequency for every y.

A row of O is the mean of its posterior distribution under a Dirichlet prior. A clean set of 100 samples with ten
classes has a handful of wrong labels in each row, so the prior decides: its mean is uniform, or the frequencies in the
rows of the other classes, and its concentration κ is between 3 and 10,000 samples. The result is the average over these
priors, weighted by the probability of the counts of all rows (the Dirichlet-multinomial distribution). So wrong labels
that are spread evenly give a uniform O, and rows that differ are believed.

λ is its posterior mean under a uniform prior. The O_cy of a clean sample is then counted without this sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

CONCENTRATIONS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0)  # κ, in samples
POOL_PSEUDO_COUNTS = 10.0  # of a uniform prior on the frequencies in the other classes
SHARES = 41  # values of λ that are averaged
MIN_PROBABILITY = 1e-9


@dataclass(frozen=True, kw_only=True)
class WrongLabelCounts:
    """Counts of wrong labels, and the priors of their frequencies.

    counts  (C, C) counts by true class and wrong label, 0 on the diagonal
    priors  (C, C) parameters of a Dirichlet distribution for each row, 0 on the diagonal
    weights probability of each prior, given the counts
    """

    counts: Tensor
    priors: list[Tensor]
    weights: Tensor

    def frequencies(self) -> Tensor:
        """Return O."""
        return self._mean([(self.counts + prior) / _row_sums(self.counts + prior) for prior in self.priors])

    def frequencies_without(self, given: Tensor, true: Tensor) -> Tensor:
        """Return row c of O for each of the samples that were counted, without its own label, (n, C)."""
        rest = self.counts[true] - _wrong_part(given, true)
        return self._mean([(rest + prior[true]) / _row_sums(rest + prior[true]) for prior in self.priors])

    def _mean(self, rows: list[Tensor]) -> Tensor:
        """Return the mean over the priors, weighted by their probabilities."""
        return torch.einsum("p,pnc->nc", self.weights, torch.stack(rows))


def count_wrong_labels(given: Tensor, true: Tensor) -> WrongLabelCounts:
    """Return the counts of labels other than the true class.

    Parameters
    ----------
    given : Tensor of shape (n, classes)
        Probabilities of the given labels: one-hot where they are known.
    true : Tensor of shape (n,)
        True classes.
    """
    classes = given.shape[1]
    counts = given.new_zeros(classes, classes).index_add(0, true, given).fill_diagonal_(0.0)
    off_diagonal = 1 - torch.eye(classes, dtype=given.dtype)
    pooled = (counts.sum(0) - counts + POOL_PSEUDO_COUNTS / classes) * off_diagonal
    bases = (off_diagonal / _row_sums(off_diagonal), pooled / _row_sums(pooled))
    priors = [concentration * base for base in bases for concentration in CONCENTRATIONS]
    weights = torch.stack([_log_evidence(counts, prior) for prior in priors]).softmax(0)
    return WrongLabelCounts(counts=counts, priors=priors, weights=weights)


def fit_share(log_r: Tensor, given: Tensor, true: Tensor, counts: WrongLabelCounts) -> float:
    """Return λ for samples with predictions log_r, (n, classes), that were not fitted to them."""
    r = log_r.exp()
    others = 1 - functional.one_hot(true, r.shape[1]).to(r)
    by_prediction = r * others / (r * others).sum(1, keepdim=True).clamp_min(MIN_PROBABILITY)
    by_class = counts.frequencies_without(given, true)
    wrong = _wrong_part(given, true)
    shares = torch.linspace(0, 1, SHARES, dtype=r.dtype)
    mixtures = (share * by_prediction + (1 - share) * by_class for share in shares)
    log_likelihood = torch.stack([(wrong * p.clamp_min(MIN_PROBABILITY).log()).sum() for p in mixtures])
    return float((shares * log_likelihood.softmax(0)).sum())


def _wrong_part(given: Tensor, true: Tensor) -> Tensor:
    return given * (1 - functional.one_hot(true, given.shape[1]).to(given))


def _row_sums(values: Tensor) -> Tensor:
    return values.sum(1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)


def _log_evidence(counts: Tensor, prior: Tensor) -> Tensor:
    """Return the log-probability of sequences with these counts under the Dirichlet-multinomial distribution."""
    cells = torch.where(prior > 0, torch.lgamma(counts + prior) - torch.lgamma(prior), torch.zeros_like(prior))
    total = prior.sum(1)
    return cells.sum() + (torch.lgamma(total) - torch.lgamma(total + counts.sum(1)))[total > 0].sum()
