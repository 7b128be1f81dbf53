"""MetaLabelNetClassifier(estimator=…): soft labels as weighted rows, corrected labels, sparse tables, texts, errors."""

import pickle
import re
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from metalabelnet import MetaLabelNetClassifier, NoCleanSetWarning
from metalabelnet.core.logistic import fit_logistic, log_softmax, logits
from metalabelnet.errors import InputError
from metalabelnet.estimator.soft_label_fit import fit_soft_labels
from metalabelnet.estimator.weighted_rows import UNIFORM_SHARE, fit_rows, repeat_rows
from metalabelnet.methods import linear_metalabelnet, logistic
from metalabelnet.methods.fixed_features import FixedFeatures
from noisy_data import add_label_noise, blobs
from user_data import text_rows


def naive_bayes(**changes: Any) -> MetaLabelNetClassifier:
    return MetaLabelNetClassifier(estimator=GaussianNB(), **changes)


def test_rows_stand_for_soft_labels() -> None:
    q = np.array([[0.7, 0.29, 0.01], [0, 1, 0], [0.005, 0.01, 0.985], [1 / 3, 1 / 3, 1 / 3]])
    rows, labels, weights = repeat_rows(q, np.array([1.0, 2.0, 1.0, 0.0]), min_share=0.02)
    assert rows.tolist() == [0, 0, 1, 2]
    assert labels.tolist() == [0, 1, 1, 2]
    np.testing.assert_allclose(weights, [0.7 / 0.99, 0.29 / 0.99, 2, 1])
    few = repeat_rows(np.full((1, 100), 0.01), np.ones(1))  # no class reaches the minimum: all of the largest stay
    np.testing.assert_allclose(few[2], 0.01)


def test_weighted_rows_have_the_solution_of_soft_labels() -> None:
    """Logistic regression by our own solver on soft labels, and by scikit-learn on weighted rows."""
    rng = np.random.default_rng(0)
    X, q, w = rng.normal(size=(80, 4)), rng.dirichlet(np.ones(3) * 3, 80), rng.uniform(0.5, 3, 80)
    q = np.maximum(q, 0.05) / np.maximum(q, 0.05).sum(1, keepdims=True)
    expected = log_softmax(logits(X, fit_logistic(X, q, w, 0.5, tolerance=1e-10)))
    found = fit_rows(LogisticRegression(C=2, tol=1e-10, max_iter=1000), X, q, w).log_proba(X)
    np.testing.assert_allclose(np.exp(found), (1 - UNIFORM_SHARE) * np.exp(expected) + UNIFORM_SHARE / 3, atol=1e-5)


