"""The interface of a method: what it declares (`MethodTraits`) and its hooks. What it receives is in `task`.

To add a method, write a file in this folder with a subclass of `Method`, and add it to the table in `__init__.py`.
The training loop calls the hooks in this order:

    method = SomeMethod(task, settings)
    method.load_state_dict(state)                    only when a run is resumed
    for epoch in range(method.epochs):
        method.labeled_only(epoch)                   selects the rows of the epoch
        method.begin_epoch(epoch)
        for batch in epoch:
            loss = method.train_step(batch)          `step`, then the EMA of the weights
        method.end_epoch(epoch)
        method.logits(x), method.soft_labels()       evaluation, and the label table
        method.model_state_dict()                    if this epoch is the best so far
    method.load_model_state_dict(best)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from torch import Tensor, nn

from metalabelnet.core.algorithm import apply_gradients
from metalabelnet.core.forward_pass import predict, trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.core.optimizers import SGD
from metalabelnet.core.state_check import check_same_form
from metalabelnet.data.batches import to_input
from metalabelnet.data.strong_augment import can_augment_strongly
from metalabelnet.nets.ema import EMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metalabelnet.core.algorithm import SoftLoss
    from metalabelnet.core.forward_pass import Theta
    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.batches import Batch, Views
    from metalabelnet.methods.recipe import LossFunction
    from metalabelnet.methods.task import Task


@dataclass(frozen=True, kw_only=True)
class MethodTraits:
    """Facts about a method that hold for every run of it. The rest of the package reads them from here only.

    Attributes
    ----------
    summary : str
        One line for lists of methods.
    reference : str
        Authors and year of the paper; "–" if there is none.
    paper_url : str
        Address of the paper; empty if there is none.
    uses_unlabeled : bool
        Whether training rows without a given label influence the model. Otherwise they are left out.
    needs_clean : bool
        Whether the method learns from the clean set whatever its settings. A method for which this depends on the
        settings overrides `Method.reads_clean`.
    has_warmup : bool
        Whether the method uses ``Recipe.warmup``. Epochs of warm-up are never selected as the result.
    reads_given : bool
        Whether the given labels, and so their noise, influence the model.
    traceable : bool
        Whether `Method.step` can be traced once per phase and replayed. It must then read no Python value that
        changes within a phase; keep such values in tensors and change them in place.
    select_from : float
        Fraction of the epochs after which an epoch may be selected as the result, for methods whose late epochs are
        the best on average; the recipe may leave out more (`Recipe.select_from`).
    looks_ahead : bool
        Whether a step differentiates through a look-ahead step of the classifier, and so keeps several forward
        passes in memory.
    relative_cost : float
        Time of a run with default settings divided by that of cross-entropy with the same recipe, measured on
        `digits`. Used to estimate the time of a run before it starts.
    own_recipe : mapping
        Fields of a run that ``--recipe own`` sets: the values of the method's own paper, with the method's settings
        under "settings".
    """

    summary: str
    reference: str
    paper_url: str = ""
    uses_unlabeled: bool = False
    needs_clean: bool = False
    has_warmup: bool = False
    reads_given: bool = True
    traceable: bool = False
    select_from: float = 0.0
    looks_ahead: bool = False
    relative_cost: float = 1.0
    own_recipe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """Settings of a method that has none."""


class Stateful(Protocol):
    """An object with a state: a network, an optimizer, a label table."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state."""
        ...


