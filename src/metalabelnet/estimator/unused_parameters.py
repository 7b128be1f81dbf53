"""Warnings about parameters of the estimator without effect: those of network training where no network is trained."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import shorten_value
from metalabelnet.methods import LogisticMethod
from metalabelnet.run_options import NETWORK_OPTIONS
from metalabelnet.train.build_method import find_method_class

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metalabelnet.estimator.classifier import MetaLabelNetClassifier
    from metalabelnet.train.in_memory import PreparedRun

NETWORK_PARAMETERS = (*NETWORK_OPTIONS, "head")  # of which the estimator has some
# Beside `estimator`, which is fitted to samples as they came. Another method or network raises an error.
UNUSED_WITH_ESTIMATOR = (*NETWORK_PARAMETERS, "augment", "standardize", "channels", "settings")


def warn_of_linear_fit(clf: MetaLabelNetClassifier, prepared: PreparedRun) -> None:
    """Warn if parameters of network training are set and the method fits a linear layer."""
    if not isinstance(clf.net, str):  # a module is trained
        return
    if issubclass(find_method_class(prepared.run, prepared.problem), LogisticMethod):
        network = "" if prepared.run.method.startswith("logistic") else "; net='mlp' trains a network"
        _warn(clf, NETWORK_PARAMETERS, f"{prepared.run.method} fits a linear layer to these samples{network}", 4)


def warn_of_estimator(clf: MetaLabelNetClassifier) -> None:
    """Warn if parameters are set that do not apply beside `estimator`."""
    _warn(clf, UNUSED_WITH_ESTIMATOR, f"{type(clf.estimator).__name__} is fitted in place of a network", 5)


def _warn(clf: MetaLabelNetClassifier, names: Iterable[str], reason: str, stacklevel: int) -> None:
    """Warn, `stacklevel` calls up, if one of these parameters has another value than its default."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(type(clf).__init__).parameters.items()}
    changed = [
        f"{name}={shorten_value(getattr(clf, name))}"
        for name in names
        if name in defaults and not _equal(getattr(clf, name), defaults[name])
    ]
    if changed:
        have = "has" if len(changed) == 1 else "have"
        warnings.warn(f"{', '.join(changed)} {have} no effect: {reason}", UserWarning, stacklevel=stacklevel)


def _equal(value: Any, default: Any) -> bool:
    if value is default:
        return True
    return isinstance(value, str | int | float | bool) and type(value) is type(default) and value == default