class StrictLabels(ClassifierMixin, BaseEstimator):
    """Accepts labels without gaps only, as XGBoost does, and at least two classes."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "StrictLabels":
        self.classes_ = np.unique(y)
        assert self.classes_.tolist() == list(range(len(self.classes_)))
        assert len(self.classes_) > 1
        assert (sample_weight > 0).all()
        self.frequency_ = np.bincount(y, sample_weight) / sample_weight.sum()
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.tile(self.frequency_, (len(X), 1))


def test_labels_are_numbered_without_gaps() -> None:
    q = np.eye(4)[[0, 3, 3, 3]]
    p = np.exp(fit_rows(StrictLabels(), np.zeros((4, 1)), q, np.ones(4)).log_proba(np.zeros((2, 1))))
    expected = (1 - UNIFORM_SHARE) * np.array([0.25, 0, 0, 0.75]) + UNIFORM_SHARE / 4
    np.testing.assert_allclose(p, [expected] * 2)
    one_class = np.exp(fit_rows(StrictLabels(), np.zeros((4, 1)), np.eye(4)[[2] * 4], np.ones(4)).log_proba(p))
    np.testing.assert_allclose(one_class.argmax(1), 2)
    none = np.exp(fit_rows(StrictLabels(), np.zeros((4, 1)), q, np.zeros(4)).log_proba(p))
    np.testing.assert_allclose(none, 0.25)
    data = blobs()
    rare = np.where(np.arange(160) == np.flatnonzero(data.clean_mask)[0], 3, data.y)  # one row of class 3, a clean one
    clf = MetaLabelNetClassifier(estimator=StrictLabels()).fit(data.X, rare, clean_mask=data.clean_mask)
    assert clf.predict_proba(data.X_test).shape == (100, 4)


def test_labels_and_suspects() -> None:
    data = blobs()
    y = data.y.copy()
    unlabeled = np.flatnonzero(~data.clean_mask)[:20]
    y[unlabeled] = -1
    clf = naive_bayes().fit(data.X, y, clean_mask=data.clean_mask)
    assert (clf.labels_[data.clean_mask] == data.y[data.clean_mask]).all()
    assert not clf.suspects_[data.clean_mask | (y == -1)].any()
    assert (clf.labels_ == data.true).mean() > 0.95 > 0.9 > (data.y == data.true).mean()
    rest, wrong = ~data.clean_mask & (y != -1), data.y != data.true
    assert clf.suspects_[rest & wrong].mean() > 0.9
    assert clf.suspects_[rest & ~wrong].mean() < 0.1
    assert clf.score(data.X_test, data.y_test) > 0.95
    assert clf.summary_["samples"] == {"train": 142, "clean": 18}
    assert clf.summary_["clean_accuracy"] > 90
    np.testing.assert_allclose(clf.predict_proba(data.X_test).sum(1), 1)
    assert isinstance(clf.estimator_, GaussianNB)


def test_better_than_given_labels_and_not_behind_clean_labels() -> None:
    """Half of the labels are wrong, so that 60 clean samples are better than the given labels."""
    true = np.arange(1200) % 3
    X = np.random.default_rng(0).normal(size=(1200, 6)) + 2 * np.eye(6)[true]
    data = add_label_noise(X, true, clean=20, wrong=0.5, test=600)
    forest, mask = RandomForestClassifier(20, random_state=0), data.clean_mask
    clf = MetaLabelNetClassifier(estimator=forest).fit(data.X, data.y, clean_mask=mask)
    score = clf.score(data.X_test, data.y_test)
    given = clone(forest).fit(data.X, data.y).score(data.X_test, data.y_test)
    clean = clone(forest).fit(data.X[mask], data.y[mask]).score(data.X_test, data.y_test)
    assert score > given + 0.1
    assert score > clean - 2 * np.sqrt(0.2 * 0.8 / 600)  # two standard errors


def test_a_held_out_clean_label_does_not_reach_its_own_prediction() -> None:
    """With labels that say nothing, cross-validated accuracy is that of guessing."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 3)), rng.integers(0, 2, 400)
    found = fit_soft_labels(DecisionTreeClassifier(random_state=0), X, y, np.arange(400) < 300, 2)
    assert abs(found.clean_accuracy - 50) < 4 * 50 / np.sqrt(300)  # four standard errors


