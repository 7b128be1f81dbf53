"""Class-dependent noise: a class is mistaken for the one class it looks like."""

from __future__ import annotations

import torch
from torch import Tensor

from metalabelnet.noise.spec import check_classes, flip_count

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Patrini et al. 2017, section 5; the classes that are not named here keep their labels.
CIFAR10_TARGETS = {
    "truck": "automobile",
    "bird": "airplane",
    "deer": "horse",
    "cat": "dog",
    "dog": "cat",
}


def targets(classes: tuple[str, ...]) -> dict[int, int]:
    """The class each class is mistaken for: CIFAR-10's pairs by name, elsewhere the next, the last the first.

    With CIFAR-10's pairs half of the classes have a target, so half the rate is reached over all rows.
    """
    check_classes(len(classes))
    if set(classes) == set(CIFAR10):
        number = {name: i for i, name in enumerate(classes)}
        return {number[source]: number[target] for source, target in CIFAR10_TARGETS.items()}
    return {i: (i + 1) % len(classes) for i in range(len(classes))}


def class_dependent(true: Tensor, target: dict[int, int], rate: float, generator: torch.Generator) -> Tensor:
    """Flip exactly int(n·rate) of the n rows of every class that has a target, to that target."""
    given = true.clone()
    for source, to in sorted(target.items()):
        members = (true == source).nonzero()[:, 0]
        count = flip_count(len(members), rate)
        given[members[torch.randperm(len(members), generator=generator)[:count]]] = to
    return given
