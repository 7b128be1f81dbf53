"""The label correction rule.

For a sample x with given label y, and n clean samples:

    p_F(x)      probabilities from the LOO head refit at the first snapshot: the classifier's features with a last
                layer fitted without y (`loo_refit`)
    p_E(x)      mean of the classifier's probabilities over the snapshots of epochs 0 to E
                p_F and p_E are calibrated: raised to the power 1/t and normalized
    L_F, L_E    mean cross-entropy of p_F, p_E on the clean samples; t minimizes it
    p           starts as p_F; each p_E in turn replaces it if its loss is lower by more than one standard error, or by
                more than two if p_E may have memorized labels: it agrees with more given labels than q expects to be
                correct. For a method that does not use given labels, p is the selected epoch
    q(x, y)     posterior of the true class given p_F and the given label, by Bayes' rule (`core/posterior.py`).
                If at least 30 clean samples carry a given label, q replaces p where its loss on them is lower by more
                than two standard errors. If fewer do, q computed from p replaces p, provided that the confidence gap
                (accuracy − confidence) of p according to q equals its gap on the clean samples within 2 percentage
                points, and that the clean samples measure the gap with a standard error of at most 1 point. Its T is
                then mixed with 10 % of p's own confusion. Where p was evaluated on too few clean samples and p_F on
                more, and q of p_F passes this test, q of p_F gives the gap that p is compared with.

    label       argmax p(x)
    confidence  max p(x)
                If on the clean samples fewer of these labels than of the given ones are right, the given labels are
                kept, with p adapted (`given_check.py`)
    suspicion   1 − Π_E p_E,y(x)^w_E over all E and F,  Σ w = 1, w_E ∝ exp(−a (L_E − min L)), a = max(√n, n/10)
    suspect     the samples of highest suspicion, as many as p expects to be wrong: Σ_x (1 − p_y(x)). Without clean
                samples p is not calibrated, and a suspect is a sample whose corrected label is not y.

Reasons:

p_F               A network that is large for its data memorizes labels as soon as it learns the classes, and clean
                  samples do not show it. p_F is computed without the label it is compared with.
mean over epochs  A network learns what samples have in common before it memorizes single labels; the mean keeps the
                  early predictions.
standard errors   They are those of the paired difference. If clean samples cannot tell two candidates apart, the
                  earlier one is safer.
one or two        Memorization shows on training samples: a classifier that has only learned the classes agrees with at
                  most as many given labels as are correct. q, which rather overrates given labels, estimates this
                  number.
weights w_E       Suspicion also depends on how late a given label was learned, so all means count, weighted by their
                  loss: on the scale of its standard error 1/√n, and from 100 clean samples on by their likelihood,
                  where ten samples count as one because their losses are correlated.
product           It is the mean of −log p_y, the loss of the given label, as L_E is the loss of clean labels. A mean
                  that has memorized the label adds no loss and keeps the loss of the others. In a sum of probabilities
                  its p_y near 1 would hide whether the others have 0.01 or 0.0001.

The clean samples are the validation samples, and the other clean samples where the classifier is not trained on their
labels. Where it is, but not during warm-up, p_F is evaluated on all of them once it is chosen as p: for its t and for
the test of q. Not earlier: with t fitted on more samples than the others have, p_F would win comparisons that it
should lose. The last candidate compared is the selected epoch alone, with its own t. With labeled clean samples, q is
computed from p_F only: a mean has already learned given labels, and Bayes' rule would count them twice.

docs/results/labels.md lists the alternatives that were measured; benchmarks/labels.py measures this rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from metalabelnet.core.posterior import mix_in_confusion, posterior, posterior_confidence_gap
from metalabelnet.labels.snapshots import calibrated_distribution, given_probability, is_lower, log_mean, safe_log

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.core.posterior import TransitionMatrixFit
    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.labels.snapshots import CleanLabels, LabelDistribution, Snapshots

MAX_GAP_DIFFERENCE = 0.02  # between the confidence gap of p according to q and on clean samples
CONFUSION_SHARE = 0.1  # of the labels: wrong in a way that T does not model


class LabelDecisions(NamedTuple):
    """Corrected label, confidence, suspicion and suspect flag of each sample, (N,) each.

    A sample without a given label has suspicion NaN and is not a suspect.
    """

    label: Tensor
    confidence: Tensor
    suspicion: Tensor
    suspect: Tensor


def decide_labels(
    p: ClassTable, given: Tensor, suspicion: Tensor | None = None, *, calibrated: bool = True
) -> LabelDecisions:
    """Apply the last four lines of the rule. Without snapshots, suspicion is 1 − p_y."""
    confidence, label = p.max(1)
    labeled = given >= 0
    p_wrong = 1 - given_probability(p, given)
    suspicion = torch.where(labeled, p_wrong if suspicion is None else suspicion, float("nan"))
    if not calibrated:
        return LabelDecisions(label, confidence, suspicion, labeled & (label != given))
    expected = round(float(p_wrong[labeled].double().sum()))
    order = torch.where(labeled, suspicion, -1.0).argsort(descending=True, stable=True)
    suspect = torch.zeros_like(labeled)
    suspect[order[:expected]] = True
    return LabelDecisions(label, confidence, suspicion, suspect)


def correct_labels(
    snapshots: Snapshots,
    selected: LabelDistribution,
    given: Tensor,
    clean: CleanLabels | None = None,
    *,
    reads_given: bool = True,
) -> tuple[LabelDistribution, Tensor]:
    """Return p or q of the rule for the training rows, and the suspicion from all means.

    selected     the distribution of the selected epoch alone
    given        given labels of the training rows
    clean        labels of the clean rows; None without a clean set
    reads_given  whether the method is trained on given labels. If not, it cannot memorize them: p is `selected`
    """
    suspicion = snapshots.suspicion()
    if snapshots.best is None or suspicion is None:
        return selected, 1 - given_probability(selected.p, given)
    use_selected = not reads_given or snapshots.is_better(selected, snapshots.best, given)
    chosen = selected if use_selected else snapshots.best
    if clean is None:
        return chosen, suspicion
    if chosen.is_refit and snapshots.refit is not None:
        chosen = snapshots.refit
    evaluated = clean.rows_evaluated_by(chosen)
    if not evaluated.has_enough_labeled:
        return _posterior_if_consistent(chosen, snapshots, given, clean), suspicion
    if snapshots.refit is None:
        return chosen, suspicion
    q = _posterior_of_refit(snapshots.refit, snapshots, given, evaluated)
    labeled = evaluated.labeled
    return (q if is_lower(q.losses[labeled], chosen.losses[labeled]) else chosen), suspicion


def _posterior_of_refit(
    refit: LabelDistribution, snapshots: Snapshots, given: Tensor, clean: CleanLabels
) -> LabelDistribution:
    """Return q of p_F for the training rows and these clean rows; t is fitted again if p_F was fitted on more."""
    if (n := len(clean.true)) < len(refit.clean_p):
        refit = calibrated_distribution(log_mean(refit.p, 1), safe_log(refit.clean_p[:n]), clean.true, refit.epochs)
        refit = refit._replace(is_refit=True)
    T = snapshots.fit_transition_matrix(refit.p, given)
    q = posterior(refit.clean_p, clean.given, T)
    losses = functional.nll_loss(safe_log(q.double()), clean.true, reduction="none")
    return refit._replace(p=posterior(refit.p, given, T), clean_p=q, losses=losses, uses_given=True)


def _posterior_if_consistent(
    chosen: LabelDistribution, snapshots: Snapshots, given: Tensor, clean: CleanLabels
) -> LabelDistribution:
    """Return q of p if its confidence gap agrees with that on clean rows, else p.

    Used where too few clean rows have a given label. If p has too few clean rows to measure the gap and p_F has more,
    the gap comes from q of p_F, if that is consistent itself.
    """
    labeled = given >= 0
    if not labeled.any():
        return chosen
    gap, refit, fit = clean.confidence_gap(chosen), snapshots.refit, snapshots.fit_transition_matrix
    if gap is None and refit is not None and len(refit.losses) > len(chosen.losses):
        refit_T = _consistent_transition_matrix(clean.confidence_gap(refit), refit.p, given, fit)
        if refit_T is not None:
            gap = posterior_confidence_gap(posterior(refit.p, given, refit_T)[labeled], chosen.p[labeled])
    T = _consistent_transition_matrix(gap, chosen.p, given, fit)
    if T is None:
        return chosen
    mixed = mix_in_confusion(T, chosen.p, CONFUSION_SHARE)
    clean_q = posterior(chosen.clean_p, clean.rows_evaluated_by(chosen).given, mixed)
    return chosen._replace(p=posterior(chosen.p, given, mixed), clean_p=clean_q, uses_given=True)


def _consistent_transition_matrix(
    gap: float | None, p: ClassTable, given: Tensor, fit: TransitionMatrixFit
) -> Tensor | None:
    """Return T if the confidence gap of p according to its posterior is close to `gap`, else None."""
    if gap is None:
        return None
    T, labeled = fit(p, given), given >= 0
    posterior_gap = posterior_confidence_gap(posterior(p, given, T)[labeled], p[labeled])
    return T if abs(posterior_gap - gap) <= MAX_GAP_DIFFERENCE else None