def test_sparse_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense features are rotated and preconditioned, sparse ones are not: their solutions are the same."""
    for module, name in (
        (linear_metalabelnet, "TOLERANCE"),
        (linear_metalabelnet, "CROSS_FIT_TOLERANCE"),
        (logistic, "CROSS_FIT_TOLERANCE"),
    ):
        monkeypatch.setattr(module, name, 1e-9)
    for name in ("suits_naive_bayes", "suits_discriminant"):  # for sparse, or for dense features only
        monkeypatch.setattr(FixedFeatures, name, False)
    data = blobs()
    X, X_test = (((x > np.median(data.X, 0)) * 1.0) for x in (data.X, data.X_test))
    for clf in (
        MetaLabelNetClassifier(estimator=BernoulliNB()),
        MetaLabelNetClassifier("metalabelnet-plus", standardize=False, random_state=0, device="cpu"),
    ):
        dense = clone(clf).fit(X, data.y, clean_mask=data.clean_mask)
        sparse = clf.fit(scipy.sparse.csc_array(X), data.y, clean_mask=data.clean_mask)
        p = sparse.predict_proba(scipy.sparse.csr_matrix(X_test))
        np.testing.assert_allclose(p, dense.predict_proba(X_test), atol=1e-6)
        assert (sparse.labels_ == dense.labels_).all()
    with pytest.raises(InputError, match="X is sparse, and method='metalabelnet' trains a network"):
        MetaLabelNetClassifier("metalabelnet").fit(scipy.sparse.csr_matrix(X), data.y, clean_mask=data.clean_mask)
    with pytest.raises(InputError, match="too large for float32"):
        clf.fit(scipy.sparse.csr_matrix(X * 1e30), data.y, clean_mask=data.clean_mask)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        naive_bayes().fit(scipy.sparse.csr_matrix(X), data.y, clean_mask=data.clean_mask)


def test_error_for_texts_shows_a_pipeline_that_works() -> None:
    pandas = pytest.importorskip("pandas")
    rows = text_rows(60)
    texts, y, clean_mask = ([row[k] for row in rows] for k in range(3))
    clean_mask = np.array(clean_mask).astype(int) == 1
    forms = (
        texts,
        np.array(texts),
        np.array(texts, dtype=object),
        pandas.Series(texts),
        pandas.DataFrame({"t": texts}),
        np.array(texts)[:, None],
        np.array(texts, dtype=object)[:, None],
        [[text] for text in texts],
    )
    names = {"make_pipeline": make_pipeline, "TfidfVectorizer": TfidfVectorizer, "clean_mask": clean_mask}
    names |= {"texts": texts, "y": y, "MetaLabelNetClassifier": MetaLabelNetClassifier}
    names |= {"LogisticRegression": LogisticRegression}
    for clf, shown in ((naive_bayes(), "estimator="), (MetaLabelNetClassifier(), "'metalabelnet-plus'")):
        for X in forms:
            with pytest.raises(InputError, match="X contains texts") as caught:
                clf.fit(X, y, clean_mask=clean_mask)
        code = re.search(r"make_pipeline.*\)$", str(caught.value))
        assert "\n" not in str(caught.value)
        assert shown in code.group()
        assert eval(code.group(), names).score(texts, y) > 0.5


def test_parameters_clone_and_pickle() -> None:
    data = blobs()
    clf = MetaLabelNetClassifier(estimator=DecisionTreeClassifier(splitter="random"), random_state=3)
    clf.set_params(estimator__min_samples_leaf=4)
    assert clf.get_params()["estimator__min_samples_leaf"] == 4
    first, again = (clone(clf).fit(data.X, data.y, clean_mask=data.clean_mask) for _ in range(2))
    assert np.array_equal(first.predict_proba(data.X_test), again.predict_proba(data.X_test))
    other = clone(clf).set_params(random_state=4).fit(data.X, data.y, clean_mask=data.clean_mask)
    assert not np.array_equal(first.predict_proba(data.X_test), other.predict_proba(data.X_test))
    assert clf.estimator.random_state is None
    read = pickle.loads(pickle.dumps(first))
    assert np.array_equal(read.predict_proba(data.X_test), first.predict_proba(data.X_test))


def test_pipeline_as_estimator() -> None:
    data = blobs()
    own = make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), GaussianNB()))
    clf = MetaLabelNetClassifier(estimator=own).fit(data.X, data.y, clean_mask=data.clean_mask)
    assert clf.score(data.X_test, data.y_test) > 0.95


@pytest.mark.slow
def test_data_frame_with_missing_values() -> None:
    pandas = pytest.importorskip("pandas")
    data = blobs()
    frame = pandas.DataFrame(data.X, columns=list("abcde"))
    frame["kind"] = pandas.Categorical(np.array(["x", "y", "z"])[data.true])
    frame.iloc[::7, 0] = np.nan
    boosting = HistGradientBoostingClassifier(max_iter=20, min_samples_leaf=5, categorical_features="from_dtype")
    clf = MetaLabelNetClassifier(estimator=boosting, random_state=0).fit(frame, data.y, clean_mask=data.clean_mask)
    assert clf.feature_names_in_.tolist() == [*"abcde", "kind"]
    assert (clf.predict(frame) == data.true).mean() > 0.95
    assert (clf.labels_ == data.true).mean() > 0.95


def test_without_clean_set() -> None:
    data = blobs()
    with pytest.warns(NoCleanSetWarning, match="fitted to the given labels") as caught:
        clf = naive_bayes().fit(data.X, data.y)
    assert caught[0].filename == __file__
    wrong = data.y != data.true
    assert clf.suspects_[wrong].mean() > 0.9
    assert clf.suspects_[~wrong].mean() < 0.1
    np.testing.assert_allclose(
        clf.predict_proba(data.X_test),
        (1 - UNIFORM_SHARE) * GaussianNB().fit(data.X, data.y).predict_proba(data.X_test) + UNIFORM_SHARE / 3,
    )


def test_only_clean_and_unlabeled_samples() -> None:
    data = blobs()
    clf = naive_bayes().fit(data.X, np.where(data.clean_mask, data.y, -1), clean_mask=data.clean_mask)
    assert (clf.labels_ == data.true).mean() > 0.9
    assert not clf.suspects_.any()
    all_clean = naive_bayes().fit(data.X, data.true, clean_mask=np.ones(160, dtype=bool))
    assert all_clean.score(data.X_test, data.y_test) > 0.95
    assert (all_clean.labels_ == data.true).all()


def test_fit_again_without_estimator() -> None:
    data = blobs()
    clf = naive_bayes(device="cpu").fit(data.X, data.y, clean_mask=data.clean_mask)
    clf.set_params(estimator=None).fit(data.X, data.y, clean_mask=data.clean_mask)
    assert hasattr(clf, "model_")
    assert not hasattr(clf, "estimator_")
    assert clf.predict_proba(data.X_test).shape == (100, 3)
    clf.set_params(estimator=GaussianNB()).fit(data.X, data.y, clean_mask=data.clean_mask)
    assert not hasattr(clf, "model_")


def test_wrong_input() -> None:
    data = blobs()
    for sentence, changes in (
        ("takes no sample_weight in fit", {"estimator": KNeighborsClassifier()}),
        ("RidgeClassifier.* has no predict_proba", {"estimator": RidgeClassifier()}),
        ("give a scikit-learn classifier", {"estimator": GaussianNB}),
        ("give a scikit-learn classifier", {"estimator": "forest"}),
        ("method='gce' is for networks, and estimator=GaussianNB", {"method": "gce"}),
        ("net='mlp' is for networks", {"net": "mlp"}),
    ):
        with pytest.raises(InputError, match=sentence):
            MetaLabelNetClassifier(**{"estimator": GaussianNB(), **changes}).fit(data.X, data.y, data.clean_mask)
    with pytest.raises(InputError, match="class '2' is missing from the clean set"):
        naive_bayes().fit(data.X, data.y, clean_mask=data.clean_mask & (data.y != 2))
    with pytest.raises(ValueError, match="NaN"):
        naive_bayes().fit(np.where(data.X > 5, np.nan, data.X), data.y, clean_mask=data.clean_mask)


def test_parameters_of_networks_have_no_effect() -> None:
    data = blobs()
    clf = naive_bayes(epochs=2, standardize=False, random_state=0, device="cpu")
    sentence = "epochs=2, standardize=False have no effect: GaussianNB is fitted in place of a network"
    with pytest.warns(UserWarning, match=f"^{re.escape(sentence)}$") as caught:
        clf.fit(data.X, data.y, clean_mask=data.clean_mask)
    assert [warning.filename for warning in caught] == [__file__]