class Method(ABC):
    """Base class of all methods. A method owns its networks, optimizers and label tables.

    The constructor creates what the first epoch needs; a later phase creates its networks in `begin_epoch`, and
    again in `load_state_dict` and `load_model_state_dict`. The classifier's SGD keeps its momentum over all phases.
    A subclass defines `traits` and `step`, and overrides what else it needs. A table of samples × classes is a
    `ShardedTable`, of which each rank stores its share of the rows.

    Parameters
    ----------
    task : Task
        The data and the settings of the run.
    settings : object
        An instance of the class's `Settings`.

    Attributes
    ----------
    traits : MethodTraits
        Facts about the method (class attribute).
    Settings : type
        Frozen keyword-only dataclass of the method's settings; the metadata of each field holds its help text under
        "help" (class attribute).
    net : torch.nn.Module
        The classifier f with weights θ.
    sgd : SGD
        The optimizer of `net`.
    averages : dict of EMA
        The EMA of each network that predicts, by the network's name; empty if the recipe has none.
    epochs : int
        Number of epochs the method takes: that of the recipe, unless the method has stages of its own.
    candidates_from : int
        First epoch whose model the method allows as the result. The recipe may restrict the epochs further
        (`first_candidate`).
    strong_augment_from : int or None
        First epoch whose batches contain strongly augmented samples (``Views.strong``): 0 if the recipe has strong
        augmentation and the samples are images, None if no epoch does. A method that always needs them sets it.
    mixup : float
        α of the MixUp draws in the batches (``Views.partner``, ``Views.share``): the recipe's, 0 for none. A method
        that mixes samples itself sets it.
    second_view : bool
        Whether batches contain a second augmented copy of each training sample (``Views.second``; class attribute).
    averages_itself : bool
        Whether an average of the weights is part of the method; it then replaces the recipe's EMA (class attribute).
    clean_from : int or None
        First epoch in which the classifier is trained on the clean labels; None if it never is. (A method that uses
        the clean set only to learn labels or sample weights has None.)

    Examples
    --------
    >>> from torch import nn
    >>> from metalabelnet.methods.method import Method, MethodTraits
    >>> class SmoothedLabels(Method):
    ...     traits = MethodTraits(summary="cross-entropy with label smoothing", reference="Szegedy et al. 2016")
    ...
    ...     def step(self, batch):
    ...         loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    ...         return self.sgd_step(loss_fn, batch.views, (batch.given,), batch.seed)
    """

    traits: ClassVar[MethodTraits]
    Settings: ClassVar[type] = NoSettings
    second_view: ClassVar[bool] = False
    averages_itself: ClassVar[bool] = False
    clean_from: int | None = None

    def __init__(self, task: Task, settings: Any) -> None:
        self.task = task
        self.settings = settings
        recipe = task.recipe
        self.epochs = recipe.epochs
        self.candidates_from = recipe.warmup if self.traits.has_warmup else 0
        strong = recipe.strong_augment != "none" and can_augment_strongly(task.train.x)
        self.strong_augment_from: int | None = 0 if strong else None
        self.mixup = recipe.mixup
        self.net = task.make_net(0)
        self.sgd = self.make_sgd(self.net)
        self.averages: dict[str, EMA] = {}
        self.average_weights("net", self.net)

    @property
    def first_candidate(self) -> int:
        """The first epoch that may be selected as the result: the later one of the method's and the recipe's.

        `Recipe.select_from` and `MethodTraits.select_from` count from the stage that gives the result.
        """
        recipe = self.task.recipe
        select_from = max(recipe.select_from, self.traits.select_from)
        return max(self.candidates_from, self.epochs - recipe.epochs + int(select_from * recipe.epochs))

    def average_weights(self, name: str, net: nn.Module) -> None:
        """Keep an EMA of a network from now on, if the recipe has one. A new network of the same name replaces it."""
        if self.task.recipe.ema and not self.averages_itself:
            self.averages[name] = EMA(net, self.task.recipe.ema)

    def prediction_net(self, name: str, net: nn.Module) -> nn.Module:
        """Return the EMA of a network, or the network itself if there is none."""
        return self.averages[name].net if name in self.averages else net

    @property
    def learns_from_clean(self) -> bool:
        """Whether the classifier is trained on the clean labels in any epoch."""
        return self.clean_from is not None

    @classmethod
    def reads_clean(cls, settings: Any) -> bool:  # noqa: ARG003 (subclasses read the settings)
        """Return whether the method needs a clean set with these settings."""
        return cls.traits.needs_clean

    def make_sgd(self, net: nn.Module) -> SGD:
        """Return an SGD optimizer for a classifier, with the hyperparameters of the recipe."""
        r = self.task.recipe
        return SGD(trainable_parameters(net).values(), lr=r.lr, momentum=r.momentum, weight_decay=r.weight_decay)

    def lr_at(self, epoch: int) -> float:
        """Return the classifier's learning rate in an epoch."""
        return self.task.recipe.lr_at(epoch)

    def labeled_only(self, epoch: int) -> bool:
        """Return whether the batches of an epoch contain labeled rows only. Called before `begin_epoch`."""
        return True

    def begin_epoch(self, epoch: int) -> None:
        """Prepare an epoch: set learning rates and train mode, and start a new phase if one begins.

        Called before the first step of each epoch, and again when a run is resumed within the epoch: an override
        must then leave a restored state unchanged.
        """
        for component in self.components().values():
            if isinstance(component, nn.Module):
                component.train(mode=not self._is_average(component))
            elif isinstance(component, SGD):
                component.set_lr(self.lr_at(epoch))

    def phase(self) -> str:
        """Return the name of the current phase. A step traced in one phase is not replayed in another."""
        return "only"

    def _is_average(self, module: nn.Module) -> bool:
        return any(module is average.net for average in self.averages.values())

    def train_step(self, batch: Batch) -> Tensor:
        """Take one step and update the EMAs; return the loss."""
        loss = self.step(batch)
        nets = self.components()
        for name, average in self.averages.items():
            average.update(cast("nn.Module", nets[name]))
        return loss

    @abstractmethod
    def step(self, batch: Batch) -> Tensor:
        """Train on one batch. Called once per batch, by `train_step`.

        Parameters
        ----------
        batch : Batch
            Training samples with given labels and row numbers, clean samples with labels, and a seed for random
            numbers such as dropout masks.

        Returns
        -------
        Tensor
            The loss, a detached scalar on the device. Do not read it on the host: that would wait for the GPU.
        """

    def end_epoch(self, epoch: int) -> None:
        """Update what changes once per epoch. Called after the last step, before the epoch is evaluated."""

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of samples as they are stored (`Rows.x`), in eval mode."""
        return predict(self.classifier(), to_input(x, self.task.dtype))

    def classifier(self) -> nn.Module:
        """Return the module that predicts: it maps network inputs (`to_input`) to logits."""
        return self.prediction_net("net", self.net)

    def feature_net(self) -> nn.Module:
        """Return a network trained on the given labels, whose penultimate features are used to check labels."""
        return self.net

    def soft_labels(self) -> ClassTable | None:
        """Return the soft labels of all training rows, (N, classes), or None if the method has none (yet)."""
        return None

    def components(self) -> dict[str, Stateful]:
        """Return everything with a state, by name. The `nn.Module` components form the model."""
        return {"net": self.net, "sgd": self.sgd, **self.average_components()}

    def average_components(self) -> dict[str, Stateful]:
        """Return the EMAs and their step counters, for `components`."""
        averages: dict[str, Stateful] = {}
        for name, average in self.averages.items():
            averages |= {f"{name}_ema": average.net, f"{name}_ema_steps": average.state}
        return averages

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the states of all components: what a checkpoint stores of the method."""
        return {name: component.state_dict() for name, component in self.components().items()}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Restore a checkpoint. A method with phases first creates the components of the stored phase.

        Raises InputError for a state that does not have the names, types and shapes of these components.
        """
        check_same_form(state, self.state_dict(), "method")
        for name, component in self.components().items():
            component.load_state_dict(state[name])

    def model_state_dict(self) -> dict[str, Tensor]:
        """Return the tensors of all modules as "component.key": what model.safetensors stores."""
        return {
            f"{name}.{key}": tensor
            for name, component in self.components().items()
            if isinstance(component, nn.Module)
            for key, tensor in component.state_dict().items()
        }

    def load_model_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore all modules from the tensors of `model_state_dict`."""
        for name, component in self.components().items():
            if isinstance(component, nn.Module):
                own = {k.removeprefix(f"{name}."): t for k, t in tensors.items() if k.startswith(f"{name}.")}
                component.load_state_dict(own)

    def recipe_loss(
        self,
        net: nn.Module,
        theta: Theta,
        loss_of: LossFunction,
        views: Views,
        targets: tuple[Tensor, ...],
        seed: int,
        *,
        logits: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a network with what the recipe adds to it; see `Recipe.loss`."""
        return self.task.recipe.loss(net, theta, loss_of, views, targets, seed=seed, logits=logits)

    def sgd_step(self, loss_of: LossFunction, views: Views, targets: tuple[Tensor, ...], seed: int) -> Tensor:
        """Take one SGD step of the classifier on the loss with what the recipe adds to it, and return that loss.

        Parameters
        ----------
        loss_of : callable
            The method's loss: ``loss_of(logits, *targets)`` returns a scalar.
        views : Views
            The samples: ``batch.views`` or ``batch.clean_views``.
        targets : tuple of Tensor
            What the method trains on; the first dimension of each counts the samples.
        seed : int
            Seed of the dropout masks, such as ``batch.seed``.

        Returns
        -------
        Tensor
            The loss before the step, detached.
        """
        theta = trainable_parameters(self.net)
        loss = self.recipe_loss(self.net, theta, loss_of, views, targets, seed)
        apply_gradients(self.sgd, theta.values(), gradients(loss, theta).values())
        return loss.detach()

    def soft_label_loss(self, loss_of: LossFunction, batch: Batch) -> SoftLoss:
        """Return the loss of step 3 of `core.algorithm.Iteration`: ``loss_of(logits, log_y_hat)`` with the recipe."""

        def loss(theta: Theta, f_x: Tensor, log_y_hat: Tensor) -> Tensor:
            return self.recipe_loss(self.net, theta, loss_of, batch.views, (log_y_hat,), batch.seed, logits=f_x)

        return loss

    def cross_entropy_step(self, views: Views, labels: Tensor, seed: int) -> Tensor:
        """Take one SGD step of the classifier on the mean cross-entropy with these labels; return the loss."""
        return self.sgd_step(lambda logits, y: cross_entropy(logits, y).mean(), views, (labels,), seed)
