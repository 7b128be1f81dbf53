"""Asymmetric noise of the field on CIFAR-10 and CIFAR-100: samples are mislabeled as one similar class.

CIFAR-10's pairs are those of Patrini et al. 2017; CIFAR-100's classes are mislabeled as the next class of their
superclass, in the order of the labels, the last as the first.

https://arxiv.org/abs/1609.03683
"""

from __future__ import annotations

from metalabelnet.errors import InputError
from metalabelnet.noise.class_dependent import CIFAR10_CLASSES, class_targets

# https://www.cs.toronto.edu/~kriz/cifar.html
CIFAR100_SUPERCLASSES = tuple(
    tuple(line.split())
    for line in """
beaver dolphin otter seal whale
aquarium_fish flatfish ray shark trout
orchid poppy rose sunflower tulip
bottle bowl can cup plate
apple mushroom orange pear sweet_pepper
clock keyboard lamp telephone television
bed chair couch table wardrobe
bee beetle butterfly caterpillar cockroach
bear leopard lion tiger wolf
bridge castle house road skyscraper
cloud forest mountain plain sea
camel cattle chimpanzee elephant kangaroo
fox porcupine possum raccoon skunk
crab lobster snail spider worm
baby boy girl man woman
crocodile dinosaur lizard snake turtle
hamster mouse rabbit shrew squirrel
maple_tree oak_tree palm_tree pine_tree willow_tree
bicycle bus motorcycle pickup_truck train
lawn_mower rocket streetcar tank tractor
""".strip().splitlines()
)


def asymmetric_targets(classes: tuple[str, ...]) -> dict[int, int]:
    """Return the class that each class is mislabeled as.

    Raises
    ------
    InputError
        If these are the classes of neither CIFAR-10 nor CIFAR-100.
    """
    if set(classes) == set(CIFAR10_CLASSES):
        return class_targets(classes)
    if set(classes) != {name for superclass in CIFAR100_SUPERCLASSES for name in superclass}:
        raise InputError(
            f"noise asymmetric is defined for the classes of cifar10 and cifar100, and the data has {len(classes)} "
            "others; choose class:RATE or matrix:FILE"
        )
    targets: dict[int, int] = {}
    for superclass in CIFAR100_SUPERCLASSES:
        members = sorted(classes.index(name) for name in superclass)
        targets |= dict(zip(members, [*members[1:], members[0]], strict=True))
    return targets
