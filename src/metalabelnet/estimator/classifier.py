"""The estimator. It turns arrays into a run, and what comes out into arrays."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from metalabelnet.core.calibration import at_temperature
from metalabelnet.core.forward_pass import predict
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import CHUNK
from metalabelnet.data.rows import UNLABELED, Rows, make_rows
from metalabelnet.errors import InputError
from metalabelnet.estimator.inputs import (
    Samples,
    as_column,
    plain,
    read_labels,
    read_mask,
    read_samples,
    without_label,
)
from metalabelnet.seeds import stream_seed
from metalabelnet.train import Run, train
from metalabelnet.train.in_memory import check_net, settle
from metalabelnet.train.settings import IN_MEMORY, proportions

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from metalabelnet.labels.label_table import LabelTable

RECORDING_PAYS = 5000  # steps on a card: fewer take less time than compiling them


class MetaLabelNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for labels nobody trusts, some of which were checked.

    Parameters
    ----------
    method         how it learns, one of those that `metalabelnet methods` lists
    net            "auto" (by the shape of a sample), the name of a network, a module, or a callable that makes one from
                   the shape of a sample and the number of classes. A module is copied, and starts from its weights
    epochs         epochs in all
    warmup         epochs on the given labels before the method's own; "auto": 11 of 30
    batch_size     samples in a batch; "auto": 64, fewer where an epoch would have less than 16 steps, 8 at least
    rate           the classifier's learning rate
    lr_milestones     epochs at which the rate drops to a tenth; "auto": after each third
    momentum       the classifier's momentum
    weight_decay   the classifier's weight decay
    augment        of images of bytes: none, crop, flip-crop
    standardize    whether columns, or channels of floating-point images, get mean 0 and standard deviation 1
    channels       which place of (N, ., ., .) holds the channels: "first", "last", or "auto": the one with 1, 3 or 4
    head           name of the module's last linear layer; None: found by itself
    settings       the method's own settings by name, such as {"beta": 0.001}
    random_state   a whole number, for the same result every time; a generator of numpy; None: another one each time
    device         auto, cpu, cuda, …
    engine         eager, recorded (compiled and replayed, on CUDA), or auto: recorded on CUDA for long runs

    Attributes
    ----------
    classes_       the classes
    labels_        the corrected label of each sample of `fit`: the given one where it is trusted
    suspects_      a mask: whether the given label of each sample is suspected to be wrong
    history_       a line an epoch
    summary_       numbers of the selected epoch; `clean_accuracy` is that on the samples that selected it
    model_         the trained module
    method_        the method that was trained: another than `method` where there was no clean set
    samples_       what a sample is: its shape, and the mean and scale of its numbers
    temperature_   what logits are divided by, found on the clean samples; 1 where there were none
    n_features_in_, feature_names_in_

    Samples are tables (N, features) or images: (N, height, width), (N, channels, height, width) or (N, height, width,
    channels). Images of bytes (uint8) are scaled to [−1, 1], everything else is computed in single precision after
    standardising. Tables with a network by name predict in double precision, so that a prediction does not depend
    on the samples beside it.

    Without trusted samples a warning (`NoCleanSet`) says what is done instead: see `fit`.
    """

    def __init__(
        self,
        method: str = "metalabelnet",
        *,
        net: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "auto",
        epochs: int = 30,
        warmup: int | str = "auto",
        batch_size: int | str = "auto",
        lr: float = 0.02,
        lr_milestones: tuple[int, ...] | str = "auto",
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        augment: str = "none",
        standardize: bool = True,
        channels: str = "auto",
        head: str | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        device: str = "auto",
        execution: str = "auto",
    ) -> None:
        self.method = method
        self.net = net
        self.epochs = epochs
        self.warmup = warmup
        self.batch_size = batch_size
        self.lr = lr
        self.lr_milestones = lr_milestones
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.augment = augment
        self.standardize = standardize
        self.channels = channels
        self.head = head
        self.settings = settings
        self.random_state = random_state
        self.device = device
        self.execution = execution

    def fit(self, X: ArrayLike, y: ArrayLike, clean_mask: ArrayLike | None = None) -> MetaLabelNetClassifier:
        """Train on samples and labels that may be wrong.

        y        numbers, where −1 and NaN mean unlabeled; or names, where an empty one, "-1" or None does
        trusted  a mask: the samples whose label was checked and is right, some of every class. A fifth of them, held
                 out, selects the epoch (where there is but one of a class, all of them do); the others are the clean
                 samples that the method learns from. They are not trained on as untrusted ones beside that, unless
                 there is no other labeled sample

        Without trusted samples a method that needs some is replaced by GCE, truncated, trained on all samples; another
        method is trained as it is, its epoch selected by the labels of a fifth of the samples, put aside (of fewer
        than 50 labeled samples: by those it is trained on). Either is said in a warning, `NoCleanSet`.
        """
        x = read_samples(self, X, self.channels, reset=True)
        given, self.classes_ = read_labels(y, type(self).__name__)
        check_consistent_length(x, given)
        mask = read_mask(clean_mask, given)
        self.samples_ = Samples.of(x, standardize=self.standardize)
        names = tuple(map(str, self.classes_.tolist()))
        rows = make_rows(self.samples_.tensor(x), torch.from_numpy(given), classes=names, what="X")

        run = self._run(int((given != UNLABELED).sum()))
        train_rows, clean_set, clean_in_train = _parted(rows, mask)
        settled = settle(run, train_rows, clean_set, clean_in_train=clean_in_train)
        net = self._module(run.seed)
        if net is not None:
            check_net(net, settled)
        result = train(settled.run, net=net, problem=settled.problem)

        self.method_ = settled.run.method
        self.temperature_ = float(result.summary["temperature"]) if settled.problem.has_clean_set else 1.0
        self.summary_, self.history_, self.model_ = result.summary, result.history, result.model
        if rows.x.ndim == 2 and net is None:
            self.model_.to("cpu", torch.float64)
        label, self.suspects_ = _corrected(result.labels, given, mask)
        self.labels_ = self.classes_[label]
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each class, in the order of `classes_`, calibrated on the clean samples."""
        check_is_fitted(self)
        array = read_samples(self, X, self.channels, reset=False)
        self.samples_.check(array)
        x = self.samples_.tensor(array)
        weight = next(self.model_.parameters())
        logits = [
            predict(self.model_, to_input(part.to(weight.device), weight.dtype)) for part in torch.split(x, CHUNK)
        ]
        p: NDArray[np.float64] = at_temperature(torch.cat(logits).double(), self.temperature_).cpu().numpy()
        return p

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most likely class of each sample."""
        p = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[p.argmax(1)]
        return predicted

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The share of labeled samples whose class is predicted: one without a label has no class to find."""
        if y is not None and (nothing := without_label(as_column(y))).any():
            check_consistent_length(X, y, sample_weight)
            if nothing.all():
                raise InputError("no sample has a label: some must have one to score by")
            labeled = (~nothing).nonzero()[0]
            X, y = _safe_indexing(X, labeled), _safe_indexing(y, labeled)
            sample_weight = None if sample_weight is None else _safe_indexing(sample_weight, labeled)
        return float(super().score(X, y if y is None else plain(as_column(y)), sample_weight))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the network goes to the processor, so that it can be read where there is no card."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = copy.deepcopy(state["model_"]).cpu()
        return state

    def _run(self, labeled: int) -> Run:
        """The settings as a run."""
        for name in ("epochs", "warmup", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, Integral) and not (value == "auto" and name != "epochs"):
                raise InputError(f"{name}={value!r}: give a whole number{'' if name == 'epochs' else ', or auto'}")
        for name in ("lr", "momentum", "weight_decay"):
            if not isinstance(getattr(self, name), Real):
                raise InputError(f"{name}={getattr(self, name)!r}: give a number")
        if not isinstance(self.settings, Mapping | None):
            raise InputError(
                f"settings={self.settings!r}: give the method's settings by name, such as {{'beta': 0.001}}"
            )
        if isinstance(self.lr_milestones, str) and self.lr_milestones != "auto":
            raise InputError(f"lr_milestones={self.lr_milestones!r}: give epochs, such as (10, 20), or auto")
        epochs = int(self.epochs)
        auto = proportions(epochs)
        size = min(64, max(8, labeled // 16)) if self.batch_size == "auto" else int(self.batch_size)
        steps = epochs * max(1, labeled // max(1, size))
        return Run(
            data=IN_MEMORY,
            method=self.method,
            settings=dict(self.settings or {}),
            net=self.net if isinstance(self.net, str) else "auto",
            head=self.head,
            epochs=epochs,
            warmup=auto["warmup"] if self.warmup == "auto" else int(self.warmup),
            batch_size=size,
            lr=self.lr,
            lr_milestones=auto["lr_milestones"] if isinstance(self.lr_milestones, str) else tuple(self.lr_milestones),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            augment=self.augment,
            seed=_seed(self.random_state),
            device=self.device,
            execution="eager" if self.execution == "auto" and steps < RECORDING_PAYS else self.execution,
        )

    def _module(self, seed: int) -> nn.Module | None:
        """The user's own network, where there is one: a copy of a module, or what a callable makes."""
        if isinstance(self.net, str):
            return None
        if isinstance(self.net, nn.Module):
            return copy.deepcopy(self.net)
        if not callable(self.net):
            raise InputError(f"net={self.net!r}: give auto, a network's name, a module, or a callable that makes one")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed(seed, "net", 0))
            made = self.net(self.samples_.shape, len(self.classes_))
        if not isinstance(made, nn.Module):
            raise InputError(f"net={self.net!r} makes {type(made).__name__}, not an nn.Module")
        return made


