"""Splits of a data set into training rows, clean set and test rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.data.rows import UNLABELED, DataSet, Rows
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

VALIDATION_SHARE = 5  # one in five clean samples is held out
MIN_LABELED_ROWS = 2  # of training rows: batch normalization needs two samples
LARGE_DATA_ROWS, LARGE_DATA_TEST_SIZE = 1500, 500  # rows from which the test set has a fixed size, and that size
SMALL_DATA_TEST_SHARE = 4  # one in four rows of smaller data is a test row


@dataclass(frozen=True, kw_only=True)
class Split:
    """The three parts of a run.

    Attributes
    ----------
    train : Rows
        Training rows.
    clean : Rows
        The clean set; `clean.true` is known in every row.
    test : Rows
        Test rows; may be empty.
    """

    train: Rows
    clean: Rows
    test: Rows


def general(data: DataSet, clean_size: int | None, generator: torch.Generator, test_size: int | None = None) -> Split:
    """Split off a clean set balanced over the classes, and use the data's test part or split off a test set.

    The clean set is drawn from the data's clean part, if it has one, else from the training rows with a known true
    label; rows drawn are removed from the training rows. Training rows with a clean label (`data.clean_labels`) always
    belong to the clean part. If the data has no test part, a test set is drawn from the training rows with a known true
    label, stratified by class; the last row of a class is never drawn. The test set is empty if no true label is known.

    Parameters
    ----------
    data : DataSet
        The data.
    clean_size : int or None
        Size of the clean set; None: all clean rows.
    generator : torch.Generator
        Source of random numbers.
    test_size : int or None
        Size of the test set if the data has no test part; None: 500 of 1500 rows or more, else a quarter.

    Returns
    -------
    Split
        Training rows, clean set and test rows.

    Raises
    ------
    InputError
        If the sizes cannot be met, a class has no clean row, or no training row is left.
    """
    train, test, beside_test, must_stay = data.train, data.test, "", 0
    remaining = torch.ones(len(train), dtype=torch.bool)
    known = _with_true_label(train)
    if test is None:
        drawn = known[_draw_test(train.true.cpu()[known], len(data.classes), test_size, generator)]
        drawn = drawn if data.clean_labels is None else drawn[data.clean_labels.cpu()[drawn] == UNLABELED]
        test, beside_test = train.take(drawn), f" beside a test set of {len(drawn)}"
        remaining[drawn] = False
    if data.clean_labels is not None:
        source, what = _clean_rows(data, data.clean_labels, remaining), "clean rows"
        candidates = _with_true_label(source)
    elif data.clean is None:
        source, candidates = train, known[remaining[known]]
        labeled = remaining & (train.given.cpu() != UNLABELED)
        labeled[candidates] = False
        must_stay = max(0, MIN_LABELED_ROWS - int(labeled.sum()))
        what = f"training rows with a known true label{beside_test}"
    else:
        source, candidates, what = data.clean, _with_true_label(data.clean), "clean rows"
    if clean_size is None:
        _check_every_class(source.true.cpu()[candidates], data.classes, f"the {what}")
        clean_size = len(candidates)
    _check_size(clean_size, len(data.classes), len(candidates), what, must_stay)
    chosen = candidates[_draw_balanced(source.true.cpu()[candidates], data.classes, clean_size, what, generator)]
    if source is train:
        remaining[chosen] = False
    if not remaining.any():
        raise InputError(
            f"{data.name}: a clean set of {clean_size}{beside_test} leaves no training rows; choose a smaller one"
        )
    return Split(train=train.take(remaining.nonzero()[:, 0]), clean=source.take(chosen), test=test)


def _clean_rows(data: DataSet, clean_labels: Tensor, remaining: Tensor) -> Rows:
    """Return the training rows with a clean label, unset in `remaining`, and then the data's own clean rows."""
    positions = (clean_labels.cpu() != UNLABELED).nonzero()[:, 0]
    remaining[positions] = False
    rows = dataclasses.replace(data.train.take(positions), true=clean_labels[positions])
    if data.clean is None:
        return rows
    # The data's own clean rows have a clean label only: no given label was collected for them.
    return rows.concat(data.clean.with_given_labels(torch.full_like(data.clean.given, UNLABELED)))


