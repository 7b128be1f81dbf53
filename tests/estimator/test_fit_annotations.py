"""`fit(X, y, annotations=…)`: formats of the annotations, and what they are used for."""

import numpy as np
import pandas as pd
import pytest

from metalabelnet import MetaLabelNetClassifier, NoCleanSetWarning
from metalabelnet.errors import InputError

N, CLEAN = 300, 36


def data():
    random = np.random.default_rng(0)
    true = np.arange(N) % 3
    X = random.normal(size=(N, 4)) + 1.5 * np.eye(4)[true]
    labels = [np.where(random.random(N) < a, true, random.integers(0, 3, N)) for a in (0.9, 0.5, 0.3)]
    table = np.where(random.random((N, 3)) < 0.8, np.stack(labels, 1), -1)
    return X, true, table


def classifier():
    return MetaLabelNetClassifier("metalabelnet-plus", random_state=0, device="cpu")


def test_formats_of_annotations_are_equivalent():
    X, true, table = data()
    mask = np.arange(N) < CLEAN
    y = np.where(mask, true, -1)
    fitted = classifier().fit(X, y, clean_mask=mask, annotations=table)
    assert (fitted.labels_ == true).mean() > 0.85
    good, bad = (next(one for one in fitted.summary_["annotators"] if one["annotator"] == name) for name in ("0", "2"))
    assert good["low"] > bad["high"]
    assert good["clean_labels"] == (table[:CLEAN, 0] >= 0).sum()
    missing = np.where(table < 0, np.nan, table)
    names = np.array(["a", "b", "c", None], object)
    for classes, labels, annotations in (
        (range(3), y, missing),
        (range(3), y, pd.DataFrame(missing).astype("Int64")),
        ("abc", names[y], pd.DataFrame(names[table], columns=["x", "y", "z"])),
    ):
        other = classifier().fit(X, labels, clean_mask=mask, annotations=annotations)
        assert other.classes_.tolist() == list(classes)
        np.testing.assert_array_equal(other.classes_.searchsorted(other.labels_), fitted.labels_)
    assert {one["annotator"] for one in other.summary_["annotators"]} == {"x", "y", "z"}


def test_long_form_as_the_docstring_says():
    X, true, table = data()
    sample, annotator = np.nonzero(table >= 0)
    frame = pd.DataFrame({"task": sample, "worker": annotator, "label": table[sample, annotator]})
    wide = frame.pivot(index="task", columns="worker", values="label").reindex(range(N))
    mask = np.arange(N) < CLEAN
    y = np.where(mask, true, -1)
    one, two = (classifier().fit(X, y, clean_mask=mask, annotations=a) for a in (table, wide))
    np.testing.assert_array_equal(one.labels_, two.labels_)


def test_majority_vote_without_a_clean_set():
    X, true, table = data()
    with pytest.warns(NoCleanSetWarning):
        fitted = MetaLabelNetClassifier(epochs=2, random_state=0, device="cpu").fit(X, annotations=table)
    assert fitted.method_ == "gce"
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert {one["clean_labels"] for one in fitted.summary_["annotators"]} == {0}
    assert len(fitted.labels_) == len(true)


def test_wrong_annotations():
    X, true, table = data()
    with pytest.raises(InputError, match=r"annotations have the shape \(300,\): give a row for each sample and a col"):
        classifier().fit(X, true, annotations=table[:, 0])
    with pytest.raises(InputError, match="annotations have 299 rows and y has 300 labels: give a row for each sample"):
        classifier().fit(X, true, annotations=table[1:])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier().fit(X, annotations=table[1:])
    with pytest.raises(InputError, match="no sample has a label"):
        classifier().fit(X, annotations=np.full((N, 2), np.nan))
    with pytest.raises(InputError, match="requires y to be passed"):
        classifier().fit(X)
