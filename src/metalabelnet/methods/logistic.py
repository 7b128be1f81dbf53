"""Logistic regression on fixed features: given labels, clean labels, or both.

These methods have no epochs: `fit` solves a convex problem to convergence. The decay λ is chosen on one fold, by the
cross-entropy of the labels that the method is fitted to. Every row is then predicted by a model that was fitted without
its fold; these predictions measure the method on the clean rows and judge the given labels of the training rows.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import predict
from metalabelnet.core.logistic import fit_logistic, log_softmax, logits
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import map_chunks
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.methods.fixed_features import FixedFeatures, make_features
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.nets.linear import LinearNet

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from metalabelnet.data.batches import Batch
    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.methods.task import Task

    Array = NDArray[np.float64]

RELATIVE_DECAYS = (3.0, 1.0, 0.3, 0.1, 0.03)  # λ as multiples of the mean squared length of a row
CROSS_FIT_TOLERANCE = 1e-3  # of the models that are fitted without a fold
CLEAN_WEIGHT = 5.0  # of a clean row in `logistic-both`


class FittedLabels(NamedTuple):
    """What a logistic method finds.

    clean_logits  (m, C) logits of the clean rows, each by a model that was fitted without it
    log_p         (n, C) log-probabilities of the true class of the training rows
    calibrated    whether `log_p` are calibrated; otherwise the temperature of the clean logits applies to them
    soft_labels   (n, C) soft labels that the classifier was fitted to; None: given labels
    suspicion     (n,) probability that the given label is wrong; None: by `log_p`
    clean_labels  (m,) corrected labels of the clean rows, each found without its true label; None: by `clean_logits`
    """

    clean_logits: Array
    log_p: Array
    calibrated: bool = False
    soft_labels: Array | None = None
    suspicion: Array | None = None
    clean_labels: NDArray[np.int64] | None = None


def predict_samples(net: nn.Module, x: Samples) -> Tensor:
    """Return the logits of all samples, (N, C). A linear layer reads sparse samples as they are, others in chunks."""
    weight = next(net.parameters())
    if isinstance(net, LinearNet) and isinstance(x, SparseTensor):
        layer = cast("nn.Linear", net[1])
        return x.linear(layer.weight, layer.bias)
    return map_chunks(lambda part: predict(net, to_input(part.to(weight.device), weight.dtype)), x)


class LogisticMethod(Method):
    """Base class of methods that fit a linear layer to fixed features.

    A subclass defines `traits` and `fit`. The network must be a single linear layer (`nets.LinearNet`).
    """

    clean_from = 0

    def __init__(self, task: Task, settings: Any) -> None:
        self.task, self.settings = task, settings
        self.epochs, self.candidates_from = 0, 0
        self.net = task.make_net(0)
        self.result: FittedLabels | None = None

    @abstractmethod
    def fit(self) -> Generator[None, None, None]:
        """Fit the layer and set `result`. Yields after every logistic regression, so that a caller can stop."""

    def step(self, batch: Batch) -> Tensor:
        """Raise an error: the method has no steps."""
        raise NotImplementedError("logistic methods are fitted, not trained in steps")

    def classifier(self) -> nn.Module:
        """Return the linear layer."""
        return self.net

    def soft_labels(self) -> Tensor | None:
        """Return the soft labels of the training rows after `fit`."""
        soft = None if self.result is None else self.result.soft_labels
        return None if soft is None else torch.from_numpy(soft).to(self.task.train.x.device, self.task.dtype)

    def components(self) -> dict[str, Any]:
        """Return the linear layer."""
        return {"net": self.net}

    def features(self) -> FixedFeatures:
        """Return features and labels of the task."""
        return make_features(self.task.train, self.task.clean)

    @torch.no_grad()
    def set_coefficients(self, features: FixedFeatures, W: Array) -> None:
        """Put coefficients into the linear layer."""
        layer = next(module for module in self.net.modules() if isinstance(module, nn.Linear))
        weight, bias = features.linear_layer(W)
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


class LogisticBaseline(LogisticMethod):
    """Base class of the three baselines: a subclass defines which labels and weights the rows have."""

    @abstractmethod
    def labels_and_weights(self, features: FixedFeatures) -> tuple[Array, Array]:
        """Return (n + m, C) labels and (n + m,) weights."""

    def fit(self) -> Generator[None, None, None]:
        """Choose λ, predict every row without its fold, then fit all rows."""
        features = self.features()
        q, w = self.labels_and_weights(features)
        decay = yield from select_decay(features, q, w)
        out_of_fold, W = yield from cross_fit(features, q, w, decay)
        W = fit_logistic(features.X, q, w, decay, start=W)
        yield
        self.set_coefficients(features, W)
        self.result = FittedLabels(out_of_fold[features.n :], log_softmax(out_of_fold[: features.n]))


class LogisticGiven(LogisticBaseline):
    """Logistic regression on the given labels."""

    traits = MethodTraits(summary="logistic regression on the given labels", reference="–", reads_given=True)

    def labels_and_weights(self, features: FixedFeatures) -> tuple[Array, Array]:
        """Return the given labels of all rows that have one."""
        return given_labels(features)


class LogisticClean(LogisticBaseline):
    """Logistic regression on the clean labels alone."""

    traits = MethodTraits(
        summary="logistic regression on the clean samples alone",
        reference="–",
        needs_clean=True,
        reads_given=False,
    )

    def labels_and_weights(self, features: FixedFeatures) -> tuple[Array, Array]:
        """Return the labels of the clean rows."""
        q = np.full((len(features.given), features.classes), 1 / features.classes)
        q[features.n :] = np.eye(features.classes)[features.true]
        return q, (np.arange(len(q)) >= features.n).astype(np.float64)


class LogisticBoth(LogisticBaseline):
    """Logistic regression on given labels and clean labels, with clean rows of weight 5."""

    traits = MethodTraits(
        summary="logistic regression on given and clean labels, a clean sample counts 5 times",
        reference="–",
        needs_clean=True,
    )

    def labels_and_weights(self, features: FixedFeatures) -> tuple[Array, Array]:
        """Return the given labels of the training rows and the labels of the clean rows."""
        q, w = given_labels(features)
        q[features.n :] = np.eye(features.classes)[features.true]
        w[features.n :] = CLEAN_WEIGHT
        return q, w


def given_labels(features: FixedFeatures) -> tuple[Array, Array]:
    """Return the given labels of all rows, with weight 1 where there is one and 0 elsewhere."""
    q = np.eye(features.classes)[np.maximum(features.given, 0)]
    return q, (features.given >= 0).astype(np.float64)


def select_decay(features: FixedFeatures, q: Array, w: Array) -> Generator[None, None, float]:
    """Return the λ of lowest cross-entropy on the first fold, from models fitted without it."""
    X, held_out = features.X, features.fold == 0
    if not (w[held_out] > 0).any() or not (w[~held_out] > 0).any():
        return features.mean_square * RELATIVE_DECAYS[len(RELATIVE_DECAYS) // 2]
    W, best = None, (np.inf, 0.0)
    for relative in RELATIVE_DECAYS:
        decay = relative * features.mean_square
        W = fit_logistic(X, q, w * ~held_out, decay, start=W, tolerance=CROSS_FIT_TOLERANCE)
        yield
        losses = -(q[held_out] * log_softmax(logits(X[held_out], W))).sum(1)
        best = min(best, (float((w[held_out] * losses).sum()), decay))
    return best[1]


def cross_fit(
    features: FixedFeatures, q: Array, w: Array, decay: float, start: Array | None = None
) -> Generator[None, None, tuple[Array, Array]]:
    """Return (n + m, C) logits of every row by a model fitted without its fold, and the mean of the coefficients."""
    out_of_fold, W, solutions = np.zeros_like(q), start, []
    for k in range(features.folds):
        held_out = features.fold == k
        W = fit_logistic(features.X, q, w * ~held_out, decay, start=W, tolerance=CROSS_FIT_TOLERANCE)
        yield
        out_of_fold[held_out] = logits(features.X[held_out], W)
        solutions.append(W)
    return out_of_fold, np.mean(solutions, 0)
