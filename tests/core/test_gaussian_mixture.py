"""The two-component mixture against scikit-learn, and its split against all splits."""

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from metalabelnet.core.gaussian_mixture import TwoGaussians, _two_means, fit_two_gaussians


def losses(seed: int, share: float = 0.6) -> Tensor:
    """Return skewed values in [0, 1], a share of them small, as losses are."""
    random = np.random.default_rng(seed)
    small, large = random.exponential(0.1, 1000), random.normal(0.6, 0.15, 1000)
    values = np.where(np.arange(1000) < share * 1000, small, large)
    return torch.from_numpy((values - values.min()) / (values.max() - values.min()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("iterations", [1, 10])
def test_em_equals_scikit_learn_from_the_same_start(seed: int, iterations: int) -> None:
    """scikit-learn starts with an M step on the responsibilities of 2-means, too."""
    x = losses(seed)
    start = fit_two_gaussians(x, iterations=0)
    reference = GaussianMixture(
        2,
        tol=0,
        max_iter=iterations,
        reg_covar=5e-4,
        weights_init=start.weights.numpy(),
        means_init=start.means.numpy()[:, None],
        precisions_init=1 / start.variances.numpy()[:, None, None],
    )
    with pytest.warns(UserWarning, match="did not converge"):
        reference.fit(x[:, None].numpy())
    ours = fit_two_gaussians(x, iterations=iterations)
    np.testing.assert_allclose(ours.weights, reference.weights_, rtol=1e-9)
    np.testing.assert_allclose(ours.means, reference.means_[:, 0], rtol=1e-9)
    np.testing.assert_allclose(ours.variances, reference.covariances_[:, 0, 0], rtol=1e-9)
    probabilities = reference.predict_proba(x[:, None].numpy())
    np.testing.assert_allclose(ours.responsibilities(x), probabilities, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_split_is_that_of_scikit_learn_with_its_own_start(share: float) -> None:
    """With the settings of DivideMix's code, whose k-means start and tolerance differ."""
    x = losses(7, share)
    reference = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(x[:, None].numpy())
    theirs = reference.predict_proba(x[:, None].numpy())[:, reference.means_.argmin()] > 0.5
    ours = fit_two_gaussians(x).responsibilities(x)[:, 0] > 0.5
    assert (ours.numpy() == theirs).mean() > 0.97


def test_start_has_the_least_sum_of_squares_of_all_splits() -> None:
    x = losses(3)[torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:40]]
    ordered = x.sort().values

    def squares(group: Tensor) -> float:
        return float(((group - group.mean()) ** 2).sum())

    best = min(range(1, 40), key=lambda k: squares(ordered[:k]) + squares(ordered[k:]))
    assert torch.equal(_two_means(x)[:, 0].bool(), x < ordered[best])


@pytest.mark.parametrize("values", [torch.zeros(5), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])])
def test_degenerate_values_give_probabilities(values: Tensor) -> None:
    mixture = fit_two_gaussians(values)
    assert isinstance(mixture, TwoGaussians)
    probabilities = mixture.responsibilities(values)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(values)))
    assert mixture.means[0] <= mixture.means[1]
