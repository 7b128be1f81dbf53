"""Which rows are trained on, which are the clean set, and which are the test."""

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


@dataclass(frozen=True, kw_only=True)
class Split:
    """The three parts of a run. `clean.true` is known in every row; `test` may have no rows."""

    train: Rows
    clean: Rows
    test: Rows


def general(data: DataSet, clean_size: int, generator: torch.Generator, test_size: int | None = None) -> Split:
    """A clean set balanced over the classes, and the data's test part or one put aside.

    The clean set is drawn from the data's clean part, else from the training rows whose truth is known,
    which are then trained on no more; with `clean_size` 0 it is all of them. Training rows that a person has checked
    belong to the clean part, whatever else they were drawn for. Where the data has no test part, `test_size` training
    rows whose truth is known (500 of 1500 or more, else a quarter) are put aside in proportion to the classes,
    never the last row of a class. Where no training row's truth is known, that test set has no rows.
    """
    train, test, beside = data.train, data.test, ""
    kept = torch.ones(len(train), dtype=torch.bool)
    known = _known(train)
    if test is None:
        aside = known[_put_aside(train.true.cpu()[known], len(data.classes), test_size, generator)]
        aside = aside if data.checked is None else aside[data.checked.cpu()[aside] == UNLABELED]
        test, beside = train.take(aside), f" beside a test set of {len(aside)}"
        kept[aside] = False
    if data.checked is not None:
        source, what = _checked(data, data.checked, kept), "clean rows"
        free = _known(source)
    elif data.clean is None:
        source, free = train, known[kept[known]]
        what = f"training rows with a known true label{beside}"
    else:
        source, free, what = data.clean, _known(data.clean), "clean rows"
    if clean_size == 0:
        _check_every_class(source.true.cpu()[free], data.classes, f"the {what}")
        clean_size = len(free)
    chosen = free[_balanced(source.true.cpu()[free], data.classes, clean_size, what, generator)]
    if source is train:
        kept[chosen] = False
    if not kept.any():
        raise InputError(f"{data.name}: a clean set of {clean_size}{beside} leaves no row to train on; take fewer")
    return Split(train=train.take(kept.nonzero()[:, 0]), clean=source.take(chosen), test=test)


def _checked(data: DataSet, labels: Tensor, kept: Tensor) -> Rows:
    """The training rows that a person has checked, kept no more, and the data's own clean ones."""
    found = (labels.cpu() != UNLABELED).nonzero()[:, 0]
    kept[found] = False
    rows = dataclasses.replace(data.train.take(found), true=labels[found])
    if data.clean is None:
        return rows
    return rows.and_then(
        data.clean.with_given(torch.full_like(data.clean.given, UNLABELED))
    )  # nobody else labeled them


def paper(data: DataSet, clean_size: int, generator: torch.Generator) -> Split:
    """The authors' split: all training rows stay, and the test rows are halved into clean set and test.

    The half is the first of a random permutation, not stratified, and the clean set is its first `clean_size` rows.
    """
    if data.checked is not None:
        raise InputError(
            f"{data.name}: the paper's split takes the clean set from the test part, not from a file; "
            "use the split 'general'"
        )
    if data.test is None:
        raise InputError(
            f"{data.name}: the paper's split takes the clean set from the test part, and the data has none; "
            f"use the split 'general'"
        )
    order = _known(data.test)
    order = order[torch.randperm(len(order), generator=generator)]
    half = len(order) // 2
    _check_size(clean_size, len(data.classes), half, f"rows in half of the {len(order)} test rows")
    clean = data.test.take(order[:clean_size])
    _check_every_class(clean.true.cpu(), data.classes, "the clean set drawn from the test rows")
    return Split(train=data.train, clean=clean, test=data.test.take(order[half:]))


SPLITS: dict[str, Callable[[DataSet, int, torch.Generator], Split]] = {"general": general, "paper": paper}


def hold_out(clean: Rows, generator: torch.Generator) -> tuple[Rows, Rows]:
    """A clean set in two parts: to learn from, and a fifth, in proportion to the classes, to select on.

    The last sample of a class stays with what is learned from; with one sample a class nothing is left to
    select on, and the second part has no rows.
    """
    labels, classes = clean.true.cpu(), len(clean.classes)
    n = min(max(1, round(len(clean) / 5)), _spare(labels, classes))
    select = _stratified(labels, classes, n, generator)
    return clean.take(_others(select, len(clean))), clean.take(select)


def limited(rows: Rows, n: int, generator: torch.Generator) -> Rows:
    """So many of these rows, in their order; all of them where n is 0."""
    if n == 0:
        return rows
    if not 2 <= n <= len(rows):
        raise InputError(f"limit {n}: there are {len(rows)} training rows; take 2 to {len(rows)}, or 0 for all")
    return rows.take(torch.randperm(len(rows), generator=generator)[:n].sort().values)


