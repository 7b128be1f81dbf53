"""Where wrong labels go: the average over priors, and the share that follows the prediction."""

import pytest
import torch
from scipy.special import gammaln
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.wrong_labels import CONCENTRATIONS, POOL_PSEUDO_COUNTS, SHARES, count_wrong_labels, fit_share

CLASSES = 10


def clean_samples(kind: str, n: int = 160, rate: float = 0.6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return predictions, given labels (one-hot) and true classes; wrong labels are uniform, paired or as predicted."""
    generator = torch.Generator().manual_seed(seed)
    log_r = torch.randn(n, CLASSES, generator=generator, dtype=torch.float64).mul(2).log_softmax(1)
    true = torch.multinomial(log_r.exp(), 1, generator=generator)[:, 0]
    if kind == "uniform":
        moved = (true + torch.randint(1, CLASSES, (n,), generator=generator)) % CLASSES
    elif kind == "paired":
        moved = (true + torch.where(torch.rand(n, generator=generator) < 0.8, 1, 2)) % CLASSES
    else:
        others = log_r.exp().scatter(1, true[:, None], 0.0)
        moved = torch.multinomial(others, 1, generator=generator)[:, 0]
    wrong = torch.rand(n, generator=generator) < rate
    return log_r, functional.one_hot(torch.where(wrong, moved, true), CLASSES).double(), true


def test_frequencies_are_the_average_over_priors_by_evidence() -> None:
    """Written once more with sums over classes, and SciPy's gamma function."""
    _, given, true = clean_samples("paired", n=40)
    counts = [[0.0] * CLASSES for _ in range(CLASSES)]
    for c, y in zip(true.tolist(), given.argmax(1).tolist(), strict=True):
        counts[c][y] += c != y
    evidences, means = [], []
    for base in ("uniform", "pooled"):
        for concentration in CONCENTRATIONS:
            evidence, rows = 0.0, []
            for c in range(CLASSES):
                others = [y for y in range(CLASSES) if y != c]
                mean = [1.0] * len(others)
                if base == "pooled":
                    mean = [
                        sum(counts[k][y] for k in range(CLASSES) if k != c) + POOL_PSEUDO_COUNTS / CLASSES
                        for y in others
                    ]
                alpha = [concentration * m / sum(mean) for m in mean]
                n = [counts[c][y] for y in others]
                evidence += gammaln(sum(alpha)) - gammaln(sum(alpha) + sum(n))
                evidence += sum(gammaln(a + k) - gammaln(a) for a, k in zip(alpha, n, strict=True))
                rows.append([(a + k) / (sum(alpha) + sum(n)) for a, k in zip(alpha, n, strict=True)])
            evidences.append(evidence)
            means.append(rows)
    weights = torch.tensor(evidences, dtype=torch.float64).softmax(0)
    expected = torch.einsum("p,pcy->cy", weights, torch.tensor(means, dtype=torch.float64))
    O = count_wrong_labels(given, true).frequencies()
    assert (O.diagonal() == 0).all()
    torch.testing.assert_close(O[~torch.eye(CLASSES, dtype=torch.bool)].view(CLASSES, -1), expected)


@pytest.mark.parametrize("seed", range(3))
def test_uniform_noise_gives_a_uniform_matrix_and_paired_noise_its_pairs(seed: int) -> None:
    _, given, true = clean_samples("uniform", seed=seed)
    off_diagonal = 1 - torch.eye(CLASSES, dtype=torch.float64)
    error = (count_wrong_labels(given, true).frequencies() - off_diagonal / (CLASSES - 1)).abs().sum(1).mean()
    assert error < 0.12
    _, given, true = clean_samples("paired", seed=seed)
    O = count_wrong_labels(given, true).frequencies()
    assert O[torch.arange(CLASSES), (torch.arange(CLASSES) + 1) % CLASSES].mean() > 0.55


def test_frequencies_without_a_sample_are_those_of_the_others() -> None:
    _, given, true = clean_samples("paired", n=50)
    counts = count_wrong_labels(given, true)
    without = counts.frequencies_without(given, true)
    for m in range(len(true)):
        rest = torch.arange(len(true)) != m
        moved = (
            torch.zeros(CLASSES, CLASSES, dtype=torch.float64).index_add(0, true[rest], given[rest]).fill_diagonal_(0)
        )
        row = sum(
            weight * (moved[true[m]] + prior[true[m]]) / (moved[true[m]] + prior[true[m]]).sum()
            for weight, prior in zip(counts.weights, counts.priors, strict=True)
        )
        torch.testing.assert_close(without[m], row)


def test_share_is_its_posterior_mean() -> None:
    log_r, given, true = clean_samples("predicted", n=30)
    counts = count_wrong_labels(given, true)
    by_class = counts.frequencies_without(given, true)
    shares = torch.linspace(0, 1, SHARES, dtype=torch.float64)
    posterior = torch.ones(SHARES, dtype=torch.float64)
    for m, (c, y) in enumerate(zip(true.tolist(), given.argmax(1).tolist(), strict=True)):
        if c != y:
            r = log_r[m].exp()
            posterior *= shares * r[y] / (1 - r[c]) + (1 - shares) * by_class[m, y]
    expected = float((shares * posterior).sum() / posterior.sum())
    assert fit_share(log_r, given, true, counts) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_share_tells_noise_that_follows_the_prediction_from_other_noise(seed: int) -> None:
    found = {}
    for kind in ("uniform", "paired", "predicted"):
        log_r, given, true = clean_samples(kind, seed=seed)
        found[kind] = fit_share(log_r, given, true, count_wrong_labels(given, true))
    assert found["uniform"] < 0.2
    assert found["paired"] < 0.2
    assert found["predicted"] > 0.8


def test_without_wrong_labels_the_share_is_undecided_and_the_matrix_uniform() -> None:
    log_r, _, true = clean_samples("uniform")
    given = functional.one_hot(true, CLASSES).double()
    counts = count_wrong_labels(given, true)
    assert fit_share(log_r, given, true, counts) == pytest.approx(0.5)
    off_diagonal = 1 - torch.eye(CLASSES, dtype=torch.float64)
    torch.testing.assert_close(counts.frequencies(), off_diagonal / (CLASSES - 1))


def test_two_classes_and_one() -> None:
    given = functional.one_hot(torch.tensor([0, 1, 1, 0]), 2).double()
    counts = count_wrong_labels(given, torch.tensor([0, 0, 1, 1]))
    torch.testing.assert_close(counts.frequencies(), torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    one = count_wrong_labels(torch.ones(3, 1).double(), torch.zeros(3, dtype=torch.long))
    assert torch.isfinite(one.frequencies()).all()
