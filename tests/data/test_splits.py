"""Splits are disjoint, complete and balanced, and impossible sizes are refused."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metalabelnet.data.rows import DataSet, Rows, make_rows
from metalabelnet.data.splits import SPLITS, general, hold_out, limit_rows, paper, remove_labels
from metalabelnet.errors import InputError

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**32)
NAMES = ("ant", "bee", "cow", "dog", "eel", "fox")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def raises(message: str) -> pytest.RaisesExc[InputError]:
    return pytest.raises(InputError, match=re.escape(message))


def rows(true: list[int] | Tensor, classes: int, given: Tensor | None = None) -> Rows:
    """Return rows whose only feature is their number."""
    labels = torch.as_tensor(true)
    x = torch.arange(len(labels), dtype=torch.float32)[:, None]
    return make_rows(x, labels if given is None else given, true=labels, classes=NAMES[:classes], what="rows")


def shuffled_labels(counts: list[int]) -> list[int]:
    """Return `counts[c]` labels of each class c, shuffled."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=rng(9))].tolist()


def numbers(*parts: Rows) -> list[int]:
    """Return the sample numbers of all parts, after checking that features, index and ids match."""
    for part in parts:
        assert part.x[:, 0].long().tolist() == part.index.tolist() == [int(i) for i in part.ids]
    return sorted(i for part in parts for i in part.index.tolist())


def class_counts(part: Rows) -> list[int]:
    return torch.bincount(part.true, minlength=len(part.classes)).tolist()


# --- general --------------------------------------------------------------------------------------


@quick
@given(st.data(), seeds)
def test_general_is_disjoint_complete_and_balanced(data: st.DataObject, seed: int) -> None:
    counts = data.draw(st.lists(st.integers(2, 30), min_size=2, max_size=6))
    train = rows(shuffled_labels(counts), len(counts))
    test_size = data.draw(st.integers(0, sum(counts) - len(counts) - 1))
    clean = data.draw(st.integers(len(counts), sum(counts) - test_size))
    if clean + test_size > sum(counts) - 2:
        with raises("of which 2 must stay for training"):
            general(DataSet(name="d", train=train), clean, rng(seed), test_size=test_size)
        return
    split = general(DataSet(name="d", train=train), clean, rng(seed), test_size=test_size)
    assert numbers(split.train, split.clean, split.test) == list(range(sum(counts)))
    assert (len(split.clean), len(split.test)) == (clean, test_size)
    taken = class_counts(split.clean)
    room = [n - t for n, t in zip(counts, class_counts(split.test), strict=True)]
    # A class has fewer rows than another by more than one only if it has no more.
    assert all(n == r or n >= max(taken) - 1 for n, r in zip(taken, room, strict=True))
    assert min(taken) >= 1
    # The test set is stratified, up to one row and the last row of a class.
    for n, t in zip(counts, class_counts(split.test), strict=True):
        assert t <= n - 1
        assert t >= min(n - 1, math.floor(test_size * n / sum(counts)))
    again = general(DataSet(name="d", train=train), clean, rng(seed), test_size=test_size)
    assert split.clean.index.tolist() == again.clean.index.tolist()
    assert split.test.index.tolist() == again.test.index.tolist()


def test_general_by_hand() -> None:
    """12 of classes with 2, 9 and 9 rows: all of the small class, five each of the others."""
    data = DataSet(name="d", train=rows(shuffled_labels([2, 9, 9]), 3))
    split = general(data, 12, rng(), test_size=0)
    assert class_counts(split.clean) == [2, 5, 5]
    assert class_counts(split.train) == [0, 4, 4]
    assert len(split.test) == 0


def test_remainder_goes_to_random_classes() -> None:
    """Of 7 rows over 3 classes one class has three: each within 4.5 standard errors of 300 in 900."""
    data = DataSet(name="d", train=rows(shuffled_labels([5, 5, 5]), 3))
    split = [general(data, 7, rng(seed), test_size=0) for seed in range(900)]
    extra = Counter(class_counts(s.clean).index(3) for s in split)
    assert all(sorted(class_counts(s.clean)) == [2, 2, 3] for s in split)
    assert max(abs(extra[c] - 300) for c in range(3)) < 4.5 * math.sqrt(900 * 1 / 3 * 2 / 3)


