"""A label net with few weights: Bayes' rule for a prediction and a given label whose noise depends on the sample.

    ŷ_c      ∝ p_c P(y | c, x),  p ∝ q(x)^a π / q̄
    P(y | c, x) = 1 − e'                                 if y = c
                  e' (λ p_y / (1 − p_c) + (1 − λ) O_cy)    otherwise
    e'       = min(e(x), l)
    e(x)     = σ(b + w u(x)),  u(x) = (m(x) − μ) / s

    q, q̄     a prediction for the sample x, and the mean of the predictions of the training samples
    a        an exponent, not learned: below 1, because predictions for samples that are trained on are too certain
    π        the class frequencies
    y        its given label; P = 1 for a sample without one
    m(x)     the margin of a prediction r: the difference of the two largest log-probabilities
    e(x)     the probability that the given label of x is wrong
    l        a limit of e(x), 1 unless `limit_rate` sets it
    λ        the part of wrong labels that follow the prediction: the class that x looks like
    O_cy     the probability that another wrong label of class c is y; 0 on the diagonal

The weights b, w, λ and O are fitted to the true and given labels of the clean samples: logistic regression of "the
given label is wrong" on the margin (`core.noise_rate`), and where wrong labels go (`core.wrong_labels`). All are
regularized toward the initial weights, because clean samples are few. r must not be fitted to the sample it predicts,
or the margin is too large: use cross-fitted predictions, with calibrated probabilities.

Bayes' rule with these weights then gives each training sample a probability that its given label is wrong, and
`refit_noise_rate` fits b and w to these too.

π is the frequency of each class in the clean set, regularized toward q̄. q̄ changes in training, and `align` updates
π / q̄ (distribution alignment, Berthelot et al. 2020, https://arxiv.org/abs/1911.09785). This assumes clean samples that
are drawn like the training samples; `same_frequencies` tests it by their given labels.

Noise that follows the features is wrong near the decision boundary and right far from it, and confuses each sample with
the class that it looks like; one noise rate and one matrix for all cannot express that, a margin and λ can.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.core.noise_rate import Predicted, fit_noise_rate
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
    limit : Tensor
        l.
    share : Tensor
        λ, the part of wrong labels that follow the prediction.
    O : Tensor of shape (classes, classes)
        Where other wrong labels go.
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
    limit: Tensor
    share: Tensor
    O: Tensor
    shift: Tensor

    def __init__(self, classes: int, exponent: float = 1.0) -> None:
        super().__init__()
        for name, value in (("a", exponent), ("b", 0), ("w", 0), ("mean", 0), ("std", 1), ("limit", 1), ("share", 0)):
            self.register_buffer(name, torch.tensor(float(value)))
        uniform = torch.full((classes, classes), 1 / max(1, classes - 1))
        self.register_buffer("O", uniform.fill_diagonal_(0.0))
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
        mean, std = m.mean(), m.std(correction=0).clamp_min(1e-6)
        u = (m - mean) / std if by_margin else torch.zeros_like(m)
        b, w = fit_noise_rate(u, wrong)
        counts = count_wrong_labels(given, true)
        for buffer, value in zip(
            (self.b, self.w, self.mean, self.std, self.O), (b, w, mean, std, counts.frequencies()), strict=True
        ):
            buffer.copy_(value)
        if by_prediction:
            self.share.fill_(fit_share(log_r, given, true, counts))

    @torch.no_grad()
    def refit_noise_rate(
        self,
        log_r: Tensor,
        given: Tensor,
        true: Tensor,
        *,
        train_margins: Tensor,
        train_wrong: Tensor,
        by_margin: bool = True,
    ) -> None:
        """Fit b and w again, to clean samples and to what Bayes' rule says of training samples.

        Parameters
        ----------
        log_r, given, true
            As in `fit`, with given labels of shape (n,), all of them known.
        train_margins : Tensor of shape (N,)
            Margins of predictions for training samples.
        train_wrong : Tensor of shape (N,)
            Their probability by `wrong_probability`.
        by_margin : bool, default True
            As in `fit`.
        """
        scale = self._standardize if by_margin else torch.zeros_like
        predicted = Predicted(
            u_train=scale(train_margins).double().cpu(),
            train=train_wrong.double().cpu(),
            clean=self.wrong_probability(log_r, given).double().cpu(),
        )
        u, wrong = scale(margin(log_r)).double().cpu(), (given != true).double().cpu()
        for buffer, value in zip((self.b, self.w), fit_noise_rate(u, wrong, predicted), strict=True):
            buffer.copy_(value)

    @torch.no_grad()
    def align(self, log_q: Tensor, true: Tensor) -> None:
        """Update π / q̄ with predictions of training samples and the classes of clean samples."""
        mean = log_q.double().exp().mean(0).clamp_min(MIN_MEAN)
        prior = PSEUDO_COUNTS * len(mean)
        pi = (torch.bincount(true, minlength=len(mean)).to(mean) + prior * mean) / (len(true) + prior)
        self.shift.copy_((pi / mean).log())

    @torch.no_grad()
    def limit_rate(self, mean_rate: float, floor: float) -> None:
        """Let given labels count at least as if the part `floor` of them were right, if wrong ones average out.

        They do if samples that look alike have the right label more often than any wrong one. To trust wrong labels too
        much then does little harm, and to trust right ones too little leaves predictions that confirm themselves. Wrong
        labels that follow the prediction, or that go from one class to one other, are the most frequent wrong label.
        """
        most_frequent = mean_rate * float(self.share + (1 - self.share) * self.O.max(1).values.mean())
        self.limit.fill_(1 - floor if 1 - mean_rate > most_frequent else 1.0)

    def noise_rate(self, m: Tensor) -> Tensor:
        """Return e of samples whose predictions r have the margins m."""
        return torch.sigmoid(self.b + self.w * self._standardize(m))

    def wrong_probability(self, log_r: Tensor, given: Tensor) -> Tensor:
        """Return the probability that given labels are wrong, (N,), for calibrated predictions log_r: p = r."""
        log_posterior = self._bayes_rule(log_r, self.noise_rate(margin(log_r)), given)
        return 1 - log_posterior.gather(1, given[:, None])[:, 0].exp()

    def forward(self, log_q: Tensor, noise_rate: Tensor, given: Tensor) -> Tensor:
        """Return log ŷ of samples with predictions log_q, noise rates e and given labels (−1: none)."""
        log_p = functional.log_softmax(self.a * log_q + self.shift, dim=1)
        return self._bayes_rule(log_p, torch.minimum(noise_rate, self.limit), given)

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
        return (m - self.mean) / self.std


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
    """Return the difference of the two largest log-probabilities of each row."""
    largest = log_p.topk(2, dim=1).values
    return largest[:, 0] - largest[:, 1]
