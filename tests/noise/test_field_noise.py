"""Symmetric, asymmetric and instance-dependent noise against their definitions, within 4.5 standard errors."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.data.benchmarks.cifar import CIFAR100
from metalabelnet.errors import InputError
from metalabelnet.noise import Noise, actual_noise_rate, asymmetric_targets, corrupt, symmetric_noise
from metalabelnet.noise import instance_dependent as module
from metalabelnet.noise.class_dependent import CIFAR10_CLASSES
from metalabelnet.noise.instance_dependent import (
    draw_flip_rates,
    draw_labels,
    instance_dependent_noise,
    wrong_label_probabilities,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def count_matrix(true: Tensor, given: Tensor, classes: int) -> Tensor:
    return torch.bincount(true * classes + given, minlength=classes**2).view(classes, classes)


# --- symmetric ----------------------------------------------------------------------------


def test_symmetric_noise_draws_from_all_classes() -> None:
    """T = (1 − r) I + r/C: the true class is among those that are drawn."""
    classes, rate, n = 4, 0.6, 20000
    true = torch.arange(classes).repeat_interleave(n)
    counts = count_matrix(true, symmetric_noise(true, classes, rate, rng()), classes)
    p = torch.full((classes, classes), rate / classes) + (1 - rate) * torch.eye(classes)
    assert ((counts - n * p).abs() < 4.5 * (n * p * (1 - p)).sqrt()).all()


def test_symmetric_noise_redraws_an_exact_count() -> None:
    """With many classes nearly every redrawn label is wrong, and no more than int(n·rate) are."""
    true = torch.full((1000,), 7)
    true[::10] = -1
    given = symmetric_noise(true, 10**9, 0.29, rng())
    assert int((given != true).sum()) == int(900 * 0.29)
    assert (given[::10] == -1).all()


# --- asymmetric ---------------------------------------------------------------------------


def test_asymmetric_noise_on_cifar10() -> None:
    true = torch.arange(10).repeat(1000)
    counts = count_matrix(true, corrupt(Noise.parse("asymmetric:0.4"), true, CIFAR10_CLASSES, rng()), 10)
    expected = 1000 * torch.eye(10).long()
    for source, target in ((9, 1), (2, 0), (4, 7), (3, 5), (5, 3)):  # the numbers in the public code of DivideMix
        expected[source, source], expected[source, target] = 600, 400
    assert torch.equal(counts, expected)


def test_asymmetric_noise_on_cifar100_stays_in_the_superclass() -> None:
    """The superclass of each label, in the order of labels, as published with CIFAR-100."""
    coarse = torch.tensor([
        4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15,
        0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17,
        10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19,
        18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
    ])  # fmt: skip
    targets = asymmetric_targets(CIFAR100.classes)
    assert sorted(targets) == sorted(targets.values()) == list(range(100))
    for source, target in targets.items():
        members = (coarse == coarse[source]).nonzero()[:, 0].tolist()
        assert len(members) == 5
        assert target == members[(members.index(source) + 1) % 5]
    true = torch.arange(100).repeat(10)
    given = corrupt(Noise.parse("asymmetric:0.4"), true, CIFAR100.classes, rng())
    assert actual_noise_rate(true, given) == 0.4
    assert all(targets[int(a)] == int(b) for a, b in zip(true, given, strict=True) if a != b)


def test_asymmetric_noise_elsewhere_raises_input_error() -> None:
    with pytest.raises(InputError, match="defined for the classes of cifar10 and cifar100, and the data has 3 others"):
        corrupt(Noise.parse("asymmetric:0.4"), torch.tensor([0, 1]), ("a", "b", "c"), rng())


# --- instance-dependent -------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.97])
def test_flip_rates_are_truncated_normal(rate: float) -> None:
    from scipy import stats

    distribution = stats.truncnorm(-rate / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    rates = draw_flip_rates(20000, rate, rng()).numpy()
    assert 0 <= rates.min() <= rates.max() <= 1
    assert abs(rates.mean() - distribution.mean()) < 4.5 * distribution.std() / math.sqrt(20000)
    assert stats.kstest(rates, distribution.cdf).pvalue > 1e-5


def test_wrong_label_probabilities_equal_the_formula() -> None:
    x, projection = (
        torch.randn(5, 3, generator=rng(), dtype=torch.float64),
        torch.randn(3, 4, generator=rng(1)).double(),
    )
    p = wrong_label_probabilities(x, 2, projection)
    for i in range(5):
        exponentials = [
            0.0 if j == 2 else math.exp(sum(x[i, k] * projection[k, j] for k in range(3))) for j in range(4)
        ]
        np.testing.assert_allclose(p[i], np.array(exponentials) / sum(exponentials), rtol=1e-12)


def test_labels_are_drawn_with_their_probabilities() -> None:
    p = torch.tensor([0.2, 0.0, 0.5, 0.3], dtype=torch.float64)
    position = torch.rand(50000, generator=rng(), dtype=torch.float64)
    counts = torch.bincount(draw_labels(p.expand(50000, 4), position), minlength=4)
    assert ((counts - 50000 * p).abs() <= 4.5 * (50000 * p * (1 - p)).sqrt()).all()
    assert draw_labels(p[None], torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [3]
    assert draw_labels(torch.tensor([[0.0, 1.0]]), torch.tensor([0.0])).tolist() == [1]


def test_instance_noise_has_the_rate_and_its_own_labels_for_each_sample() -> None:
    """Equal samples of a class get wrong labels from one distribution; over projections all classes are as likely."""
    classes, n = 4, 4000
    true = torch.arange(classes).repeat(n)
    x = torch.ones(classes * n, 3)  # all samples are equal: x W is N(0, 3) for each class
    totals = torch.zeros(classes, classes)
    spread = 0.0
    for seed in range(30):
        given = instance_dependent_noise(true, x.__getitem__, classes, 0.4, rng(seed))
        rate = actual_noise_rate(true, given)
        assert abs(rate - 0.4) < 4.5 * math.sqrt(0.24 / len(true))
        counts = count_matrix(true, given, classes).float()
        totals += counts / n / 30
        shares = counts[~torch.eye(classes, dtype=torch.bool)] / n / 0.4
        spread += float(shares.var()) / 30
    wrong = totals[~torch.eye(classes, dtype=torch.bool)] / 0.4
    assert spread > 0.05  # one distribution per class and seed, far from uniform
    assert (wrong - 1 / 3).abs().max() < 4.5 * math.sqrt(spread / 30)


def test_pixels_of_images_decide_the_wrong_label() -> None:
    """Copies of an image get the same wrong label, other images of the class others."""
    images = torch.randint(0, 256, (6, 1, 8, 8), generator=rng()).to(torch.uint8)
    x, true = images.repeat_interleave(50, 0), torch.zeros(300).long()
    given = instance_dependent_noise(true, x.__getitem__, 10, 0.5, rng())
    wrong = [set(part[part != 0].tolist()) for part in given.split(50)]
    assert all(len(labels) == 1 for labels in wrong)
    assert len(set.union(*wrong)) > 1


def test_instance_noise_does_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    true = torch.randint(-1, 3, (200,), generator=rng())
    x = torch.randn(200, 5, generator=rng(1))
    expected = instance_dependent_noise(true, x.__getitem__, 3, 0.5, rng())
    monkeypatch.setattr(module, "CHUNK_VALUES", 15)  # three rows
    assert torch.equal(instance_dependent_noise(true, x.__getitem__, 3, 0.5, rng()), expected)
    assert not torch.equal(instance_dependent_noise(true, x.__getitem__, 3, 0.5, rng(2)), expected)