def _seed(state: Any) -> int:
    """The seed itself, or the next number of a generator."""
    if isinstance(state, Integral):
        return int(state)
    if isinstance(state, np.random.Generator):
        return int(state.integers(2**31 - 1))
    return int(check_random_state(state).randint(2**31 - 1))


def _parted(rows: Rows, mask: NDArray[np.bool_]) -> tuple[Rows, Rows | None, bool]:
    """Rows with untrusted labels, clean rows, and whether the clean ones are among the first.

    They are where there is no other labeled row: the first epochs need some.
    """
    clean_mask = torch.from_numpy(mask)
    if not clean_mask.any():
        return rows, None, False
    clean_set = dataclasses.replace(rows, true=rows.given, given=torch.full_like(rows.given, UNLABELED))
    clean_set, rest = clean_set.take(clean_mask.nonzero()[:, 0]), rows.take((~clean_mask).nonzero()[:, 0])
    if int((rest.given != UNLABELED).sum()) >= 2:
        return rest, clean_set, False
    return rows, clean_set, True


def _corrected(
    table: LabelTable, given: NDArray[np.int64], clean_mask: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The class each sample has after all, and whether its given label is suspect, by a run's label table.

    Trusted labels stay, and are not in the table. A sample whose label was put aside to select the epoch is unlabeled
    there: it is suspect if its corrected label is another.
    """
    rows, verdict = table.rows, table.verdict()
    index = rows.index.cpu().numpy()
    label, suspect = given.copy(), np.zeros(len(given), dtype=bool)
    label[index], suspect[index] = verdict.label.cpu().numpy(), verdict.suspect.cpu().numpy()
    label[clean_mask] = given[clean_mask]
    put_aside = given != UNLABELED
    put_aside[index[(rows.given != UNLABELED).cpu().numpy()]] = False
    suspect = np.where(put_aside, label != given, suspect) & ~clean_mask
    return label, suspect