def paper(data: DataSet, clean_size: int | None, generator: torch.Generator) -> Split:
    """Split as the paper's authors do: halve the test rows into clean set and test rows, keep all training rows.

    The half is the first of a random permutation, not stratified. The clean set is its first `clean_size` rows, or all
    of it for None. Data that was read with the parts of this split (`data.is_split`) keeps them.
    """
    if data.is_split:
        return general(data, clean_size, generator)
    if data.clean_labels is not None:
        raise InputError(
            f"{data.name}: the split 'paper' takes the clean set from the test part, not from a file; "
            "use the split 'general'"
        )
    if data.test is None:
        raise InputError(
            f"{data.name}: the split 'paper' takes the clean set from the test part, and the data has none; "
            "use the split 'general'"
        )
    order = _with_true_label(data.test)
    order = order[torch.randperm(len(order), generator=generator)]
    half = len(order) // 2
    if clean_size is None:
        clean_size = half
    _check_size(clean_size, len(data.classes), half, f"rows in half of the {len(order)} test rows")
    clean = data.test.take(order[:clean_size])
    _check_every_class(clean.true.cpu(), data.classes, "the clean set drawn from the test rows")
    return Split(train=data.train, clean=clean, test=data.test.take(order[half:]))


SPLITS: dict[str, Callable[[DataSet, int | None, torch.Generator], Split]] = {"general": general, "paper": paper}


def hold_out(clean: Rows, generator: torch.Generator) -> tuple[Rows, Rows]:
    """Divide a clean set into rows to learn from and a stratified fifth to validate on.

    The last sample of a class is never held out: with one sample per class the second part is empty.
    """
    labels, classes = clean.true.cpu(), len(clean.classes)
    n = min(max(1, round(len(clean) / VALIDATION_SHARE)), _max_drawable(labels, classes))
    validation = _draw_stratified(labels, classes, n, generator)
    return clean.take(_complement(validation, len(clean))), clean.take(validation)


def limit_rows(rows: Rows, limit: int | None, generator: torch.Generator) -> Rows:
    """Return `limit` random rows in their original order; all rows for None."""
    if limit is None:
        return rows
    if not 2 <= limit <= len(rows):
        raise InputError(f"limit is {limit}, and there are {len(rows)} training rows; give 2 to {len(rows)}")
    return rows.take(torch.randperm(len(rows), generator=generator)[:limit].sort().values)


def remove_labels(rows: Rows, n: int, generator: torch.Generator) -> Rows:
    """Return the rows without the given labels of n random labeled ones. True labels stay."""
    labeled = (rows.given.cpu() != UNLABELED).nonzero()[:, 0]
    limit = max(0, len(labeled) - len(rows.classes))
    if not 0 <= n <= limit:
        raise InputError(
            f"cannot remove the labels of {n} rows: of {len(labeled)} labeled rows at least {len(rows.classes)} must "
            f"stay labeled, the number of classes; give 0 to {limit}"
        )
    given = rows.given.clone()
    given[labeled[torch.randperm(len(labeled), generator=generator)[:n]].to(given.device)] = UNLABELED
    return rows.with_given_labels(given)


def _with_true_label(rows: Rows) -> Tensor:
    """Return the positions of the rows with a known true label."""
    return (rows.true.cpu() != UNLABELED).nonzero()[:, 0]