def test_rows_of_a_class_are_equally_likely_to_be_clean() -> None:
    """2 of 5 rows per class in 900 draws: each row within 4.5 standard errors of 360."""
    data = DataSet(name="d", train=rows(shuffled_labels([5, 5]), 2))
    hits = Counter(i for s in range(900) for i in general(data, 4, rng(s), test_size=0).clean.index.tolist())
    assert max(abs(hits[i] - 360) for i in range(10)) < 4.5 * math.sqrt(900 * 0.4 * 0.6)


def test_default_test_size() -> None:
    many = DataSet(name="digits", train=rows(shuffled_labels([178, 182, 177, 183, 181, 896]), 6))
    split = general(many, 100, rng())
    assert (len(split.train), len(split.clean), len(split.test)) == (1197, 100, 500)
    assert all(
        abs(n * 500 / 1797 - t) < 1 for n, t in zip(class_counts(many.train), class_counts(split.test), strict=True)
    )
    few = general(DataSet(name="d", train=rows(shuffled_labels([40, 60]), 2)), 10, rng())
    assert (len(few.train), len(few.clean), len(few.test)) == (65, 10, 25)
    assert class_counts(few.test) == [10, 15]


def test_parts_of_the_data_are_used() -> None:
    train, test, clean = rows([0, 1] * 10, 2), rows([0, 1] * 3, 2), rows([0] * 3 + [1] * 7, 2)
    split = general(DataSet(name="d", train=train, test=test, clean=clean), 6, rng())
    assert numbers(split.train) == numbers(train)
    assert numbers(split.test) == numbers(test)
    assert class_counts(split.clean) == [3, 3]
    split = general(DataSet(name="d", train=train, test=test), 6, rng())
    assert numbers(split.train, split.clean) == numbers(train)
    assert numbers(split.test) == numbers(test)
    split = general(DataSet(name="d", train=train, clean=clean), 10, rng())
    assert numbers(split.train, split.test) == numbers(train)
    assert numbers(split.clean) == numbers(clean)


def test_only_rows_with_a_true_label_are_drawn() -> None:
    train = rows([0, 1, -1, -1] * 20, 2, given=torch.zeros(80).long())
    split = general(DataSet(name="d", train=train), 8, rng())
    assert (len(split.clean), len(split.test)) == (8, 10)
    assert int(split.clean.true.min()) == int(split.test.true.min()) == 0
    assert numbers(split.train, split.clean, split.test) == list(range(80))


def test_without_true_labels_the_test_set_is_empty() -> None:
    train = rows([-1] * 20, 2, given=torch.zeros(20).long())
    data = DataSet(name="d", train=train, clean=rows([0, 1] * 4, 2))
    split = general(data, 8, rng())
    assert (len(split.train), len(split.clean), len(split.test)) == (20, 8, 0)
    with raises("a test set of 5 rows cannot be drawn from 0 training rows with a known true label"):
        general(data, 8, rng(), test_size=5)


def test_general_error_messages() -> None:
    data = DataSet(name="d", train=rows([0, 1, 2] * 10, 3), test=rows([0, 1, 2], 3))
    with raises("a clean set of 2 is too small for 3 classes; give 3 or more"):
        general(data, 2, rng())
    with raises("a clean set of 31 is too large: there are 30 training rows with a known true label, of which 2"):
        general(data, 31, rng())
    with raises("30 training rows with a known true label, of which 2 must stay for training; give 28 or fewer"):
        general(data, 30, rng())
    no_test = DataSet(name="d", train=data.train)
    with raises("true label beside a test set of 7, of which 2 must stay for training; give 21 or fewer"):
        general(no_test, 24, rng())
    with raises("a test set of 28 rows cannot be drawn from 30 training rows"):
        general(no_test, 3, rng(), test_size=28)
    with raises("one row of each class must stay; give 0 to 27"):
        general(no_test, 3, rng(), test_size=-1)
    with raises("class 'bee' is missing from the training rows with a known true label"):
        general(DataSet(name="d", train=rows([0, 2] * 9, 3)), 4, rng())
    with raises("class 'cow' is missing from the clean rows: a clean set needs a row of every class"):
        general(DataSet(name="d", train=data.train, clean=rows([0, 1] * 9, 3)), 4, rng())
    with raises("a clean set of 7 is too large: there are 6 clean rows"):
        general(DataSet(name="d", train=data.train, clean=rows([0, 1, 2] * 2, 3)), 7, rng())
    unlabeled = rows([-1] * 9, 3, given=torch.zeros(9).long())
    with raises("a clean set needs a row of each of the 3 classes, and there are 0 training rows with a known"):
        general(DataSet(name="d", train=unlabeled), 3, rng())


