"""A label net with few weights: Bayes' rule for a prediction and a given label whose noise depends on the sample.

    ŷ_c      ∝ p_c P(y | c, x),  p ∝ q(x)^a π / q̄
    P(y | c, x) = 1 − e(x)                                 if y = c
                  e(x) (λ p_y / (1 − p_c) + (1 − λ) O_cy)    otherwise
    e(x)     = σ(b + w u(x)),  u(x) = (m(x) − μ) / s

    q, q̄     a prediction for the sample x, and the mean of the predictions of the training samples
    a        an exponent, not learned: below 1, because predictions for samples that are trained on are too certain
    π        the class frequencies
    y        its given label; P = 1 for a sample without one
    m(x)     the margin of a prediction r: the difference of the two largest log-probabilities
    e(x)     the probability that the given label of x is wrong
    λ        the part of wrong labels that follow the prediction: the class that x looks like
    O_cy     the probability that another wrong label of class c is y; 0 on the diagonal

The weights b, w, λ and O are fitted to the true and given labels of the clean samples: logistic regression of "the
given label is wrong" on the margin (`core.noise_rate`), and where wrong labels go (`core.wrong_labels`). All are
regularized toward the initial weights, because clean samples are few. r must not be fitted to the sample it predicts,
or the margin is too large: use cross-fitted predictions, with calibrated probabilities.

`refit` then lets the training samples take part: by Bayes' rule with these weights each has a probability that its
given label is wrong, and of each class. Their means are estimates of noise rate and class frequencies that the clean
samples correct.

π is the frequency of each class, regularized toward q̄. q̄ changes in training, and `align` updates π / q̄ (distribution
alignment, Berthelot et al. 2020, https://arxiv.org/abs/1911.09785). This assumes clean samples that are drawn like the
training samples; `same_frequencies` tests it by their given labels.

Noise that follows the features is wrong near the decision boundary and right far from it, and confuses each sample with
the class that it looks like; one noise rate and one matrix for all cannot express that, a margin and λ can.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.core.noise_rate import Predicted, fit_noise_rate, prediction_powered_mean
from metalabelnet.core.wrong_labels import count_wrong_labels, fit_share

PSEUDO_COUNTS = 10.0  # samples of the prior in each class of π
Z_OF_LEVEL = 3.090232  # quantile of the standard normal distribution at 1 − 0.001
MIN_MEAN = 1e-4  # bounds log q̄: a class that is never predicted
MIN_OTHERS = 1e-6  # bounds 1 − p_c: a prediction that is certain
MIN_LIKELIHOOD = 1e-6  # bounds log P: at e(x) = 0 a given label would rule out all other classes


class BayesLabelNet(nn.Module):
    """The label net. Its initial weights take predictions as they are, and half of the given labels for wrong.

    Parameters
    ----------
    classes : int
        Number of classes.
    exponent : float, default 1
        a.

    Attributes
    ----------
    a : Tensor
        Exponent of the prediction.
    b, w : Tensor
        Intercept and slope of the noise rate.
    mean, std : Tensor
        μ and s of the margin over the clean samples.
    share : Tensor
        λ, the part of wrong labels that follow the prediction.
    O : Tensor of shape (classes, classes)
        Where other wrong labels go.
    frequencies : Tensor of shape (classes,)
        Class frequencies that the clean samples show.
    shift : Tensor of shape (classes,)
        log π − log q̄.

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.bayes_label_net import BayesLabelNet, margin
    >>> net = BayesLabelNet(3)
    >>> log_q = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> given = torch.tensor([1])
    >>> net(log_q, net.noise_rate(margin(log_q)), given).exp().round(decimals=3)
    tensor([[0.3850, 0.4620, 0.1540]])
    """

    a: Tensor
    b: Tensor
    w: Tensor
    mean: Tensor
    std: Tensor
    share: Tensor
    O: Tensor
    frequencies: Tensor
    shift: Tensor

    def __init__(self, classes: int, exponent: float = 1.0) -> None:
        super().__init__()
        for name, value in (("a", exponent), ("b", 0.0), ("w", 0.0), ("mean", 0.0), ("std", 1.0), ("share", 0.0)):
            self.register_buffer(name, torch.tensor(value))
        uniform = torch.full((classes, classes), 1 / max(1, classes - 1))
        self.register_buffer("O", uniform.fill_diagonal_(0.0))
        self.register_buffer("frequencies", torch.full((classes,), 1 / classes))
        self.register_buffer("shift", torch.zeros(classes))

    @torch.no_grad()
    def fit(
        self, log_r: Tensor, given: Tensor, true: Tensor, *, by_margin: bool = True, by_prediction: bool = True
    ) -> None:
        """Fit the weights to clean samples.

        Parameters
        ----------
        log_r : Tensor of shape (n, classes)
            Cross-fitted, calibrated log-probabilities of the clean samples.
        given : Tensor of shape (n, classes)
            Probability of each given label: one-hot where it is known, a prediction of it where it is not.
        true : Tensor of shape (n,)
            Their classes.
        by_margin : bool, default True
            Whether the noise rate depends on the margin; otherwise it is one number.
        by_prediction : bool, default True
            Whether wrong labels may follow the prediction; otherwise λ stays as it is.
        """
        log_r, given, true = (t.cpu() for t in (log_r.double(), given.double(), true))
        wrong = 1 - given.gather(1, true[:, None])[:, 0]
        m = margin(log_r)
        if by_margin:
            self.mean.copy_(m.mean())
            self.std.copy_(m.std(correction=0).clamp_min(1e-6))
        b, w = fit_noise_rate(self._standardize(m) if by_margin else torch.zeros_like(m), wrong)
        counts = count_wrong_labels(given, true)
        frequencies = torch.bincount(true, minlength=len(self.O)) / len(true)
        for buffer, value in zip(
            (self.b, self.w, self.O, self.frequencies), (b, w, counts.frequencies(), frequencies), strict=True
        ):
            buffer.copy_(value)
        if by_prediction:
            self.share.fill_(fit_share(log_r, given, true, counts))

    @torch.no_grad()
    def refit(
        self,
        log_r: Tensor,
        given: Tensor,
        true: Tensor,
        *,
        train_margins: Tensor,
        train_wrong: Tensor,
        train_frequencies: Tensor,
        by_margin: bool = True,
    ) -> None:
        """Fit noise rate and class frequencies to clean samples and to posterior probabilities of training samples.

        Parameters
        ----------
        log_r : Tensor of shape (n, classes)
            Cross-fitted, calibrated log-probabilities of the clean samples.
        given, true : Tensor of shape (n,)
            Their given labels (−1: none) and classes. Where one has no given label, the noise rate stays as it is.
        train_margins : Tensor of shape (N,)
            Margins of training samples with a given label.
        train_wrong : Tensor of shape (N,)
            Probability by `posterior` that their given label is wrong.
        train_frequencies : Tensor of shape (classes,)
            Mean of `posterior` over the training samples; without their given labels if a clean sample has none.
        by_margin : bool, default True
            As in `fit`.
        """
        known = bool((given >= 0).all())
        posterior = self.posterior(log_r, given if known else torch.full_like(given, -1)).exp()
        classes = functional.one_hot(true, len(self.O)).to(posterior)
        frequencies = prediction_powered_mean(train_frequencies, posterior, classes).clamp_min(0.0)
        self.frequencies.copy_(frequencies / frequencies.sum())
        if known and len(train_margins):
            m, m_train, wrong, f, f_train = (
                t.double().cpu()
                for t in (margin(log_r), train_margins, given != true, wrong_probability(posterior, given), train_wrong)
            )
            scale = self._standardize if by_margin else torch.zeros_like
            predicted = Predicted(u_train=scale(m_train), train=f_train, clean=f)
            for buffer, value in zip((self.b, self.w), fit_noise_rate(scale(m), wrong, predicted), strict=True):
                buffer.copy_(value)

    @torch.no_grad()
    def align(self, log_q: Tensor, clean_samples: int) -> None:
        """Update π / q̄ with predictions of training samples; the frequencies count as much as the clean samples."""
        mean = log_q.double().exp().mean(0).clamp_min(MIN_MEAN)
        prior = PSEUDO_COUNTS * len(mean)
        pi = (clean_samples * self.frequencies.to(mean) + prior * mean) / (clean_samples + prior)
        self.shift.copy_((pi / mean).log())

    def noise_rate(self, m: Tensor) -> Tensor:
        """Return e of samples with margins m."""
        return torch.sigmoid(self.b + self.w * self._standardize(m))

    def posterior(self, log_r: Tensor, given: Tensor) -> Tensor:
        """Return log-probabilities of the classes for predictions log_r as they are: a = 1, and π / q̄ = 1."""
        return self._bayes_rule(log_r, self.noise_rate(margin(log_r)), given)

    def forward(self, log_q: Tensor, noise_rate: Tensor, given: Tensor) -> Tensor:
        """Return log ŷ of samples with predictions log_q, noise rates e and given labels (−1: none)."""
        return self._bayes_rule(functional.log_softmax(self.a * log_q + self.shift, dim=1), noise_rate, given)

    def _bayes_rule(self, log_p: Tensor, noise_rate: Tensor, given: Tensor) -> Tensor:
        y = given.clamp_min(0)
        is_given = torch.arange(len(self.O), device=given.device) == y[:, None]
        rate = noise_rate[:, None]
        p = log_p.exp()
        wrong = self.share * p.gather(1, y[:, None]) / (1 - p).clamp_min(MIN_OTHERS) + (1 - self.share) * self.O.T[y]
        likelihood = torch.where(is_given, 1 - rate, rate * wrong)
        log_likelihood = likelihood.clamp_min(MIN_LIKELIHOOD).log() * (given >= 0)[:, None]
        return functional.log_softmax(log_p + log_likelihood, dim=1)

    def _standardize(self, m: Tensor) -> Tensor:
        return (m - self.mean.to(m)) / self.std.to(m)


def same_frequencies(a: Tensor, b: Tensor, classes: int) -> bool:
    """Return whether two samples of labels may have the same class frequencies: a χ² test at a level of 0.001.

    Labels below 0 are left out. The quantile of χ² is that of Wilson and Hilferty (1931).
    """
    counts = torch.stack([torch.bincount(y[y >= 0], minlength=classes).double().cpu() for y in (a, b)])
    counts = counts[:, counts.sum(0) > 0]
    expected = counts.sum(1, keepdim=True) * counts.sum(0) / counts.sum().clamp_min(1)
    statistic = ((counts - expected) ** 2 / expected.clamp_min(torch.finfo(expected.dtype).tiny)).sum()
    spread = 2 / (9 * max(1, counts.shape[1] - 1))
    return bool(statistic <= max(1, counts.shape[1] - 1) * (1 - spread + Z_OF_LEVEL * spread**0.5) ** 3)


def margin(log_p: Tensor) -> Tensor:
    """Return the difference of the two largest log-probabilities along the last axis."""
    largest = log_p.topk(2, dim=-1).values
    return largest[..., 0] - largest[..., 1]


def wrong_probability(posterior: Tensor, given: Tensor) -> Tensor:
    """Return the probability that given labels are wrong, by class probabilities of the samples, (n, classes)."""
    return 1 - posterior.gather(1, given[:, None])[:, 0]
