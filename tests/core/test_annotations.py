from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from metalabelnet.core.annotations import ABSTAINED, Annotations

NAMES = ("a", "b", "c")
TABLES = arrays.arrays(np.int64, st.tuples(st.integers(1, 8), st.just(3)), elements=st.integers(-1, 3))


def to_table(annotations):
    table = np.full((annotations.size, len(annotations.names)), -1)
    table[annotations.sample, annotations.annotator] = annotations.label
    return table


@given(TABLES, st.data())
def test_take_and_concat_are_those_of_the_table(table, data):
    annotations = Annotations.from_array(table, NAMES)
    positions = np.array(data.draw(st.lists(st.integers(0, len(table) - 1), max_size=10)), dtype=np.int64)
    np.testing.assert_array_equal(to_table(annotations.take(positions)), table[positions])
    both = annotations.take(positions).concat(annotations)
    np.testing.assert_array_equal(to_table(both), np.concatenate([table[positions], table]))
    assert (np.diff(both.sample) >= 0).all()


@given(TABLES)
def test_majority_vote_is_a_class_with_the_most_votes(table):
    annotations = Annotations.from_array(table, NAMES)
    for row, vote in zip(table, annotations.majority_vote(4), strict=True):
        counts = np.bincount(row[row >= 0], minlength=4)
        assert vote == ABSTAINED if not counts.any() else counts[vote] == counts.max()


def test_ties_go_to_the_tied_classes_in_turn():
    table = np.array([[2, 0, -1], [1, 1, 0], [0, 2, -1], [2, 0, -1], [0, 1, 2], [-1, -1, -1]])
    assert Annotations.from_array(table, NAMES).majority_vote(3).tolist() == [0, 1, 2, 0, 0, ABSTAINED]


def test_abstentions_are_no_votes():
    entries = (np.array([0, 0, 0]), np.array([0, 1, 2]), np.array([ABSTAINED, ABSTAINED, 1]))
    annotations = Annotations.from_entries(*entries, size=1, names=NAMES)
    assert annotations.votes(2).tolist() == [[0, 1]]
    assert len(annotations) == 3
