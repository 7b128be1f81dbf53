"""A problem small enough to run every method on, many times: three kinds of blobs in 8x8 images."""

from typing import Any

import torch

from metalabelnet.data.batches import Batches
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import Rows, make_rows
from metalabelnet.methods import Method
from metalabelnet.train.build_method import build
from metalabelnet.train.settings import Run

QUICK = {"mlnt": {"synthetic": 2}}  # ten look-aheads a step show no more than two, and cost five times as much
# Named variants of a method: the same promises with other settings.
VARIANTS = {f"metalabelnet:{kind}": {"label_net": kind} for kind in ("mlp", "mlp-batchnorm", "mlp-batchnorm-dropout")}
CLASSES = ("left", "middle", "right")


def blobs(count: int, seed: int, wrong: float = 0.0) -> Rows:
    """Images with a bright column where the class says, and a share of wrong labels."""
    g = torch.Generator().manual_seed(seed)
    true = torch.arange(count) % 3
    x = torch.randint(0, 120, (count, 1, 8, 8), generator=g)
    for column in range(3):
        x[true == column, :, :, 1 + 2 * column : 3 + 2 * column] += 100
    given = torch.where(torch.rand(count, generator=g) < wrong, (true + 1) % 3, true)
    return make_rows(x.to(torch.uint8), given, true=true, classes=CLASSES, what="blobs")


def small_problem(unlabeled: int = 0, wrong: float = 0.2) -> Problem:
    train = blobs(48, seed=0, wrong=wrong)
    if unlabeled:
        given = train.given.clone()
        given[:unlabeled] = -1
        train = train.with_given(given)
    clean = blobs(12, seed=1)
    clean = clean.with_given(torch.full_like(clean.given, -1))
    return Problem(train=train, clean=clean, validation=blobs(9, seed=2), test=blobs(30, seed=3), noise_rate=wrong)


def small_run(method: str, **changes: Any) -> Run:
    """Six epochs of four steps, two of them warm-up, in double precision."""
    changes = {"settings": VARIANTS.get(method) or QUICK.get(method, {}), **changes}
    fields = {
        "method": method.partition(":")[0],
        "net": "small-cnn",
        "epochs": 6,
        "warmup": 2,
        "batch_size": 12,
        "dtype": "float64",
    }
    return Run(**{**fields, "lr": 0.05, "lr_milestones": (4,), "device": "cpu", **changes})


def batches(run: Run, problem: Problem, method: Method) -> Batches:
    return Batches(
        train=problem.train,
        clean=problem.clean,
        size=run.batch_size,
        augment=run.augment,
        augment_clean=method.learns_from_clean,
        dtype=run.torch_dtype,
        seed=run.seed,
        strong_from=method.strong_from,
    )


class Walk:
    """A method under way, step by step, without the loop's folder, evaluation and clock."""

    def __init__(self, run: Run, problem: Problem) -> None:
        self.run, self.problem = run, problem
        self.method = build(run, problem)
        self.batches = batches(run, problem, self.method)
        self.losses: list[float] = []
        self.epoch = self.step = 0

    def go(self, steps: int | None = None) -> "Walk":
        """So many steps, or to the end."""
        while self.epoch < self.method.epochs and steps != 0:
            labeled_only = self.method.labeled_only(self.epoch)
            self.method.begin_epoch(self.epoch)
            for batch in self.batches.epoch(self.epoch, labeled_only=labeled_only, start=self.step):
                self.losses.append(float(self.method.step(batch)))
                self.step += 1
                steps = None if steps is None else steps - 1
                if steps == 0:
                    return self
            self.method.end_epoch(self.epoch)
            self.epoch, self.step = self.epoch + 1, 0
        return self
