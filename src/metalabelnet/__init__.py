"""Train classifiers on noisy labels with a small clean set.

`MetaLabelNetClassifier` is the scikit-learn estimator, `fit` trains a PyTorch network on PyTorch data sets, and the
command `metalabelnet` works on files. All three return a model, a corrected label for every training sample, and the
given labels that are suspected to be wrong. `NoCleanSetWarning` is issued where no clean set is given.

References
----------
Görkem Algan and Ilkay Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels",
https://arxiv.org/abs/2103.10869
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.lazy_import import lazy_names

if TYPE_CHECKING:
    from metalabelnet.estimator import MetaLabelNetClassifier
    from metalabelnet.pytorch import fit
    from metalabelnet.train.in_memory import NoCleanSetWarning

__all__ = ["MetaLabelNetClassifier", "NoCleanSetWarning", "__version__", "fit"]
__version__ = "0.1.0"

_MODULES = {
    "MetaLabelNetClassifier": "metalabelnet.estimator",
    "NoCleanSetWarning": "metalabelnet.train.in_memory",
    "fit": "metalabelnet.pytorch",
}
# Imported on first use: PyTorch takes seconds to import, and scikit-learn is optional.
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