@quick
@given(st.integers(20, 60), st.integers(0, 2**12), seeds)
def test_rows_with_clean_labels_are_the_clean_set(n: int, which: int, seed: int) -> None:
    train = rows([k % 2 for k in range(n)], 2)
    clean_labels = torch.full((n,), -1)
    clean_labels[:4] = torch.tensor([1, 0, 1, 0])  # differ from the labels in the data
    clean_labels[4:12] = torch.tensor([k % 2 if which >> k & 1 else -1 for k in range(4, 12)])
    chosen = (clean_labels >= 0).nonzero()[:, 0].tolist()
    plain = general(DataSet(name="d", train=train), 2, rng(seed))
    split = general(DataSet(name="d", train=train, clean_labels=clean_labels), None, rng(seed))
    assert numbers(split.train, split.clean, split.test) == list(range(n))
    assert sorted(split.clean.index.tolist()) == chosen
    assert split.clean.true.tolist() == clean_labels[split.clean.index].tolist()
    assert split.clean.given.tolist() == train.given[split.clean.index].tolist()
    assert set(split.test.index.tolist()) == set(plain.test.index.tolist()) - set(chosen)
    assert (split.train.true == train.true[split.train.index]).all()


def test_clean_labels_are_added_to_the_clean_part_of_the_data() -> None:
    train, own = rows([0, 1] * 10, 2), rows([0, 1, 1], 2)
    clean_labels = torch.full((20,), -1)
    clean_labels[5] = 0
    data = DataSet(name="d", train=train, clean=own, test=rows([0, 1], 2), clean_labels=clean_labels)
    split = general(data, None, rng())
    by_index = sorted(
        zip(split.clean.x[:, 0].tolist(), split.clean.true.tolist(), split.clean.given.tolist(), strict=True)
    )
    assert by_index == [(0, 0, -1), (1, 1, -1), (2, 1, -1), (5, 0, 1)]  # the data's own clean rows have no given label
    assert 5 not in split.train.index.tolist()
    assert len(split.train) == 19
    with raises("takes the clean set from the test part, not from a file"):
        paper(data, 2, rng())


# --- paper ----------------------------------------------------------------------------------------


