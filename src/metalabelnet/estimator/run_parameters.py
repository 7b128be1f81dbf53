"""The parameters of the estimator as a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from metalabelnet.errors import InputError, shorten_value
from metalabelnet.train.settings import IN_MEMORY, make_run

if TYPE_CHECKING:
    from metalabelnet.estimator.classifier import MetaLabelNetClassifier
    from metalabelnet.train import Run

MIN_STEPS_TO_COMPILE = 5000  # on a GPU: fewer eager steps take less time than compiling them

_TYPES = (  # parameters, their types, and what an error tells the user to give
    *((name, Integral, "an integer") for name in ("epochs", "warmup", "batch_size")),
    *((name, Real, "a number") for name in ("lr", "momentum", "weight_decay")),
    ("lr_milestones", Iterable, "epochs, such as (10, 20)"),
)


def build_run(clf: MetaLabelNetClassifier, labeled: int) -> Run:
    """Return the parameters as a run on this many labeled samples; raise InputError for a value that is not allowed."""
    for name, kind, expected in _TYPES:
        value = getattr(clf, name)
        has_auto = name not in ("epochs", "momentum")
        is_auto = has_auto and isinstance(value, str) and value == "auto"
        if not is_auto and (isinstance(value, bool | str | bytes) or not isinstance(value, kind)):
            raise InputError(f"{name}={shorten_value(value)}: give {expected}{', or auto' if has_auto else ''}")
    if not isinstance(clf.settings, Mapping | None):
        raise InputError(
            f"settings={shorten_value(clf.settings)}: give a mapping of the method's settings, such as "
            "{'beta': 0.001}"
        )
    epochs = int(clf.epochs)
    size = min(64, max(8, labeled // 16)) if clf.batch_size == "auto" else int(clf.batch_size)
    steps = epochs * max(1, labeled // max(1, size))
    by_recipe = {
        "warmup": clf.warmup,
        "lr": clf.lr,
        "lr_milestones": clf.lr_milestones,
        "weight_decay": clf.weight_decay,
    }
    return make_run(
        IN_MEMORY,
        recipe=clf.recipe,
        data_format="memory",
        method=clf.method,
        settings=clf.settings or {},
        net=clf.net if isinstance(clf.net, str) else "auto",
        head=clf.head,
        epochs=epochs,
        batch_size=size,
        momentum=clf.momentum,
        augment=clf.augment,
        seed=seed_from(clf.random_state),
        device=clf.device,
        execution="eager" if str(clf.execution) == "auto" and steps < MIN_STEPS_TO_COMPILE else clf.execution,
        **{name: value for name, value in by_recipe.items() if not isinstance(value, str)},
    )


def seed_from(state: Any) -> int:
    """Return an integer seed, or a number drawn from a generator."""
    if isinstance(state, Integral):
        return int(state)
    if isinstance(state, np.random.Generator):
        return int(state.integers(2**31 - 1))
    try:
        return int(check_random_state(state).randint(2**31 - 1))
    except ValueError:
        raise InputError(
            f"random_state={shorten_value(state)}: give an integer, a RandomState, a Generator, or None"
        ) from None
