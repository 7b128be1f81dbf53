"""The label pool: its limits, and its fit against SciPy's optimizer."""

import numpy as np
import scipy.optimize

from metalabelnet.core.label_pool import LabelPool, fit_label_pool
from metalabelnet.core.logistic import log_softmax, logits


def example(n=80, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, n)
    good = 2.0 * np.eye(classes)[true] + rng.normal(size=(n, classes))
    useless = rng.normal(size=(n, classes))
    return np.stack([log_softmax(good), log_softmax(useless)]), true


def test_fit_minimizes_the_penalized_cross_entropy():
    opinions, true = example()

    def objective(values):
        log_q = log_softmax(np.tensordot(values[:2], opinions, 1) + values[2:])
        prior = np.array([1.0, 1, 0, 0, 0])
        return -log_q[np.arange(len(true)), true].sum() + ((values - prior) ** 2).sum()

    expected = scipy.optimize.minimize(objective, np.array([1.0, 1, 0, 0, 0]), tol=1e-12).x
    pool = fit_label_pool(opinions, true)
    np.testing.assert_allclose([*pool.trust, *pool.bias], expected, atol=1e-4)


def test_trust_in_a_useless_opinion_vanishes_with_many_samples():
    opinions, true = example(n=5000)
    pool = fit_label_pool(opinions, true)
    assert pool.trust[0] > 1
    assert abs(pool.trust[1]) < 0.1


def test_trust_in_one_classifier_and_the_noise_matrix_is_bayes_rule():
    p, T = np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([[0.9, 0.1], [0.3, 0.7]])
    given = np.array([0, 1])
    opinions = np.stack([np.log(p), np.log(T[:, given].T)])
    q = LabelPool(np.ones(2), np.zeros(2)).soft_labels(opinions)
    joint = p * T[:, given].T
    np.testing.assert_allclose(q, joint / joint.sum(1, keepdims=True))


def test_large_trust_in_the_noise_matrix_alone_gives_the_given_labels():
    T, given = np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([0, 1, 1])
    opinions = np.stack([np.log(np.full((3, 2), 0.5)), np.log(T[:, given].T)])
    np.testing.assert_allclose(
        LabelPool(np.array([0.0, 50]), np.zeros(2)).soft_labels(opinions), np.eye(2)[given], atol=1e-9
    )


def test_opinions_that_say_nothing_keep_the_prior():
    pool = fit_label_pool(np.zeros((2, 10, 3)), np.arange(10) % 3)
    np.testing.assert_allclose(pool.trust, 1)


def test_pool_of_linear_classifiers_is_a_linear_classifier():
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(5, 6)), [rng.normal(size=(7, 3)), rng.normal(size=(7, 3))]
    pool = LabelPool(np.array([1.7, 0.4]), np.array([0.1, -0.3, 0.2]))
    before = W[0].copy()
    pooled = pool.logits(np.stack([log_softmax(logits(X, one)) for one in W]))
    np.testing.assert_allclose(log_softmax(logits(X, pool.coefficients(W))), log_softmax(pooled))
    np.testing.assert_array_equal(W[0], before)
