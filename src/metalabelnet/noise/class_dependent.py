"""Class-dependent (asymmetric) noise: samples of a class are mislabeled as one similar class."""

from __future__ import annotations

import torch
from torch import Tensor

from metalabelnet.noise.spec import check_classes, flip_count

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Patrini et al. 2017 (https://arxiv.org/abs/1609.03683), section 5. Other classes keep their labels.
CIFAR10_TARGETS = {
    "truck": "automobile",
    "bird": "airplane",
    "deer": "horse",
    "cat": "dog",
    "dog": "cat",
}


def class_targets(classes: tuple[str, ...]) -> dict[int, int]:
    """Return the class that each class is mislabeled as: CIFAR-10's pairs by name, otherwise the next class (cyclic).

    Only half of CIFAR-10's classes have a target, so the noise rate over all rows is half the given rate.
    """
    check_classes(len(classes))
    if set(classes) == set(CIFAR10_CLASSES):
        number = {name: i for i, name in enumerate(classes)}
        return {number[source]: number[target] for source, target in CIFAR10_TARGETS.items()}
    return {i: (i + 1) % len(classes) for i in range(len(classes))}


def class_dependent_noise(true: Tensor, targets: dict[int, int], rate: float, generator: torch.Generator) -> Tensor:
    """Return labels with exactly int(n·rate) of the n rows of every class with a target flipped to that target."""
    given = true.clone()
    for source, target in sorted(targets.items()):
        members = (true == source).nonzero()[:, 0]
        count = flip_count(len(members), rate)
        given[members[torch.randperm(len(members), generator=generator)[:count]]] = target
    return given