@quick
@given(st.integers(40, 81), st.integers(20, 40), seeds)
def test_paper_keeps_the_training_rows_and_halves_the_test_rows(n: int, clean: int, seed: int) -> None:
    data = DataSet(name="d", train=rows([0, 1] * 5, 2), test=rows([i % 2 for i in range(n)], 2))
    clean = min(clean, n // 2)
    split = paper(data, clean, rng(seed))
    assert numbers(split.train) == list(range(10))
    assert (len(split.clean), len(split.test)) == (clean, n - n // 2)
    order = torch.randperm(n, generator=rng(seed)).tolist()
    assert split.clean.index.tolist() == order[: n // 2][:clean]
    assert split.test.index.tolist() == order[n // 2 :]
    assert len(set(numbers(split.clean, split.test))) == clean + n - n // 2


def test_paper_error_messages() -> None:
    train, test = rows([0, 1] * 5, 2), rows([0, 1] * 10, 2)
    with raises("d: the split 'paper' takes the clean set from the test part, and the data has none; use the"):
        paper(DataSet(name="d", train=train), 4, rng())
    data = DataSet(name="d", train=train, test=test)
    with raises("a clean set of 1 is too small for 2 classes"):
        paper(data, 1, rng())
    with raises("a clean set of 11 is too large: there are 10 rows in half of the 20 test rows; give 10 or fewer"):
        paper(data, 11, rng())
    with raises("class 'bee' is missing from the clean set drawn from the test rows"):
        paper(DataSet(name="d", train=train, test=rows([0] * 20, 2)), 5, rng())


def test_splits() -> None:
    assert list(SPLITS) == ["general", "paper"]
    data = DataSet(name="d", train=rows([0, 1] * 20, 2), test=rows([0, 1] * 20, 2))
    for split in SPLITS.values():
        assert len(split(data, 10, rng()).clean) == 10


# --- hold-out, limit and removed labels --------------------------------------------------------------


@quick
@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), seeds)
def test_hold_out_is_disjoint_complete_and_never_empties_a_class(counts: list[int], seed: int) -> None:
    clean = rows(shuffled_labels(counts), len(counts))
    remaining, held_out = hold_out(clean, rng(seed))
    assert numbers(remaining, held_out) == list(range(sum(counts)))
    assert min(class_counts(remaining)) >= 1
    assert len(held_out) == min(max(1, round(sum(counts) / 5)), sum(counts) - len(counts))
    # Classes with one row contribute none, others more: at least their share rounded down.
    for n, count in zip(counts, class_counts(held_out), strict=True):
        assert count >= min(n - 1, math.floor(len(held_out) * n / sum(counts)))
    assert hold_out(clean, rng(seed))[1].index.tolist() == held_out.index.tolist()


def test_hold_out_by_hand() -> None:
    assert class_counts(hold_out(rows(shuffled_labels([50, 30, 20]), 3), rng())[1]) == [10, 6, 4]
    assert class_counts(hold_out(rows(shuffled_labels([10, 10]), 2), rng())[1]) == [2, 2]
    assert class_counts(hold_out(rows(shuffled_labels([13, 7]), 2), rng())[1]) == [3, 1]  # 2.6 and 1.4
    assert class_counts(hold_out(rows([0, 0], 1), rng())[1]) == [1]  # at least one
    assert class_counts(hold_out(rows(shuffled_labels([1, 1, 3]), 3), rng())[1]) == [0, 0, 1]
    assert class_counts(hold_out(rows(shuffled_labels([1, 1, 1, 1, 1, 5]), 6), rng())[1]) == [0, 0, 0, 0, 0, 2]


def test_one_sample_per_class_leaves_nothing_to_hold_out() -> None:
    remaining, held_out = hold_out(rows([2, 0, 1], 3), rng())
    assert numbers(remaining) == [0, 1, 2]
    assert len(held_out) == len(held_out.given) == len(held_out.ids) == 0
    assert held_out.x.shape == (0, 1)


@quick
@given(st.lists(st.integers(-1, 2), min_size=6, max_size=40), st.data(), seeds)
def test_remove_labels(labels: list[int], data: st.DataObject, seed: int) -> None:
    labeled = sum(label >= 0 for label in labels)
    before = rows([0] * len(labels), 3, given=torch.tensor(labels))
    n = data.draw(st.integers(0, max(0, labeled - 3)))
    after = remove_labels(before, n, rng(seed))
    assert before.given.tolist() == labels
    assert int((after.given == -1).sum()) == len(labels) - labeled + n
    assert all(a in (b, -1) for a, b in zip(after.given.tolist(), labels, strict=True))
    assert torch.equal(after.true, before.true)
    assert torch.equal(after.given, remove_labels(before, n, rng(seed)).given)


def test_removing_too_many_labels_is_refused() -> None:
    message = (
        "cannot remove the labels of {} rows: of 9 labeled rows at least 3 must stay labeled, the number of classes; "
        "give 0 to 6"
    )
    for n in (7, -1):
        with raises(message.format(n)):
            remove_labels(rows([0, 1, 2] * 3 + [-1], 3), n, rng())
    assert int((remove_labels(rows([0, 1, 2] * 3, 3), 6, rng()).given >= 0).sum()) == 3


def test_limit_rows() -> None:
    whole = rows([0, 1, 2] * 10, 3)
    assert limit_rows(whole, None, rng()) is whole
    limited = numbers(limit_rows(whole, 12, rng()))
    assert len(limited) == 12
    assert limited == sorted(limited)
    assert limited != numbers(limit_rows(whole, 12, rng(1)))
    for n in (0, 1, 31, -2):
        with raises(f"limit is {n}, and there are 30 training rows; give 2 to 30"):
            limit_rows(whole, n, rng())
