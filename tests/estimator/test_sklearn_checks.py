"""scikit-learn's common checks, with few epochs: without a clean set, and with every sample clean."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from metalabelnet import MetaLabelNetClassifier

MINUS_ONE = {"check_classifiers_classes": "it takes -1 and 1 for classes, and -1 means unlabeled here"}


class CleanMaskClassifier(MetaLabelNetClassifier):
    """Marks all samples as clean, so that the checks train MetaLabelNet itself."""

    def fit(self, X: Any, y: Any, clean_mask: Any = None) -> "CleanMaskClassifier":
        return super().fit(X, y, clean_mask=None if y is None else np.ones(len(np.asarray(y)), dtype=bool))


@pytest.mark.filterwarnings("ignore::metalabelnet.NoCleanSetWarning")
@parametrize_with_checks(
    [MetaLabelNetClassifier(epochs=2, device="cpu")], expected_failed_checks=lambda _: MINUS_ONE, xfail_strict=True
)
def test_sklearn_common_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [CleanMaskClassifier(epochs=4, device="cpu")], expected_failed_checks=lambda _: MINUS_ONE, xfail_strict=True
)
def test_sklearn_common_checks_with_clean_set(estimator: Any, check: Any) -> None:
    check(estimator)


CHEAP_CHECKS = (
    "check_estimator_sparse",
    "check_fit1d",
    "check_dict_unchanged",
    "check_n_features_in",
    "check_parameter",
)


def own_estimator_checks() -> list[Any]:
    """Return scikit-learn's checks of an estimator of one's own; all but a few are slow."""
    clf = MetaLabelNetClassifier(estimator=LogisticRegression(), random_state=0)
    checks = estimator_checks_generator(clf, legacy=True, expected_failed_checks=MINUS_ONE, mark="skip")
    marked = []
    for estimator, check in checks:
        name = getattr(check, "func", check).__name__
        fast = any(cheap in name for cheap in CHEAP_CHECKS)
        marked.append(pytest.param(estimator, check, id=name, marks=() if fast else pytest.mark.slow))
    return marked


@pytest.mark.filterwarnings("ignore::metalabelnet.NoCleanSetWarning")
@pytest.mark.parametrize(("estimator", "check"), own_estimator_checks())
def test_sklearn_common_checks_of_own_estimator(estimator: Any, check: Any) -> None:
    check(estimator)
