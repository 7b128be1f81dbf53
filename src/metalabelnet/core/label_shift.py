"""Weights of clean samples that were drawn by class: as many of a rare class as of a frequent one.

    f_y    frequency of the given label y among the training samples
    T_cy   probability of the given label y for class c, counted on the clean samples
    m      number of clean samples
    π      class frequencies of the training samples: the maximum of m Σ_y f_y log Σ_c π_c T_cy + Σ_c log π_c, by EM
    w_c    π_c divided by the frequency of class c among the clean samples

How a class is mislabeled does not depend on how many of its samples are clean; how frequent it is does. What is learned
on the clean samples about class frequencies, such as a class bias, is right for the training samples if every clean
sample has the weight w_c of its class. T is known from m samples only, so the given labels count as m, and one more
sample of each class is a prior, without which a rare class may vanish.

Weights are 1 where the given labels of the clean samples have the frequencies of those of the training samples
(`same_frequencies`), and where no given label of a clean sample is known.

References
----------
.. [1] M. Saerens et al., "Adjusting the outputs of a classifier to new a priori probabilities", Neural Computation
   2002, https://doi.org/10.1162/089976602753284446
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from metalabelnet.core.bayes_label_net import same_frequencies
from metalabelnet.core.noise_counts import count_noise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Labels = NDArray[np.int64]

EM_STEPS = 200


def clean_sample_weights(given: Labels, clean_given: Labels, true: Labels, classes: int) -> Array:
    """Return the weight of each clean sample; their mean is 1.

    Parameters
    ----------
    given : ndarray of shape (n,)
        Given labels of the training samples; −1: none.
    clean_given, true : ndarray of shape (m,)
        Given labels, −1: none, and classes of the clean samples.
    classes : int
        Number of classes.
    """
    ones = np.ones(len(true))
    if not (clean_given >= 0).any() or not (given >= 0).any():
        return ones
    if same_frequencies(torch.from_numpy(given), torch.from_numpy(clean_given), classes):
        return ones
    T = count_noise(true, clean_given, classes)[:, :classes]
    frequencies = np.bincount(given[given >= 0], minlength=classes) / (given >= 0).sum()
    share = np.bincount(true, minlength=classes) / len(true)
    pi = class_frequencies(frequencies, T / T.sum(1, keepdims=True), share > 0, len(true))
    weights = pi[true] / share[true]
    mean_one: Array = weights / weights.mean()
    return mean_one


def class_frequencies(frequencies: Array, T: Array, known: NDArray[np.bool_], samples: float) -> Array:
    """Return π by EM for given labels that count as so many samples; classes without a clean sample are left out."""
    pi: Array = known / known.sum()
    for _ in range(EM_STEPS):
        posterior = pi[:, None] * T
        posterior /= posterior.sum(0, keepdims=True)
        pi = (samples * (posterior @ frequencies) + known) / (samples + known.sum())
    return pi
