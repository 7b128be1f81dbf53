"""scikit-learn's common checks, with few epochs: without a clean set, and with every sample clean."""

from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

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
