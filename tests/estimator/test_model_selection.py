"""The estimator in scikit-learn's tools: pipelines, cross-validation with a routed clean mask, grid search."""

from typing import Any

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from metalabelnet import MetaLabelNetClassifier
from noisy_data import blobs


def quick(**changes: Any) -> MetaLabelNetClassifier:
    return MetaLabelNetClassifier(**{"random_state": 0, "device": "cpu", **changes})


def folds(clean_mask: np.ndarray, y: np.ndarray) -> list[Any]:
    """Return folds stratified by class and clean mask."""
    return list(StratifiedKFold(2, shuffle=True, random_state=0).split(y, 2 * y + clean_mask))


def test_pipeline() -> None:
    data = blobs()
    plain = quick().fit(data.X, data.y, clean_mask=data.clean_mask).predict_proba(data.X_test)
    pipe = make_pipeline(StandardScaler(), quick()).fit(
        data.X, data.y, metalabelnetclassifier__clean_mask=data.clean_mask
    )
    assert np.abs(pipe.predict_proba(data.X_test) - plain).max() < 1e-3
    with config_context(enable_metadata_routing=True):
        routed = make_pipeline(StandardScaler(), quick().set_fit_request(clean_mask=True))
        routed.fit(data.X, data.y, clean_mask=data.clean_mask)
        assert np.array_equal(routed.predict_proba(data.X_test), pipe.predict_proba(data.X_test))


def test_cross_validation_routes_clean_mask() -> None:
    data = blobs()
    cv = folds(data.clean_mask, data.y)
    with config_context(enable_metadata_routing=True):
        clf = quick().set_fit_request(clean_mask=True)
        scores = cross_val_score(
            clf, data.X, data.y, cv=cv, params={"clean_mask": data.clean_mask}, error_score="raise"
        )
    by_hand = [
        quick().fit(data.X[a], data.y[a], clean_mask=data.clean_mask[a]).score(data.X[b], data.y[b]) for a, b in cv
    ]
    assert scores.tolist() == by_hand
    assert scores.min() > 0.55  # 30 % of the labels are wrong


def test_score_ignores_unlabeled_samples() -> None:
    data = blobs()
    clf = quick().fit(data.X, data.y, clean_mask=data.clean_mask)
    y, weight = data.y_test.copy(), np.arange(len(data.y_test))
    y[::3] = -1
    known = y != -1
    assert (
        clf.score(data.X_test, y)
        == clf.score(data.X_test[known], y[known])
        == (clf.predict(data.X_test) == y)[known].mean()
    )
    assert clf.score(data.X_test, y, weight) == clf.score(data.X_test[known], y[known], weight[known])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clf.score(data.X_test, y[:10])
    with pytest.raises(ValueError, match="give at least one labeled sample to score"):
        clf.score(data.X_test, np.full(len(y), -1))
    noisy = data.y.copy()
    noisy[np.flatnonzero(~data.clean_mask)[::4]] = -1
    cv = folds(data.clean_mask, data.true)
    with config_context(enable_metadata_routing=True):
        routed = quick().set_fit_request(clean_mask=True)
        scores = cross_val_score(
            routed, data.X, noisy, cv=cv, params={"clean_mask": data.clean_mask}, error_score="raise"
        )
    by_hand = []
    for a, b in cv:
        b = b[noisy[b] != -1]
        by_hand.append(quick().fit(data.X[a], noisy[a], clean_mask=data.clean_mask[a]).score(data.X[b], noisy[b]))
    assert scores.tolist() == by_hand


def test_grid_search_over_methods_and_settings() -> None:
    data = blobs()
    grid = [
        {"method": ["metalabelnet"], "settings": [{"beta": 1e-2}, {"beta": 1e-3}]},
        {"method": ["gce", "fine-tune"]},
    ]
    with config_context(enable_metadata_routing=True):
        clf = quick(epochs=4).set_fit_request(clean_mask=True)
        search = GridSearchCV(clf, grid, cv=folds(data.clean_mask, data.y), error_score="raise")
        search.fit(data.X, data.y, clean_mask=data.clean_mask)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_.method_ == search.best_params_["method"]
    assert search.best_estimator_.score(data.X_test, data.y_test) > 0.8


def test_clone() -> None:
    data = blobs()
    clf = quick(epochs=4, settings={"sharpening": 1.5}, net=nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)))
    clf.fit(data.X, data.y, clean_mask=data.clean_mask)
    other = clone(clf)
    assert not hasattr(other, "model_")
    other.fit(data.X, data.y, clean_mask=data.clean_mask)
    assert np.array_equal(clf.predict_proba(data.X), other.predict_proba(data.X))


def test_pandas_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    data = blobs()
    X = pandas.DataFrame(data.X, columns=list("abcde"))
    y = pandas.Series(np.array(["x", "y", "z"])[data.y]).astype("string")
    y[np.flatnonzero(~data.clean_mask)[:3]] = pandas.NA
    clf = quick().fit(X, y, clean_mask=pandas.Series(data.clean_mask))
    assert clf.feature_names_in_.tolist() == list("abcde")
    assert set(clf.predict(X)) <= {"x", "y", "z"}
    assert len(clf.classes_) == 3
