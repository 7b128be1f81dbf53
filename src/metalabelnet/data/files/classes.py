"""Which classes the labels of a folder or a table are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from metalabelnet.data.encoders import tables
from metalabelnet.data.files import clean_set
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.data.files.listing import Listing


def class_names(train: Listing, clean: Sequence[str], test: Listing | None) -> tuple[str, ...]:
    """The names of the classes: those of the training labels, in the order of the alphabet or of numbers."""
    known = {*train.labels, *train.true_label} - {""}
    for what, labels in (("clean", clean), ("test", test.labels if test else ())):
        for name in labels:
            if name not in known:
                raise clean_set.unknown_class(name, known, what)
    nothing = sorted(name for name in known - {*clean} if clean and tables.is_missing(name))
    if nothing:
        raise InputError(
            f"{train.source}: the label of {train.labels.count(nothing[0])} rows is {nothing[0]!r}; leave the cell "
            "empty where there is no label, or have a clean sample of that class"
        )
    if len(known) < 2:
        raise InputError(f"{train.source}: there must be at least 2 classes, not {len(known)}")
    labeled = sum(label != "" for label in train.labels)
    if len(known) > max(20, labeled / 2):
        raise InputError(
            f"{train.source}: {len(known)} different labels in {labeled} rows are no classes; "
            "name the column of the classes with --label"
        )
    return tuple(sorted(known, key=_in_order))


def _in_order(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (False, number, name) if math.isfinite(number) else (True, 0.0, name)  # no order has a place for nan
