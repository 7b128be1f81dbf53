"""The annotator model against a slow EM written from the formulas, an exact posterior, and its limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from metalabelnet.core import dawid_skene
from metalabelnet.core.annotations import ABSTAINED, Annotations
from metalabelnet.core.dawid_skene import fit_dawid_skene

C = 3


def simulate(seed, *, samples=60, annotators=7, asked=0.6, abstains=0.1):
    rng = np.random.default_rng(seed)
    true = rng.integers(C, size=samples)
    accuracy = rng.uniform(0.4, 0.95, annotators)
    entries = []
    for i, a in itertools.product(range(samples), range(annotators)):
        if rng.random() < asked:
            label = true[i] if rng.random() < accuracy[a] else rng.integers(C)
            entries.append((i, a, ABSTAINED if rng.random() < abstains else label))
    sample, annotator, label = np.array(entries).T
    names = tuple(f"a{a}" for a in range(annotators))
    return Annotations.from_entries(sample, annotator, label, size=samples, names=names), true


def slow_em(annotations, *, log_prior=None, true=None, shrinkage=0.0, iterations):
    """EM for Dawid and Skene's model, with a loop for each sum. Column C of a matrix is "abstained"."""
    n, K = annotations.size, len(annotations.names)
    entries = list(zip(annotations.sample, annotations.annotator, annotations.label % (C + 1), strict=True))
    q = np.zeros((n, C))
    for i, _, label in entries:
        if label < C:
            q[i, label] += 1
    q = np.array([row / row.sum() if row.sum() else np.full(C, 1 / C) for row in q])
    for _ in range(iterations):
        for i in range(n):
            if true is not None and true[i] >= 0:
                q[i] = np.eye(C)[true[i]]
        counts = np.zeros((K, C, C + 1))
        for i, a, label in entries:
            for y in range(C):
                counts[a, y, label] += q[i, y]
        pooled = counts.sum(0) + 1 / (C + 1)
        T = np.zeros_like(counts)
        for a, y in itertools.product(range(K), range(C)):
            row = counts[a, y] + shrinkage * pooled[y] / pooled[y].sum()
            T[a, y] = row / row.sum()
        frequency, likelihood = q.mean(0), np.ones((n, C))
        for i, a, label in entries:
            likelihood[i] *= T[a, :, label]
        q = likelihood * (frequency if log_prior is None else np.exp(log_prior))
        q /= q.sum(1, keepdims=True)
    return q, T


@pytest.fixture(autouse=True)
def converge(monkeypatch):
    monkeypatch.setattr(dawid_skene, "TOLERANCE", 1e-12)
    monkeypatch.setattr(dawid_skene, "MAX_ITERATIONS", 2000)


@pytest.mark.parametrize("shrinkage", [0.0, 4.0])
@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize("clean", [0, 15])
def test_equals_slow_em(shrinkage, with_prior, clean, monkeypatch):
    """Both take 30 steps from the same start."""
    monkeypatch.setattr(dawid_skene, "TOLERANCE", 0)
    monkeypatch.setattr(dawid_skene, "MAX_ITERATIONS", 30)
    annotations, true = simulate(1, samples=30, annotators=5)
    known = np.where(np.arange(len(true)) < clean, true, -1) if clean else None
    log_prior = np.log(np.random.default_rng(2).dirichlet(np.ones(C), annotations.size)) if with_prior else None
    found = fit_dawid_skene(annotations, C, log_prior=log_prior, true=known, shrinkage=shrinkage)
    q, T = slow_em(annotations, log_prior=log_prior, true=known, shrinkage=shrinkage, iterations=30)
    if clean:
        np.testing.assert_array_equal(found.posterior[:clean], np.eye(C)[true[:clean]])
    np.testing.assert_allclose(found.posterior[clean:], q[clean:], atol=1e-9)
    np.testing.assert_allclose(found.matrices, T, atol=1e-9)


def test_exact_posterior():
    """Two clean samples fix the matrices; the posterior of a third follows by Bayes' rule."""
    # Annotator a labels the clean samples 0, 1 and 2 (of classes 0, 0, 1) as 0, 1 and 1; sample 3 is labeled 0.
    table = np.array([[0], [1], [1], [0]])
    annotations = Annotations.from_array(table, ("a",))
    prior = np.log(np.array([[0.5, 0.5]] * 3 + [[0.2, 0.8]]))
    found = fit_dawid_skene(annotations, 2, log_prior=prior, true=np.array([0, 0, 1, -1]), shrinkage=0.0)
    # With r = q_3(0), T(0, 0) = (1 + r)/(2 + r) and T(1, 0) = (1 − r)/(2 − r); EM's fixed point is r = q_3(0).
    r = 0.5
    for _ in range(1000):
        right, wrong = 0.2 * (1 + r) / (2 + r), 0.8 * (1 - r) / (2 - r)
        r = right / (right + wrong)
    assert found.posterior[3, 0] == pytest.approx(r, abs=1e-9)


