"""The noise probe: a network whose class probabilities define feature-dependent noise."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metalabelnet.data.augment import AUGMENTATIONS, draw_augmentation
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import map_chunks
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import RunStopped
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from metalabelnet.data import Rows
    from metalabelnet.data.benchmarks.download import ProgressCallback

EPOCHS, BATCH_SIZE, MAX_LR = 12, 64, 0.05


@contextmanager
def deterministic_cudnn() -> Iterator[None]:
    """Make cuDNN use deterministic kernels.

    Training amplifies rounding differences: without this, two runs with the same seed have the same noise rate but
    different noisy labels.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


@deterministic_cudnn()
def log_probabilities(
    net: nn.Module,
    rows: Rows,
    *,
    augment: str,
    seed: int,
    on_samples: ProgressCallback | None = None,
    stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Train a network on the true labels and return its log-probabilities for every row. Progress is not saved.

    The result is in logarithms and double precision. Probabilities of a trained network round to 0 or 1 for most
    samples, so ranking samples by them is arbitrary: in the noise published with the paper, ties are broken by class
    index and most flips go to the last class. Logarithms keep the order.
    """
    device = rows.x.device
    labeled = (rows.true != UNLABELED).nonzero()[:, 0]
    steps = max(1, len(labeled) // BATCH_SIZE)
    sgd = torch.optim.SGD(net.parameters(), lr=MAX_LR, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(sgd, max_lr=MAX_LR, total_steps=EPOCHS * steps)
    net.train()
    for epoch in range(EPOCHS):
        order = labeled[torch.randperm(len(labeled), generator=generator(seed, "probe", epoch)).to(device)]
        augmentation = draw_augmentation(len(labeled), generator(seed, "probe", "augment", epoch)).to(device)
        for step in range(steps):
            batch = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
            index = order[batch]
            x = to_input(AUGMENTATIONS[augment](rows.x[index], augmentation[:, batch]), torch.float32)
            loss = nn.functional.cross_entropy(net(x), rows.true[index])
            sgd.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
            schedule.step()
            if stop is not None and stop():
                raise RunStopped("the network for feature-dependent noise is trained again on resume")
            if on_samples is not None:
                done = epoch * steps + step + 1
                on_samples("network for feature-dependent noise", done * BATCH_SIZE, EPOCHS * steps * BATCH_SIZE)
    net.eval()
    with torch.no_grad():
        logits = map_chunks(lambda x: net(to_input(x, torch.float32)), rows.x)
    return logits.double().log_softmax(1).cpu()
