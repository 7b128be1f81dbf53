"""scikit-learn's own checks, with few epochs: without a clean set, and with every label trusted."""

from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from metalabelnet import MetaLabelNetClassifier

MINUS_ONE = {"check_classifiers_classes": "it takes -1 and 1 for classes, and -1 means unlabeled here"}


class Trusting(MetaLabelNetClassifier):
    """Trusts all labels, so that the checks run MetaLabelNet itself."""

    def fit(self, X: Any, y: Any, clean_mask: Any = None) -> "Trusting":
        return super().fit(X, y, clean_mask=None if y is None else np.ones(len(np.asarray(y)), dtype=bool))


@pytest.mark.filterwarnings("ignore::metalabelnet.NoCleanSet")
@parametrize_with_checks(
    [MetaLabelNetClassifier(epochs=6, device="cpu"), Trusting(epochs=4, device="cpu")],
    expected_failed_checks=lambda _: MINUS_ONE,
    xfail_strict=True,
)
def test_scikit_learns_check(estimator: Any, check: Any) -> None:
    check(estimator)
