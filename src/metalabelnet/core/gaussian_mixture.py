"""A mixture of two normal distributions in one dimension, fitted by EM.

    r_ik = w_k N(x_i; μ_k, σ²_k) / Σ_j w_j N(x_i; μ_j, σ²_j)       E step: responsibility of component k for value i
    n_k = Σ_i r_ik,   w_k = n_k/n                                   M step
    μ_k = Σ_i r_ik x_i / n_k
    σ²_k = Σ_i r_ik (x_i − μ_k)² / n_k + ε

EM starts from the split of the sorted values into two groups with the least sum of squares, the exact solution of
2-means in one dimension. The number of iterations is fixed, so that nothing is read on the host.

References
----------
.. [1] A. P. Dempster, N. M. Laird and D. B. Rubin, "Maximum Likelihood from Incomplete Data via the EM Algorithm",
   1977, https://doi.org/10.1111/j.2517-6161.1977.tb01600.x
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class TwoGaussians(NamedTuple):
    """A mixture of two normal distributions, in ascending order of their means; each field has shape (2,)."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def responsibilities(self, values: Tensor) -> Tensor:
        """Return the posterior probability of both components for each value, shape (n, 2)."""
        squares = (values[:, None] - self.means) ** 2 / self.variances
        log_densities = -0.5 * (squares + self.variances.log() + math.log(2 * math.pi))
        return (self.weights.log() + log_densities).softmax(1)


@torch.no_grad()
def fit_two_gaussians(values: Tensor, *, iterations: int = 10, min_variance: float = 5e-4) -> TwoGaussians:
    """Return the mixture of two normal distributions fitted to the values.

    Parameters
    ----------
    values : Tensor of shape (n,)
        At least two values.
    iterations : int, default 10
        Number of iterations of EM.
    min_variance : float, default 5e-4
        ε, added to each variance.

    Returns
    -------
    TwoGaussians

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.gaussian_mixture import fit_two_gaussians
    >>> mixture = fit_two_gaussians(torch.tensor([0.0, 0.1, 0.2, 0.9, 1.0]))
    >>> mixture.means
    tensor([0.1000, 0.9500])
    >>> mixture.responsibilities(torch.tensor([0.15]))[0, 0] > 0.99
    tensor(True)
    """
    mixture = _maximize(values, _two_means(values), min_variance)
    for _ in range(iterations):
        mixture = _maximize(values, mixture.responsibilities(values), min_variance)
    order = mixture.means.argsort()
    return TwoGaussians(*(parameter[order] for parameter in mixture))


def _two_means(values: Tensor) -> Tensor:
    """Return one-hot responsibilities, (n, 2), of the split into two groups with the least sum of squares.

    The sum of squares within the groups is least where k(n − k)/n (difference of the means)² is greatest, for groups of
    k and n − k values.
    """
    n = len(values)
    ordered, order = values.sort()
    sums = ordered.cumsum(0)[:-1]
    k = torch.arange(1, n, device=values.device, dtype=values.dtype)
    difference = sums / k - (ordered.sum() - sums) / (n - k)
    size_of_lower = (k * (n - k) * difference**2).argmax() + 1
    is_lower = torch.empty_like(values)
    is_lower[order] = (torch.arange(n, device=values.device) < size_of_lower).to(values.dtype)
    return torch.stack([is_lower, 1 - is_lower], 1)


def _maximize(values: Tensor, responsibilities: Tensor, min_variance: float) -> TwoGaussians:
    """Return the parameters of the M step. A component without values keeps finite parameters."""
    counts = responsibilities.sum(0) + 10 * torch.finfo(values.dtype).eps
    means = (responsibilities * values[:, None]).sum(0) / counts
    variances = (responsibilities * (values[:, None] - means) ** 2).sum(0) / counts + min_variance
    return TwoGaussians(counts / counts.sum(), means, variances)