def _draw_test(labels: Tensor, classes: int, size: int | None, generator: torch.Generator) -> Tensor:
    """Return the positions of a test set among rows with these labels."""
    limit = _max_drawable(labels, classes)
    if size is None:
        n = len(labels)
        size = min(LARGE_DATA_TEST_SIZE if n >= LARGE_DATA_ROWS else n // SMALL_DATA_TEST_SHARE, limit)
    if not 0 <= size <= limit:
        raise InputError(
            f"a test set of {size} rows cannot be drawn from {len(labels)} training rows with a known true label, "
            f"because one row of each class must stay; give 0 to {limit}"
        )
    return _draw_stratified(labels, classes, size, generator)


def _draw_balanced(labels: Tensor, classes: tuple[str, ...], n: int, what: str, generator: torch.Generator) -> Tensor:
    """Return the positions of n rows with these labels, with class counts as equal as possible.

    Every class with rows left gets an equal share of the remaining quota. When less than one row per class remains,
    the last rows go to random classes.
    """
    _check_every_class(labels, classes, f"the {what}")
    available = torch.bincount(labels, minlength=len(classes))
    take = torch.zeros_like(available)
    while left := n - int(take.sum()):
        open_classes = (take < available).nonzero()[:, 0]
        if left < len(open_classes):
            take[open_classes[torch.randperm(len(open_classes), generator=generator)[:left]]] += 1
        else:
            share = take[open_classes] + left // len(open_classes)
            take[open_classes] = torch.minimum(available[open_classes], share)
    return _draw_per_class(labels, take, generator)


def _draw_stratified(labels: Tensor, classes: int, n: int, generator: torch.Generator) -> Tensor:
    """Return the positions of n rows in proportion to the classes (largest remainders), never the last of a class."""
    available = torch.bincount(labels, minlength=classes)
    ideal = n * available.double() / max(1, len(labels))
    take = ideal.long()  # at most available − 1, because n is less than the number of rows
    shuffled = torch.randperm(classes, generator=generator)  # breaks ties between equal remainders
    by_remainder = shuffled[(ideal - take)[shuffled].argsort(descending=True, stable=True)]
    while left := n - int(take.sum()):
        take[by_remainder[(take < available - 1)[by_remainder]][:left]] += 1
    return _draw_per_class(labels, take, generator)


def _max_drawable(labels: Tensor, classes: int) -> int:
    """Return how many rows can be drawn if one of each class stays."""
    return int((torch.bincount(labels, minlength=classes) - 1).clamp(min=0).sum())


def _draw_per_class(labels: Tensor, take: Tensor, generator: torch.Generator) -> Tensor:
    """Return the positions of `take[c]` random rows of each class c, in random order."""
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels[order]
    by_class = shuffled.argsort(stable=True)
    count = torch.bincount(labels, minlength=len(take))
    start = count.cumsum(0) - count
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(order)) - start[shuffled[by_class]]
    return order[rank < take[shuffled]]


def _complement(positions: Tensor, n: int) -> Tensor:
    """Return the positions of 0 to n − 1 that are not among these."""
    mask = torch.ones(n, dtype=torch.bool)
    mask[positions] = False
    return mask.nonzero()[:, 0]


def _check_size(clean_size: int, classes: int, available: int, what: str, must_stay: int = 0) -> None:
    """Raise InputError for a clean set that cannot be drawn from the available rows, if some must stay for training."""
    limit = available - must_stay
    rows = f"there are {available} {what}" + (f", of which {must_stay} must stay for training" if must_stay else "")
    if clean_size < classes:
        raise InputError(f"a clean set of {clean_size} is too small for {classes} classes; give {classes} or more")
    if limit < classes:
        raise InputError(f"a clean set needs a row of each of the {classes} classes, and {rows}")
    if clean_size > limit:
        raise InputError(f"a clean set of {clean_size} is too large: {rows}; give {limit} or fewer")


def _check_every_class(labels: Tensor, classes: tuple[str, ...], where: str) -> None:
    missing = torch.bincount(labels, minlength=len(classes)) == 0
    if missing.any():
        name = classes[int(missing.nonzero()[0, 0])]
        raise InputError(f"class {name!r} is missing from {where}: a clean set needs a row of every class")
