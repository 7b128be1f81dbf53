"""Estimate time and memory of a run before it starts: time a few cross-entropy steps and scale."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from metalabelnet import nets
from metalabelnet.core.logistic import hessian_product
from metalabelnet.core.sparse_matrix import nonzero_columns
from metalabelnet.data.batches import to_input
from metalabelnet.data.rows import UNLABELED
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.data.strong_augment import can_augment_strongly
from metalabelnet.errors import InputError
from metalabelnet.labels.loo_refit import MAX_FEATURES, MAX_FEATURES_OF_FIT, PROJECTED_FEATURES, ROWS_OF_PROJECTION
from metalabelnet.methods import METHODS, LogisticMethod
from metalabelnet.methods.fixed_features import MAX_FLOAT64_VALUES
from metalabelnet.methods.linear_metalabelnet import SELECTION_ROWS, STUDENT_ROWS
from metalabelnet.nets.head import find_head
from metalabelnet.train.build_method import find_method_class
from metalabelnet.train.prepare import METHODS_WITHOUT_NETWORK, classifier_name

if TYPE_CHECKING:
    from torch import nn

    from metalabelnet.data.problem import Problem
    from metalabelnet.data.rows import Rows
    from metalabelnet.train.settings import Run

CPU = torch.device("cpu")
TIMED_STEPS = 2
TIMED_PRODUCTS = 5
TIMED_ROWS_OF_REFIT = 256
MULTIPLICATIONS_OF_DECOMPOSITION = 10  # of a symmetric matrix, relative to a product of such matrices
# Time of evaluating a batch relative to a cross-entropy step on it: forward without backward. With it, estimates for
# digits on one thread are about 10 % below the CPU time of cross-entropy and of metalabelnet.
EVALUATION_SHARE = 1 / 3
TIMED_ROWS = 10_000  # of the features of a logistic method
# Products with the Hessian, as many for each row as take the CPU time of a fit: of the rows that decide λ, of the other
# rows up to the number that judge labels, and of the rest. Sparse features, which have no preconditioner, need more.
# Measured on tables of 20,000 to 300,000 rows, 4,000 embeddings, and 5,000 and 20,000 texts.
PRODUCTS_OF_LOGISTIC = {"dense": (230, 120, 65), "sparse": (350, 350, 350)}
PRODUCTS_OF_LABEL_MODEL = {"dense": (380, 290, 20), "sparse": (650, 600, 60)}
PRODUCTS_OF_CLEAN_ROW, PRODUCTS_OF_OTHER_ROW = 200, 15  # of a fit to clean rows alone
# Time of a compiled step relative to an eager one. Measured on an H200: 8-layer CNN 0.08 in bf16 and 0.17 in float32;
# ResNet-50, which waits less for the host, 0.21 in bf16.
COMPILED_STEP_SHARE_BF16, COMPILED_STEP_SHARE = 0.13, 0.25
COMPILE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Rough estimate of time and memory, good enough to distinguish minutes from hours."""

    seconds: float
    bytes: int

    def __str__(self) -> str:
        for size, name in ((3600, "h"), (60, "min"), (0, "s")):
            if self.seconds >= size:
                duration = f"{math.ceil(self.seconds / max(1, size))} {name}"
                break
        return f"about {duration} and {_format_bytes(self.bytes)}"


