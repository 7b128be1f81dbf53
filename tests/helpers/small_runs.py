"""A small problem on which every method runs in a second: 8×8 images whose bright column is the class."""

from typing import Any

import torch
from torch import nn

from metalabelnet.data.batches import Batches
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import Rows, make_rows
from metalabelnet.methods import METHODS, LogisticMethod, Method
from metalabelnet.train.build_method import build_method
from metalabelnet.train.settings import Run

# The defaults of ten synthetic batches and of 100 steps take several times as long.
FAST_SETTINGS = {"mlnt": {"synthetic": 2}, "dmlp": {"steps": 30, "period": 20}}
# Variants of a method that must fulfill the same contract.
LABEL_NETS = ("mlp", "mlp-batchnorm", "mlp-batchnorm-dropout")
METHOD_VARIANTS = {f"metalabelnet:{kind}": {"label_net": kind} for kind in LABEL_NETS}
CLASSES = ("left", "middle", "right")
TRAINED_METHODS = [name for name, method in METHODS.items() if not issubclass(method, LogisticMethod)]  # in epochs


def column_images(count: int, seed: int, wrong: float = 0.0) -> Rows:
    """Return images whose bright column is the class, with a share of wrong given labels."""
    g = torch.Generator().manual_seed(seed)
    true = torch.arange(count) % 3
    x = torch.randint(0, 120, (count, 1, 8, 8), generator=g)
    for column in range(3):
        x[true == column, :, :, 1 + 2 * column : 3 + 2 * column] += 100
    given = torch.where(torch.rand(count, generator=g) < wrong, (true + 1) % 3, true)
    return make_rows(x.to(torch.uint8), given, true=true, classes=CLASSES, what="images")


def small_problem(unlabeled: int = 0, wrong: float = 0.2) -> Problem:
    """Return 48 training, 12 clean, 9 validation and 30 test images."""
    train = column_images(48, seed=0, wrong=wrong)
    if unlabeled:
        given = train.given.clone()
        given[:unlabeled] = -1
        train = train.with_given_labels(given)
    clean = column_images(12, seed=1)
    clean = clean.with_given_labels(torch.full_like(clean.given, -1))
    validation, test = column_images(9, seed=2), column_images(30, seed=3)
    return Problem(train=train, clean=clean, validation=validation, test=test, noise_rate=wrong)


def small_run(method: str, **changes: Any) -> Run:
    """Return a run of six epochs of four steps, two of them warm-up, in float64. `method` may be a variant."""
    changes = {"settings": METHOD_VARIANTS.get(method) or FAST_SETTINGS.get(method, {}), **changes}
    fields = {
        "method": method.partition(":")[0],
        "net": "small-cnn",
        "epochs": 6,
        "warmup": 2,
        "batch_size": 12,
        "dtype": "float64",
    }
    return Run(**{**fields, "lr": 0.05, "lr_milestones": (4,), "device": "cpu", **changes})


def short_run(method: str, **changes: Any) -> Run:
    """Return `small_run` with four epochs, for tests of properties that do not depend on the length of a run."""
    return small_run(method, **{"epochs": 4, "lr_milestones": (3,), **changes})


def tiny_cnn() -> nn.Module:
    """Return a network for the small problem with the layers of small-cnn, on which a step takes half the time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4)),
            *(nn.Flatten(), nn.Linear(16, 3)),
        )


def make_batches(run: Run, problem: Problem, method: Method) -> Batches:
    """Return the batches of a run, as the training loop makes them."""
    return Batches(
        train=problem.train,
        clean=problem.clean,
        size=run.batch_size,
        augment=run.augment,
        augment_clean=method.learns_from_clean,
        dtype=run.torch_dtype,
        seed=run.seed,
        strong_augment_from=method.strong_augment_from,
        mixup=method.mixup,
        second_view=method.second_view,
    )


class StepRunner:
    """Trains a method step by step, without run folder and evaluation.

    The network is `net`, or `tiny_cnn`, or that of the run if `net_of_run`.
    """

    def __init__(self, run: Run, problem: Problem, net: nn.Module | None = None, *, net_of_run: bool = False) -> None:
        self.run, self.problem = run, problem
        self.method = build_method(run, problem, None if net_of_run else net or tiny_cnn())
        self.batches = make_batches(run, problem, self.method)
        self.losses: list[float] = []
        self.epoch = self.step = 0

    def advance(self, steps: int | None = None) -> "StepRunner":
        """Run this many steps, or all remaining ones for None."""
        while self.epoch < self.method.epochs and steps != 0:
            labeled_only = self.method.labeled_only(self.epoch)
            self.method.begin_epoch(self.epoch)
            for batch in self.batches.epoch(self.epoch, labeled_only=labeled_only, start=self.step):
                self.losses.append(float(self.method.train_step(batch)))
                self.step += 1
                steps = None if steps is None else steps - 1
                if steps == 0:
                    return self
            self.method.end_epoch(self.epoch)
            self.epoch, self.step = self.epoch + 1, 0
        return self
