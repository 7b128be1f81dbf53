"""`MetaLabelNetClassifier(estimator=…)`: fit and predict with a scikit-learn classifier in place of a network."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import check_consistent_length

from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.estimator.annotation_input import read_annotated_labels
from metalabelnet.estimator.input_validation import read_clean_mask, read_labels, read_table
from metalabelnet.estimator.run_parameters import seed_from
from metalabelnet.estimator.soft_label_fit import fit_soft_labels
from metalabelnet.estimator.unused_parameters import warn_of_estimator
from metalabelnet.estimator.weighted_rows import weight_parameter
from metalabelnet.labels.correction import decide_labels
from metalabelnet.train.in_memory import NoCleanSetWarning, check_every_class

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metalabelnet.estimator.classifier import MetaLabelNetClassifier

METHOD = "metalabelnet-plus"  # whose label model the classifier is fitted with


def fit_estimator(clf: MetaLabelNetClassifier, X: Any, y: Any, clean_mask: Any, annotations: Any) -> None:
    """Fit `estimator` to soft labels and set the attributes of the fitted `clf`."""
    estimator = _seeded_clone(clf)
    warn_of_estimator(clf)
    x = read_table(clf, X, reset=True)
    if annotations is None:
        given, clf.classes_ = read_labels(y, type(clf).__name__)
    else:
        given, clf.classes_, _ = read_annotated_labels(y, annotations, type(clf).__name__)
    check_consistent_length(x, given)
    mask = read_clean_mask(clean_mask, given)
    if mask.any():
        check_every_class(torch.from_numpy(given[mask]), tuple(map(str, clf.classes_.tolist())))
    else:
        warnings.warn(
            "there is no clean set: the classifier is fitted to the given labels. Check a few labels of each class and "
            "pass them as clean set",
            NoCleanSetWarning,
            stacklevel=3,
        )
    found = fit_soft_labels(estimator, x, given, mask, len(clf.classes_))
    decisions = decide_labels(torch.from_numpy(found.q), torch.from_numpy(given[~mask]), calibrated=bool(mask.any()))
    label, clf.suspects_ = given.copy(), np.zeros(len(given), dtype=bool)
    label[~mask], clf.suspects_[~mask] = decisions.label.numpy(), decisions.suspect.numpy()
    clf.labels_ = clf.classes_[label]
    clf.classifier_, clf.estimator_ = found.classifier, found.classifier.models[0].estimator
    clf.method_, clf.history_ = METHOD, []
    clf.summary_ = {
        "method": METHOD,
        "clean_accuracy": found.clean_accuracy,
        "samples": {"train": int((~mask).sum()), "clean": int(mask.sum())},
        "unlabeled": int((given == UNLABELED).sum()),
        "suspects": int(clf.suspects_.sum()),
    }


def predict_estimator(clf: MetaLabelNetClassifier, X: Any) -> NDArray[np.float64]:
    """Return calibrated probabilities of the classes."""
    p: NDArray[np.float64] = clf.classifier_.predict_proba(read_table(clf, X, reset=False))
    return p


def _seeded_clone(clf: MetaLabelNetClassifier) -> Any:
    """Return a clone of `estimator` with `random_state` where it has none; raise InputError if it cannot be used."""
    weight_parameter(clf.estimator)
    for name, allowed in (("method", (METHOD,)), ("net", ("auto",))):
        if getattr(clf, name) not in allowed:
            raise InputError(
                f"{name}={getattr(clf, name)!r} is for networks, and estimator={type(clf.estimator).__name__}(…) is "
                "not one: leave out one of them"
            )
    estimator = clone(clf.estimator)
    if clf.random_state is not None:
        names = [name for name, value in estimator.get_params().items() if value is None]
        unset = [name for name in names if name.rpartition("__")[2] == "random_state"]
        estimator.set_params(**dict.fromkeys(unset, seed_from(clf.random_state)))
    return estimator
