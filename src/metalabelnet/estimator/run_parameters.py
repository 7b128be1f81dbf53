"""The parameters of the estimator as a run."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from metalabelnet.errors import InputError
from metalabelnet.train.settings import IN_MEMORY, make_run

if TYPE_CHECKING:
    from metalabelnet.estimator.classifier import MetaLabelNetClassifier
    from metalabelnet.train import Run

MIN_STEPS_TO_COMPILE = 5000  # on a GPU: fewer eager steps take less time than compiling them


def build_run(clf: MetaLabelNetClassifier, labeled: int) -> Run:
    """Return the parameters as a run on this many labeled samples; raise InputError for a value that is not allowed."""
    for name in ("epochs", "warmup", "batch_size"):
        value = getattr(clf, name)
        if not isinstance(value, Integral) and not (value == "auto" and name != "epochs"):
            raise InputError(f"{name}={value!r}: give an integer{'' if name == 'epochs' else ', or auto'}")
    for name in ("lr", "momentum", "weight_decay"):
        value = getattr(clf, name)
        if not isinstance(value, Real) and not (value == "auto" and name != "momentum"):
            raise InputError(f"{name}={value!r}: give a number{'' if name == 'momentum' else ', or auto'}")
    if not isinstance(clf.settings, Mapping | None):
        raise InputError(
            f"settings={clf.settings!r}: give a mapping of the method's settings, such as {{'beta': 0.001}}"
        )
    if isinstance(clf.lr_milestones, str) and clf.lr_milestones != "auto":
        raise InputError(f"lr_milestones={clf.lr_milestones!r}: give epochs, such as (10, 20), or auto")
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
        settings=dict(clf.settings or {}),
        net=clf.net if isinstance(clf.net, str) else "auto",
        head=clf.head,
        epochs=epochs,
        batch_size=size,
        momentum=clf.momentum,
        augment=clf.augment,
        seed=seed_from(clf.random_state),
        device=clf.device,
        execution="eager" if clf.execution == "auto" and steps < MIN_STEPS_TO_COMPILE else clf.execution,
        **{name: value for name, value in by_recipe.items() if not isinstance(value, str)},
    )


def seed_from(state: Any) -> int:
    """Return an integer seed, or a number drawn from a generator."""
    if isinstance(state, Integral):
        return int(state)
    if isinstance(state, np.random.Generator):
        return int(state.integers(2**31 - 1))
    return int(check_random_state(state).randint(2**31 - 1))
