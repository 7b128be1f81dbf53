"""The label net of metalabelnet-plus: Bayes' rule, and weights fitted by maximum likelihood."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.bayes_label_net import MIN_LIKELIHOOD, PSEUDO_COUNTS, BayesLabelNet, margin, same_frequencies
from metalabelnet.core.noise_rate import Predicted, fit_noise_rate
from metalabelnet.core.wrong_labels import count_wrong_labels, fit_share


def predictions(n: int, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and true classes drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    log_r = torch.randn(n, classes, generator=generator, dtype=torch.float64).mul(2).log_softmax(1)
    return log_r, torch.multinomial(log_r.exp(), 1, generator=generator)[:, 0]


def noisy(true: Tensor, rate: Tensor, classes: int = 4, seed: int = 1) -> Tensor:
    """Return labels of which a given rate moved to the next class."""
    wrong = torch.rand(len(true), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) < rate
    return torch.where(wrong, (true + 1) % classes, true)


def one_hot(given: Tensor, classes: int = 4) -> Tensor:
    return functional.one_hot(given, classes).double()


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_soft_labels_are_bayes_rule(share: float) -> None:
    net = BayesLabelNet(3, 1.5).double()
    net.share.fill_(share)
    net.shift.copy_(torch.tensor([0.3, -0.2, 0.0]))
    net.O.copy_(torch.tensor([[0, 0.7, 0.3], [0.4, 0, 0.6], [0.2, 0.8, 0]]))
    q, given, rate = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]), [1, 2, -1], [0.2, 0.4, 0.3]
    result = net(q.double().log(), torch.tensor(rate).double(), torch.tensor(given)).exp()
    for row in range(3):
        p = [float(q[row, c]) ** 1.5 * math.exp(float(net.shift[c])) for c in range(3)]
        unnormalized = []
        for c in range(3):
            y, e = given[row], rate[row]
            wrong = share * p[y] / (sum(p) - p[c]) + (1 - share) * float(net.O[c, y])
            likelihood = 1.0 if y < 0 else 1 - e if y == c else e * wrong
            unnormalized.append(p[c] * likelihood)
        expected = torch.tensor([value / sum(unnormalized) for value in unnormalized]).double()
        torch.testing.assert_close(result[row], expected, rtol=1e-6, atol=1e-7)


def test_initial_weights_take_half_of_the_labels_for_wrong() -> None:
    net = BayesLabelNet(5)
    log_q = torch.randn(7, 5).log_softmax(1)
    assert torch.equal(net.noise_rate(margin(log_q)), torch.full((7,), 0.5))
    assert torch.equal(net.O.sum(1), torch.ones(5))
    assert torch.equal(net.O.diagonal(), torch.zeros(5))
    torch.testing.assert_close(net(log_q, torch.full((7,), 0.5), torch.full((7,), -1)), log_q)


def test_a_certain_given_label_does_not_rule_out_other_classes() -> None:
    net = BayesLabelNet(3)
    result = net(torch.full((1, 3), 1 / 3).log(), torch.zeros(1), torch.tensor([0]))[0]
    torch.testing.assert_close(result[1] - result[0], torch.tensor(math.log(MIN_LIKELIHOOD)))


def test_margin_is_the_difference_of_the_two_largest() -> None:
    torch.testing.assert_close(margin(torch.tensor([[0.1, 0.7, 0.2]]).log()), torch.tensor([math.log(3.5)]))


def test_noise_rate_equals_logistic_regression() -> None:
    """With the prior as scikit-learn has it: two more samples, and half the squared slope."""
    log_r, true = predictions(150)
    m = margin(log_r)
    given = noisy(true, torch.sigmoid(1 - m))
    net = BayesLabelNet(4).double()
    net.fit(log_r, one_hot(given), true)
    u = (m - m.mean()) / m.std(correction=0)
    wrong = torch.cat([(given != true).long(), torch.tensor([0, 1])])
    x = torch.cat([u, torch.zeros(2, dtype=u.dtype)])[:, None]
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(x.numpy(), wrong.numpy())
    torch.testing.assert_close(net.b, torch.tensor(reference.intercept_[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net.w, torch.tensor(reference.coef_[0, 0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        net.noise_rate(m), torch.tensor(reference.predict_proba(u[:, None].numpy())[:, 1]), rtol=1e-4, atol=1e-5
    )


def test_noise_that_follows_the_margin_is_found() -> None:
    log_r, true = predictions(4000)
    rate = torch.sigmoid(1.5 - 1.2 * margin(log_r))
    net = BayesLabelNet(4).double()
    net.fit(log_r, one_hot(noisy(true, rate)), true)
    assert (net.noise_rate(margin(log_r)) - rate).abs().mean() < 0.02
    net.fit(log_r, one_hot(noisy(true, rate)), true, by_margin=False)
    assert float(net.w) == 0
    torch.testing.assert_close(net.noise_rate(margin(log_r))[0], rate.mean(), rtol=0.05, atol=0)


def test_where_wrong_labels_go_is_fitted() -> None:
    log_r, true = predictions(60)
    given = one_hot(noisy(true, torch.full((60,), 0.5, dtype=torch.float64)))
    net = BayesLabelNet(4, 0.7).double()
    net.fit(log_r, given, true)
    counts = count_wrong_labels(given, true)
    torch.testing.assert_close(net.O, counts.frequencies())
    assert float(net.share) == pytest.approx(fit_share(log_r, given, true, counts))
    assert 0 < float(net.share) < 1
    assert float(net.a) == pytest.approx(0.7)
    other = BayesLabelNet(4).double()
    other.fit(log_r, given, true, by_prediction=False)
    assert float(other.share) == 0


def fitted(log_r: Tensor, given: Tensor, true: Tensor) -> BayesLabelNet:
    net = BayesLabelNet(4, 0.7).double()
    net.fit(log_r, one_hot(given), true)
    net.shift.copy_(torch.tensor([0.5, 0, 0, -0.5]))
    net.limit.fill_(0.3)
    return net


def test_probability_of_a_wrong_label_is_that_of_bayes_rule_for_the_prediction_as_it_is() -> None:
    log_r, true = predictions(60)
    given = noisy(true, torch.full((60,), 0.5, dtype=torch.float64))
    net = fitted(log_r, given, true)
    plain = BayesLabelNet(4, 1.0).double()
    plain.load_state_dict(net.state_dict() | {name: getattr(plain, name) for name in ("a", "shift", "limit")})
    labels = plain(log_r, net.noise_rate(margin(log_r)), given).exp()
    torch.testing.assert_close(net.wrong_probability(log_r, given), 1 - labels[torch.arange(60), given])


@pytest.mark.parametrize("by_margin", [True, False])
def test_training_samples_take_part_in_the_noise_rate(by_margin: bool) -> None:
    (log_r, true), (train, _) = predictions(60), predictions(500, seed=5)
    given = noisy(true, torch.full((60,), 0.5, dtype=torch.float64))
    net = fitted(log_r, given, true)
    f, before = net.wrong_probability(log_r, given), {name: value.clone() for name, value in net.state_dict().items()}
    margins, wrong = margin(train), torch.rand(500, dtype=torch.float64)
    net.refit_noise_rate(log_r, given, true, train_margins=margins, train_wrong=wrong, by_margin=by_margin)
    u, u_train = ((m - before["mean"]) / before["std"] * by_margin for m in (margin(log_r), margins))
    b, w = fit_noise_rate(u, (given != true).double(), Predicted(u_train=u_train, train=wrong, clean=f))
    torch.testing.assert_close((net.b, net.w), (b, w))
    for name in before.keys() - {"b", "w"}:
        assert torch.equal(net.get_buffer(name), before[name])


@pytest.mark.parametrize(
    ("share", "mean_rate", "limit"),
    [(0.0, 0.6, 0.7), (0.0, 0.7, 1.0), (1.0, 0.49, 0.7), (1.0, 0.51, 1.0), (0.5, 0.5, 0.7), (0.5, 0.6, 1.0)],
)
def test_noise_rate_is_limited_if_right_labels_are_more_frequent_than_any_wrong_one(
    share: float, mean_rate: float, limit: float
) -> None:
    """Half of the wrong labels of each class go to one other: 1 − e against e (λ + (1 − λ) / 2)."""
    net = BayesLabelNet(3)
    net.share.fill_(share)
    net.limit_rate(mean_rate, 0.3)
    assert float(net.limit) == pytest.approx(limit)
    net.O.copy_(torch.eye(3).roll(1, 1))
    net.limit_rate(mean_rate, 0.3)
    assert float(net.limit) == (pytest.approx(0.7) if mean_rate < 0.5 else 1)


def test_labels_are_those_of_the_limit_where_the_noise_rate_is_higher() -> None:
    net, log_q, given = BayesLabelNet(3), torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([1])
    at_limit, below = net(log_q, torch.tensor([0.6]), given), net(log_q, torch.tensor([0.2]), given)
    net.limit.fill_(0.6)
    assert torch.equal(net(log_q, torch.tensor([0.9]), given), at_limit)
    assert torch.equal(net(log_q, torch.tensor([0.2]), given), below)


def test_a_certain_prediction_gives_finite_labels() -> None:
    net = BayesLabelNet(3)
    net.share.fill_(1.0)
    result = net(torch.tensor([[0.0, -1e4, -1e4]]), torch.tensor([0.5]), torch.tensor([1]))
    assert torch.isfinite(result[:, :2]).all()
    assert result.argmax(1).item() == 0


def test_mean_prediction_is_aligned_with_the_class_frequencies() -> None:
    q = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]], dtype=torch.float64)
    true = torch.tensor([0, 2, 2, 1, 2])
    net = BayesLabelNet(3).double()
    net.align(q.log(), true)
    for c, (count, mean) in enumerate(zip([1, 1, 3], [0.4, 0.5, 0.1], strict=True)):
        frequency = (count + 3 * PSEUDO_COUNTS * mean) / (5 + 3 * PSEUDO_COUNTS)
        assert float(net.shift[c]) == pytest.approx(math.log(frequency / mean))


def test_many_clean_samples_correct_a_class_that_is_predicted_too_often() -> None:
    _, true = predictions(6000, seed=3)
    log_q = predictions(2000)[0]
    biased = (log_q + torch.tensor([1.0, 0, 0, 0])).log_softmax(1)
    net = BayesLabelNet(4).double()
    net.align(biased, true)
    labels = net(biased, torch.full((2000,), 0.5, dtype=torch.float64), torch.full((2000,), -1)).exp()
    frequency = torch.bincount(true) / len(true)
    assert (labels.mean(0) - frequency).abs().max() < 0.5 * (biased.exp().mean(0) - frequency).abs().max()


@pytest.mark.parametrize("counts", [[[30, 50, 20], [310, 460, 230]], [[9, 1], [60, 40]], [[4, 0, 6], [50, 0, 50]]])
@pytest.mark.parametrize("factor", [1, 2, 5, 12])
def test_same_frequencies_is_the_chi_squared_test(counts: list[list[int]], factor: int) -> None:
    a, b = (torch.repeat_interleave(torch.arange(len(n)), torch.tensor(n) * factor) for n in counts)
    used = np.array(counts)[:, np.array(counts).sum(0) > 0] * factor
    p = stats.chi2_contingency(used, correction=False).pvalue
    assert same_frequencies(a, b, 4) == (p >= 0.001)
    assert same_frequencies(torch.cat([a, torch.full((99,), -1)]), b, 4) == (p >= 0.001)


def test_no_labels_do_not_contradict() -> None:
    assert same_frequencies(torch.tensor([-1, -1]), torch.tensor([0, 1, 1]), 2)
    assert same_frequencies(torch.tensor([0]), torch.tensor([0, 0]), 1)


def test_a_class_that_is_never_predicted_has_a_finite_shift() -> None:
    net = BayesLabelNet(2)
    net.align(torch.tensor([[0.0, -1e4]]), torch.tensor([1, 1, 0]))
    assert torch.isfinite(net.shift).all()


def test_predicted_given_labels_stand_in_for_unknown_ones() -> None:
    """A distribution over given labels counts as much as that many samples."""
    log_r, true = predictions(50)
    p = torch.full((50, 4), 0.25, dtype=torch.float64)
    net = BayesLabelNet(4).double()
    net.fit(log_r, p, true, by_margin=False)
    torch.testing.assert_close(
        net.noise_rate(margin(log_r))[0], torch.tensor((0.75 * 50 + 1) / 52, dtype=torch.float64)
    )


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_few_samples_that_agree_do_not_make_it_certain(rate: float) -> None:
    log_r, true = predictions(5)
    net = BayesLabelNet(4).double()
    net.fit(log_r, one_hot(noisy(true, torch.full((5,), rate, dtype=torch.float64))), true)
    assert (net.noise_rate(log_r) > 0.02).all()
    assert (net.noise_rate(log_r) < 0.98).all()
    assert all(torch.isfinite(buffer).all() for buffer in net.buffers())


def test_two_classes() -> None:
    log_r, true = predictions(20, classes=2)
    net = BayesLabelNet(2).double()
    net.fit(log_r, one_hot(noisy(true, torch.full((20,), 0.3), classes=2), 2), true)
    torch.testing.assert_close(net.O, torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