def test_likelihood_leaves_out_the_sample():
    """The likelihood of a clean sample equals that by matrices counted without the sample."""
    annotations, true = simulate(3, samples=30)
    found = fit_dawid_skene(annotations, C, true=true, shrinkage=2.0)
    likelihood = found.log_likelihood(annotations)
    labels = annotations.label % (C + 1)
    for i in (0, 7, 29):
        expected = np.zeros(C)
        for entry in np.flatnonzero(annotations.sample == i):
            a, label = annotations.annotator[entry], labels[entry]
            others = (annotations.annotator == a) & (annotations.sample != i)
            for y in range(C):
                mine = others & (true[annotations.sample] == y)
                right = (labels[mine] == label).sum() + 2.0 * found.pooled[y, label]
                expected[y] += np.log(right / (mine.sum() + 2.0))
        np.testing.assert_allclose(likelihood[i], expected)


def test_order_and_names_do_not_matter():
    annotations, true = simulate(4)
    rng = np.random.default_rng(0)
    samples, annotators = rng.permutation(annotations.size), rng.permutation(len(annotations.names))
    entries = rng.permutation(len(annotations))
    other = Annotations.from_entries(
        samples[annotations.sample][entries],
        annotators[annotations.annotator][entries],
        annotations.label[entries],
        size=annotations.size,
        names=tuple("gfedcba"),
    )
    known = np.where(true == 0, true, -1)
    shuffled = np.empty_like(known)
    shuffled[samples] = known
    one, two = fit_dawid_skene(annotations, C, true=known), fit_dawid_skene(other, C, true=shuffled)
    np.testing.assert_allclose(two.posterior[samples], one.posterior, atol=1e-9)
    np.testing.assert_allclose(two.matrices[annotators], one.matrices, atol=1e-9)
    np.testing.assert_allclose(two.log_likelihood(other)[samples], one.log_likelihood(annotations), atol=1e-9)


def test_limits_of_shrinkage():
    """An annotator with one label has nearly the pooled matrix; one with many has his own."""
    annotations, true = simulate(5, samples=3000, annotators=4, asked=1.0, abstains=0.0)
    keep = (annotations.annotator != 3) | (annotations.sample == 0)
    few = Annotations.from_entries(
        *(values[keep] for values in (annotations.sample, annotations.annotator, annotations.label)),
        size=annotations.size,
        names=annotations.names,
    )
    found = fit_dawid_skene(few, C, true=true, shrinkage=10.0)
    assert np.abs(found.matrices[3] - found.pooled).max() < 1 / 11
    own = fit_dawid_skene(few, C, true=true, shrinkage=0.0)
    assert np.abs(found.matrices[:3] - own.matrices[:3]).max() < 0.01


def test_finds_good_and_bad_annotators():
    """Matrices estimated without any true label are close to those counted with all of them."""
    annotations, true = simulate(6, samples=2000, annotators=8, asked=0.8)
    found = fit_dawid_skene(annotations, C)
    counted = fit_dawid_skene(annotations, C, true=true)
    assert np.abs(found.matrices - counted.matrices).max() < 0.06
    votes = annotations.majority_vote(C)
    assert (found.posterior.argmax(1) == true).mean() > (votes == true).mean()


def test_sample_without_annotations_has_the_prior():
    annotations = Annotations.from_array(np.array([[0, 0], [1, 1], [-1, -1]]), ("a", "b"))
    prior = np.log([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]])
    found = fit_dawid_skene(annotations, 2, log_prior=prior)
    np.testing.assert_allclose(found.posterior[2], [0.9, 0.1])
    np.testing.assert_array_equal(found.log_likelihood(annotations)[2], 0)


def test_abstaining_is_evidence():
    """An annotator who abstains on class 1 alone says so by abstaining."""
    label = np.array([0] * 20 + [ABSTAINED] * 20)
    annotations = Annotations.from_entries(np.arange(40), np.zeros(40, int), label, size=40, names=("rule",))
    true = np.where(np.arange(40) % 20 < 15, np.arange(40) // 20, -1)
    found = fit_dawid_skene(annotations, 2, true=true)
    assert found.posterior[18, 0] > 0.9
    assert found.posterior[38, 1] > 0.9
