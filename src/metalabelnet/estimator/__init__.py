"""The scikit-learn interface: `MetaLabelNetClassifier`."""

from __future__ import annotations

from metalabelnet.errors import missing_package_error

try:
    from sklearn.utils.validation import validate_data as _  # noqa: F401  (since 1.6)
except ImportError as error:
    raise missing_package_error("scikit-learn 1.6 or newer", "sklearn", "MetaLabelNetClassifier") from error

from metalabelnet.estimator.classifier import MetaLabelNetClassifier

__all__ = ["MetaLabelNetClassifier"]