def estimate_cost(run: Run, problem: Problem) -> CostEstimate:
    """Time cross-entropy steps of the run's network on its first rows, and count the activations they save."""
    if issubclass(find_method_class(run, problem), LogisticMethod):
        return _estimate_fit(run, problem)
    train, device = problem.train, problem.train.x.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        name = classifier_name(run, problem.shape, problem.encoder_config)
        net = nets.build(name, problem.shape, len(train.classes), seed=0).to(device, run.torch_dtype)
        x = to_input(train.x[: run.batch_size], run.torch_dtype)
        y = train.given[: run.batch_size].clamp_min(0)
        activation_bytes = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal activation_bytes
            activation_bytes += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        start = _now(device)
        for _ in range(TIMED_STEPS):
            cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        step_seconds = (_now(device) - start) / TIMED_STEPS
    compile_seconds, step_share = 0.0, 1.0
    if run.uses_compiled_steps(device):
        compile_seconds = COMPILE_SECONDS
        step_share = COMPILED_STEP_SHARE_BF16 if run.dtype == "bf16" else COMPILED_STEP_SHARE
    refit_seconds = _estimate_refit(run, net, x, train)
    labeled = int((train.given != UNLABELED).sum())
    steps = run.epochs * max(1, labeled // run.batch_size)
    parts = (train, problem.clean, problem.validation, problem.test)
    evaluated = run.epochs * sum(len(part) for part in parts) / run.batch_size
    weight_bytes = sum(tensor.nbytes for tensor in net.state_dict().values())
    traits = METHODS[run.method].traits
    passes, step_cost = 3 if traits.looks_ahead else 1, traits.relative_cost
    if run.strong_augment != "none" and can_augment_strongly(train.x):  # the same loss on another view of each batch
        passes, step_cost = passes + 1, step_cost + (1 if traits.looks_ahead else step_cost)
    sample_bytes = train.x.nbytes if isinstance(train.x, Tensor) else 0
    return CostEstimate(
        seconds=compile_seconds
        + refit_seconds
        + step_share * step_seconds * (steps * step_cost + EVALUATION_SHARE * evaluated),
        bytes=sample_bytes + passes * activation_bytes + (3 + 2 * passes) * weight_bytes,
    )


def _estimate_refit(run: Run, net: nn.Module, x: Tensor, train: Rows) -> float:
    """Return the time of the LOO head refit: products of the features, timed on a few of them, and a decomposition."""
    if not (run.snapshots and METHODS[run.method].traits.reads_given):
        return 0.0
    try:
        head = find_head(net, x[:2], len(train.classes), run.head)
    except InputError:
        return 0.0
    width = fit_width = int(net.get_submodule(head).in_features)  # type: ignore[arg-type]
    if width > MAX_FEATURES:
        return 0.0
    device, cost = x.device, 0.0
    if width > MAX_FEATURES_OF_FIT:
        fit_width = PROJECTED_FEATURES
        rows = min(len(train), ROWS_OF_PROJECTION)
        cost = fit_width * width * (3 * rows + 4 * fit_width + 2 * len(train))  # multiplications of the projection
    cost += 2 * len(train) * fit_width**2 + MULTIPLICATIONS_OF_DECOMPOSITION * fit_width**3
    sample = torch.ones(TIMED_ROWS_OF_REFIT, min(width, TIMED_ROWS_OF_REFIT), dtype=torch.float64, device=device)
    sample.T @ sample
    start = _now(device)
    for _ in range(TIMED_PRODUCTS):
        sample.T @ sample
    seconds = (_now(device) - start) / TIMED_PRODUCTS
    return cost * seconds / (sample.shape[0] * sample.shape[1] ** 2)


def _estimate_fit(run: Run, problem: Problem) -> CostEstimate:
    """Time a product with the Hessian on the first rows, and count those of a logistic method."""
    x, n, m, classes = problem.train.x, len(problem.train), len(problem.clean), len(problem.train.classes)
    rows, columns = min(n, TIMED_ROWS), int(torch.Size(problem.shape).numel())
    values = x.csr.nnz if isinstance(x, SparseTensor) else n * columns
    dtype = np.float64 if values <= MAX_FLOAT64_VALUES else np.float32
    X: Any = np.zeros((rows, columns), dtype)
    if isinstance(x, SparseTensor):
        X = nonzero_columns(x.csr[:rows].astype(dtype))[0]
    p, w, V = np.full((rows, classes), 1 / classes), np.ones(rows), np.zeros((X.shape[1] + 1, classes), dtype)
    hessian_product(X, p, w, 1.0, V)  # the first product also allocates memory
    start = _now(CPU)
    for _ in range(TIMED_PRODUCTS):
        hessian_product(X, p, w, 1.0, V)
    seconds = (_now(CPU) - start) / TIMED_PRODUCTS / rows
    if not METHODS[run.method].traits.reads_given:
        products: float = PRODUCTS_OF_CLEAN_ROW * m + PRODUCTS_OF_OTHER_ROW * n
    else:
        per_row = PRODUCTS_OF_LOGISTIC if run.method in METHODS_WITHOUT_NETWORK else PRODUCTS_OF_LABEL_MODEL
        parts = np.diff([0, *(min(n + m, limit) for limit in (SELECTION_ROWS, STUDENT_ROWS)), n + m])
        products = float(parts @ per_row["sparse" if isinstance(x, SparseTensor) else "dense"])
    sample_bytes = x.nbytes if isinstance(x, SparseTensor) else n * columns * 8
    return CostEstimate(seconds=products * seconds, bytes=3 * sample_bytes + 80 * columns * classes)


def _now(device: torch.device) -> float:
    """Return the time in seconds. On a CPU it is this thread's own: other processes have no effect on the estimate."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.thread_time()


def _format_bytes(size: int) -> str:
    """Format a size with one or two significant digits, as precise as the estimate."""
    gib, mib = size / 2**30, size / 2**20
    return f"{gib:.1f} GiB" if gib >= 1 else f"{max(1, round(mib, 1 - len(str(int(mib))) + 1)):.0f} MiB"