def remove_labels(rows: Rows, n: int, generator: torch.Generator) -> Rows:
    """The same rows with the given label of n random labeled ones removed (what `true` says stays)."""
    labeled = (rows.given.cpu() != UNLABELED).nonzero()[:, 0]
    most = max(0, len(labeled) - len(rows.classes))
    if not 0 <= n <= most:
        raise InputError(
            f"cannot remove the labels of {n} rows: of {len(labeled)} labeled rows {len(rows.classes)} stay, "
            f"as many as there are classes; take 0 to {most}"
        )
    given = rows.given.clone()
    given[labeled[torch.randperm(len(labeled), generator=generator)[:n]].to(given.device)] = UNLABELED
    return rows.with_given(given)


def _known(rows: Rows) -> Tensor:
    """The positions of the rows whose truth is known."""
    return (rows.true.cpu() != UNLABELED).nonzero()[:, 0]


def _put_aside(labels: Tensor, classes: int, size: int | None, generator: torch.Generator) -> Tensor:
    """Positions of a test set among rows with these labels."""
    most = _spare(labels, classes)
    if size is None:
        size = min(500 if len(labels) >= 1500 else len(labels) // 4, most)
    if not 0 <= size <= most:
        raise InputError(
            f"a test set of {size} rows cannot be drawn from {len(labels)} training rows with a known true "
            f"label, one of each class left; take 0 to {most}"
        )
    return _stratified(labels, classes, size, generator)


def _balanced(labels: Tensor, classes: tuple[str, ...], n: int, what: str, generator: torch.Generator) -> Tensor:
    """Positions of n rows with these labels, as many of each class as can be.

    Every class with rows left gets the same share of what is still to give, until less than one each is
    left; those go to classes at random.
    """
    _check_size(n, len(classes), len(labels), what)
    _check_every_class(labels, classes, f"the {what}")
    room = torch.bincount(labels, minlength=len(classes))
    take = torch.zeros_like(room)
    while left := n - int(take.sum()):
        able = (take < room).nonzero()[:, 0]
        if left < len(able):
            take[able[torch.randperm(len(able), generator=generator)[:left]]] += 1
        else:
            take[able] = torch.minimum(room[able], take[able] + left // len(able))
    return _pick(labels, take, generator)


def _stratified(labels: Tensor, classes: int, n: int, generator: torch.Generator) -> Tensor:
    """Positions of n rows in proportion to the classes (largest remainders), never the last of a class."""
    room = torch.bincount(labels, minlength=classes)
    ideal = n * room.double() / max(1, len(labels))
    take = ideal.long()  # at most room − 1, because n is less than the number of rows
    shuffled = torch.randperm(classes, generator=generator)  # equal remainders: at random
    by_remainder = shuffled[(ideal - take)[shuffled].argsort(descending=True, stable=True)]
    while left := n - int(take.sum()):
        take[by_remainder[(take < room - 1)[by_remainder]][:left]] += 1
    return _pick(labels, take, generator)


def _spare(labels: Tensor, classes: int) -> int:
    """How many rows can go when one of each class stays."""
    return int((torch.bincount(labels, minlength=classes) - 1).clamp(min=0).sum())


def _pick(labels: Tensor, take: Tensor, generator: torch.Generator) -> Tensor:
    """Positions of `take[c]` random rows of each class c, in random order."""
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels[order]
    by_class = shuffled.argsort(stable=True)
    count = torch.bincount(labels, minlength=len(take))
    start = count.cumsum(0) - count
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(order)) - start[shuffled[by_class]]
    return order[rank < take[shuffled]]


def _others(positions: Tensor, n: int) -> Tensor:
    """The positions of 0 to n − 1 that are not among these."""
    kept = torch.ones(n, dtype=torch.bool)
    kept[positions] = False
    return kept.nonzero()[:, 0]


def _check_size(clean_size: int, classes: int, most: int, what: str) -> None:
    if clean_size < classes:
        raise InputError(f"a clean set of {clean_size} is too small for {classes} classes; take {classes} or more")
    if most < classes:
        raise InputError(f"a clean set needs a row of each of the {classes} classes, and there are {most} {what}")
    if clean_size > most:
        raise InputError(f"a clean set of {clean_size} is too large: there are {most} {what}; take {most} or fewer")


def _check_every_class(labels: Tensor, classes: tuple[str, ...], where: str) -> None:
    missing = torch.bincount(labels, minlength=len(classes)) == 0
    if missing.any():
        name = classes[int(missing.nonzero()[0, 0])]
        raise InputError(f"class {name!r} is missing from {where}: a clean set needs a row of every class")
