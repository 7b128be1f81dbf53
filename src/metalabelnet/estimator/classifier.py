"""The scikit-learn estimator: converts arrays to a run, and its result to arrays."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import _safe_indexing, check_consistent_length, get_tags
from sklearn.utils.validation import check_is_fitted
from torch import nn

from metalabelnet.core.calibration import softmax_at_temperature
from metalabelnet.data.rows import UNLABELED, make_rows
from metalabelnet.errors import InputError
from metalabelnet.estimator.annotation_input import read_annotated_labels
from metalabelnet.estimator.clean_mask import labels_and_suspects, split_clean
from metalabelnet.estimator.input_validation import (
    SampleFormat,
    as_column,
    is_linear,
    objects_to_numbers,
    read_clean_mask,
    read_labels,
    read_samples,
    unlabeled_mask,
)
from metalabelnet.estimator.own_estimator import fit_estimator, predict_estimator
from metalabelnet.estimator.run_parameters import build_run
from metalabelnet.estimator.unused_parameters import warn_of_linear_fit
from metalabelnet.methods.logistic import predict_samples
from metalabelnet.seeds import stream_seed
from metalabelnet.train import train
from metalabelnet.train.in_memory import check_net, prepare_in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import ArrayLike, NDArray


class MetaLabelNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier for noisy labels with a small clean set.

    Samples are a table (N, features) or images (N, height, width), (N, channels, height, width) or
    (N, height, width, channels). Images in uint8 are scaled to [−1, 1]; everything else is standardized and converted
    to float32. Sparse tables are accepted by methods that fit a linear layer (`metalabelnet-plus`, `logistic-given`, …)
    and with an `estimator` that accepts them; they are not standardized. `metalabelnet-plus` uses naive Bayes, too, for
    sparse tables without negative values, such as counts or TF-IDF. Where a linear layer is fitted, the parameters of
    network training (`epochs`, `lr`, `recipe`, …) have no effect, and `fit` warns where they are set. For tables with a
    named network, predictions are computed in float64 on the CPU, so that the prediction of a sample does not depend on
    the other samples of the call.

    Parameters
    ----------
    method : str, default "metalabelnet-plus"
        Training method. `metalabelnet methods` lists them.
    estimator : scikit-learn classifier, optional
        Classifier to fit in place of a network, with `predict_proba` and with `sample_weight` in `fit`: a tree ensemble
        of scikit-learn, XGBoost or LightGBM, a pipeline. It is cloned and fitted to soft labels from the same label
        model as `metalabelnet-plus` on tables: each row is repeated for each class, with its weight. Only
        `random_state` applies beside it.
    net : str, nn.Module or callable, default "auto"
        "auto" (by the shape of a sample), the name of a network, a module, or a callable that takes the shape of a
        sample and the number of classes and returns a module. A module is copied and training starts from its weights.
    recipe : {"modern", "paper", "own"}, default "modern"
        How the network is trained: learning rate, EMA, augmentation losses, selection; see `train.make_run`.
    epochs : int, default 30
        Number of epochs.
    warmup : int or "auto", default "auto"
        Epochs of warm-up on the given labels. "auto": 11 of 30, in proportion to `epochs`.
    batch_size : int or "auto", default "auto"
        Batch size. "auto": 64, but at least 16 steps per epoch, and at least 8.
    lr : float or "auto", default "auto"
        Learning rate of the classifier. "auto": that of the recipe.
    lr_milestones : tuple of int or "auto", default "auto"
        Epochs at which the learning rate drops to a tenth, with the recipe "paper". "auto": after each third.
    momentum : float, default 0.9
        Momentum of the classifier's SGD.
    weight_decay : float or "auto", default "auto"
        Weight decay of the classifier's SGD. "auto": that of the recipe.
    augment : {"none", "flip", "crop", "flip-crop"}, default "none"
        Augmentation of uint8 images.
    standardize : bool, default True
        Whether columns of a table, or channels of floating-point images, are scaled to mean 0 and standard deviation 1.
    channels : {"auto", "first", "last"}, default "auto"
        Which axis of a four-dimensional array has the channels. "auto": the one of length 1, 3 or 4.
    head : str, optional
        Name of the last linear layer of a module. Default: detected.
    settings : mapping, optional
        Settings of the method by name, such as `{"beta": 0.001}`. `metalabelnet methods METHOD` lists them.
    random_state : int, RandomState, Generator or None, default None
        Seed. An integer gives the same result in every call.
    device : str, default "auto"
        PyTorch device: "auto", "cpu", "cuda", …
    execution : {"auto", "eager", "compiled"}, default "auto"
        "compiled" traces and compiles training steps. "auto": compiled on CUDA for long runs, else eager.

    Attributes
    ----------
    classes_ : ndarray
        The classes.
    labels_ : ndarray
        The corrected label of each sample of `fit`.
    suspects_ : ndarray of bool
        Whether the given label of each sample is suspected to be wrong.
    history_ : list of dict
        Metrics of each epoch.
    summary_ : dict
        Metrics of the selected epoch. `clean_accuracy` is measured on the clean samples that selected it.
    model_ : nn.Module
        The trained network. Not with `estimator`.
    estimator_ : scikit-learn classifier
        With `estimator`: the classifier fitted to soft labels. Its class k is `classes_[k]`.
    classifier_ : PooledClassifier
        With `estimator`: `estimator_`, the same classifier fitted to the given labels and to the clean labels, and the
        pool of them that predicts, calibrated on the clean samples.
    method_ : str
        The method that was trained. It differs from `method` if that needs a clean set and none was given.
    sample_format_ : SampleFormat
        Shape of a sample, and mean and scale of its values.
    temperature_ : float
        Divisor of the logits that calibrates probabilities, fitted on clean samples; 1 without a clean set.
    n_features_in_ : int
        Number of features, or of values per image.
    feature_names_in_ : ndarray of str
        Names of the features, if `X` has them.

    References
    ----------
    Görkem Algan and Ilkay Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels",
    https://arxiv.org/abs/2103.10869

    Examples
    --------
    >>> import numpy as np
    >>> from metalabelnet import MetaLabelNetClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(300) % 2
    >>> X = rng.normal(size=(300, 2)) + 6 * y[:, None]
    >>> clean_mask = np.arange(300) < 40
    >>> noisy = np.where(~clean_mask & (rng.random(300) < 0.3), 1 - y, y)
    >>> clf = MetaLabelNetClassifier(random_state=0, device="cpu").fit(X, noisy, clean_mask=clean_mask)
    >>> clf.predict([[0.0, 0.0], [6.0, 6.0]]).tolist()
    [0, 1]
    >>> bool((clf.labels_ == y).mean() > 0.95)
    True

    Any scikit-learn classifier in place of a network:

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> forest = RandomForestClassifier(20, min_samples_leaf=5)
    >>> clf = MetaLabelNetClassifier(estimator=forest, random_state=0).fit(X, noisy, clean_mask=clean_mask)
    >>> bool((clf.labels_ == y).mean() > 0.95)
    True
    """

    def __init__(
        self,
        method: str = "metalabelnet-plus",
        *,
        estimator: Any = None,
        net: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "auto",
        recipe: str = "modern",
        epochs: int = 30,
        warmup: int | str = "auto",
        batch_size: int | str = "auto",
        lr: float | str = "auto",
        lr_milestones: tuple[int, ...] | str = "auto",
        momentum: float = 0.9,
        weight_decay: float | str = "auto",
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
        self.estimator = estimator
        self.net = net
        self.recipe = recipe
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

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        clean_mask: ArrayLike | None = None,
        annotations: ArrayLike | None = None,
    ) -> MetaLabelNetClassifier:
        """Train on noisy labels.

        Without a clean set, a method that needs one is replaced by truncated GCE on all samples. Any other method is
        trained as it is, and the given labels of a held-out fifth of the samples select the epoch (with fewer than 50
        labeled samples: the labels of the training samples). Either way a `NoCleanSetWarning` is issued.

        Parameters
        ----------
        X : array-like
            Table or images; see the class.
        y : array-like of shape (N,)
            Given labels: numbers, where −1 and NaN mean unlabeled, or strings, where "", "-1" and None do. It may be
            left out if there are annotations and no clean set.
        clean_mask : array-like of bool, shape (N,), optional
            The samples whose label is correct, at least one per class. A fifth of them is held out to select the epoch
            (all of them if a class has only one). The method learns from the others as its clean set; they are not
            used as noisy training samples, unless there are no other labeled samples. To pass it through
            meta-estimators, use `set_fit_request(clean_mask=True)`.
        annotations : array-like of shape (N, annotators), optional
            Labels by several annotators, a column for each, written as in `y`; unlabeled: not asked. The names of a
            data frame's columns are those of the annotators. Samples that are unlabeled in `y` get the majority vote.
            metalabelnet-plus on tables uses every annotation, with a noise matrix for each annotator; other methods
            use the given labels. `summary_["annotators"]` has the accuracy of each annotator. Annotations in long form
            (columns task, worker, label) become such a table by ``frame.pivot(index="task", columns="worker",
            values="label")``.

        Returns
        -------
        MetaLabelNetClassifier
            The fitted estimator.
        """
        for name in ("model_", "sample_format_", "temperature_", "estimator_", "classifier_"):
            self.__dict__.pop(name, None)  # of another fit, with or without `estimator`
        if self.estimator is not None:
            fit_estimator(self, X, y, clean_mask, annotations)
            return self
        x = read_samples(self, X, self.channels, reset=True, accept_sparse=is_linear(self))
        found = None
        if annotations is None:
            given, self.classes_ = read_labels(y, type(self).__name__)
        else:
            given, self.classes_, found = read_annotated_labels(y, annotations, type(self).__name__)
        check_consistent_length(x, given)
        mask = read_clean_mask(clean_mask, given)
        self.sample_format_ = SampleFormat.from_array(x, standardize=self.standardize)
        names = tuple(map(str, self.classes_.tolist()))
        rows = make_rows(self.sample_format_.to_tensor(x), torch.from_numpy(given), classes=names, what="X")
        rows = dataclasses.replace(rows, annotations=found)

        run = build_run(self, int((given != UNLABELED).sum()))
        train_rows, clean_set, clean_in_train = split_clean(rows, mask)
        prepared = prepare_in_memory(run, train_rows, clean_set, clean_in_train=clean_in_train)
        warn_of_linear_fit(self, prepared)
        net = self._build_net(run.seed)
        if net is not None:
            check_net(net, prepared)
        result = train(prepared.run, net=net, problem=prepared.problem)

        self.method_ = prepared.run.method
        self.temperature_ = float(result.summary["temperature"]) if prepared.problem.has_clean_set else 1.0
        self.summary_, self.history_, self.model_ = result.summary, result.history, result.model
        if rows.x.ndim == 2 and net is None:
            self.model_.to("cpu", torch.float64)
        label, self.suspects_ = labels_and_suspects(result.labels, given, mask)
        self.labels_ = self.classes_[label]
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class, calibrated on the clean samples.

        Parameters
        ----------
        X : array-like
            Samples of the same format as in `fit`.

        Returns
        -------
        ndarray of shape (N, classes)
            Probabilities in the order of `classes_`.
        """
        check_is_fitted(self)
        if hasattr(self, "estimator_"):
            return predict_estimator(self, X)
        array = read_samples(self, X, self.channels, reset=False, accept_sparse=is_linear(self))
        self.sample_format_.check(array)
        x = self.sample_format_.to_tensor(array)
        logits = predict_samples(self.model_, x)
        p: NDArray[np.float64] = softmax_at_temperature(logits.double(), self.temperature_).cpu().numpy()
        return p

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely class of each sample.

        Parameters
        ----------
        X : array-like
            Samples of the same format as in `fit`.

        Returns
        -------
        ndarray of shape (N,)
            Predicted classes.
        """
        p = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[p.argmax(1)]
        return predicted

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy on the labeled samples; unlabeled samples are ignored.

        Parameters
        ----------
        X : array-like
            Samples of the same format as in `fit`.
        y : array-like of shape (N,)
            Labels, unlabeled ones written as in `fit`.
        sample_weight : array-like of shape (N,), optional
            Weights of the samples.

        Returns
        -------
        float
            Accuracy from 0 to 1.
        """
        if y is not None and (unlabeled := unlabeled_mask(as_column(y))).any():
            check_consistent_length(X, y, sample_weight)
            if unlabeled.all():
                raise InputError("no sample has a label: give at least one labeled sample to score")
            labeled = (~unlabeled).nonzero()[0]
            X, y = _safe_indexing(X, labeled), _safe_indexing(y, labeled)
            sample_weight = None if sample_weight is None else _safe_indexing(sample_weight, labeled)
        return float(super().score(X, y if y is None else objects_to_numbers(as_column(y)), sample_weight))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle, with the network on the CPU, so that it can be loaded without a GPU."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = copy.deepcopy(state["model_"]).cpu()
        return state

    def __sklearn_tags__(self) -> Any:
        """Return the tags: whether sparse tables and missing values are accepted."""
        tags = super().__sklearn_tags__()
        if self.estimator is None:
            tags.input_tags.sparse = is_linear(self)
        elif hasattr(self.estimator, "__sklearn_tags__"):
            inner = get_tags(self.estimator).input_tags
            tags.input_tags.sparse, tags.input_tags.allow_nan = inner.sparse, inner.allow_nan
        return tags

    def _build_net(self, seed: int) -> nn.Module | None:
        """Return a copy of the user's module, or the module that the user's callable returns; None for a name."""
        if isinstance(self.net, str):
            return None
        if isinstance(self.net, nn.Module):
            return copy.deepcopy(self.net)
        if not callable(self.net):
            raise InputError(f"net={self.net!r}: give auto, a network name, a module, or a callable that returns one")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed(seed, "net", 0))
            net = self.net(self.sample_format_.shape, len(self.classes_))
        if not isinstance(net, nn.Module):
            raise InputError(f"net={self.net!r} returns {type(net).__name__}: it must return an nn.Module")
        return net
