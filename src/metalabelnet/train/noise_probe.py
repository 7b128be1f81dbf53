"""The network behind feature-dependent noise: how much a sample looks like each class."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metalabelnet.data.augment import AUGMENTS, draw
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import Stopped
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from metalabelnet.data import Rows
    from metalabelnet.data.benchmarks.download import Progress

EPOCHS, BATCH, RATE = 12, 64, 0.05


@contextmanager
def repeatable() -> Iterator[None]:
    """Let cuDNN take the same kernels each time, such as add in a fixed order.

    Training magnifies a difference in the last digit: without this two runs with one seed have one noise rate, and
    other labels.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


@repeatable()
def log_probabilities(
    net: nn.Module,
    rows: Rows,
    *,
    augment: str,
    seed: int,
    on_samples: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Tensor:
    """Train a network on the true labels for a while, and ask it about every row. Stopped, it begins anew.

    The answer is in logarithms and double precision. Probabilities of a trained network are 0 or 1 to the last
    digit for most samples, and a rule that orders samples by them then orders them by chance — in the noise
    published with the paper by the number of the class, which turned most of its flips into the last one.
    Logarithms keep the order.
    """
    device = rows.x.device
    known = (rows.true != UNLABELED).nonzero()[:, 0]
    steps = max(1, len(known) // BATCH)
    sgd = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(sgd, max_lr=RATE, total_steps=EPOCHS * steps)
    net.train()
    for epoch in range(EPOCHS):
        order = known[torch.randperm(len(known), generator=generator(seed, "probe", epoch)).to(device)]
        how = draw(len(known), generator(seed, "probe", "augment", epoch)).to(device)
        for step in range(steps):
            here = slice(step * BATCH, (step + 1) * BATCH)
            index = order[here]
            x = to_input(AUGMENTS[augment](rows.x[index], how[:, here]), torch.float32)
            loss = nn.functional.cross_entropy(net(x), rows.true[index])
            sgd.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
            schedule.step()
            if stop is not None and stop():
                raise Stopped("the network behind the noise will begin anew")
            if on_samples is not None:
                done = epoch * steps + step + 1
                on_samples("network behind the noise", done * BATCH, EPOCHS * steps * BATCH)
    net.eval()
    with torch.no_grad():
        logits = torch.cat([net(to_input(x, torch.float32)) for x in chunks(rows.x)])
    return logits.double().log_softmax(1).cpu()
