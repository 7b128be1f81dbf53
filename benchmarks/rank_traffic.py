"""Count what one rank sends per step: messages and bytes, by kind. The numbers follow from the algorithm alone.

    python benchmarks/rank_traffic.py --net resnet34 --classes 14 --batch 16 --image 224 --ranks 8

No other process is started: the collectives of the other ranks are replaced by copies of this rank's values. Images
are small here, because only samples that are read from disk are sent; their bytes are those of `--image`.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import torch

from metalabelnet.core.ranks import World, several_ranks
from metalabelnet.data.batches import Batches
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.train.build_method import build_method
from metalabelnet.train.settings import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

SMALL_IMAGE = 32  # the number and size of messages does not depend on it


class CountingWorld(World):
    """Ranks of which only this process exists. It counts the bytes that it would pass to each collective."""

    sent: ClassVar[Counter[str]] = Counter()

    def all_gather(self, local: Tensor, rows: int) -> Tensor:
        kind = "BatchNorm" if rows == self.size else "logits and features"
        self.sent.update({f"{kind}: messages": 1, f"{kind}: bytes": local.nbytes})
        start, end = self.span(rows)
        repeated = local.detach()[torch.arange(rows) % (end - start)]
        return repeated.clone()

    def all_reduce(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        kind = "BatchNorm" if len(tensors) == 2 else "gradients"
        if not tensors[0].is_floating_point():  # `ShardedTable` sends the bits of its rows
            kind = "label table"
        self.sent.update({f"{kind}: messages": 1, f"{kind}: bytes": sum(tensor.nbytes for tensor in tensors)})
        return tuple(tensor.detach().clone() for tensor in tensors)


def count(method: str, net: str, classes: int, batch: int, ranks: int) -> dict[str, int]:
    """Return messages and bytes of one step after warm-up."""
    g = torch.Generator().manual_seed(0)
    names = tuple(map(str, range(classes)))

    def rows(n: int) -> object:
        x = torch.randint(0, 256, (n, 3, SMALL_IMAGE, SMALL_IMAGE), generator=g).to(torch.uint8)
        y = torch.arange(n) % classes
        return make_rows(x, y, true=y, classes=names, what="images")

    train = rows(batch)
    problem = Problem(train=train, clean=train, validation=train, test=train, noise_rate=0.0)  # type: ignore[arg-type]
    run = Run(method=method, net=net, epochs=2, warmup=1, batch_size=batch, device="cpu", lr_milestones=())
    batches = Batches(
        train=problem.train,
        clean=problem.clean,
        size=batch,
        augment="none",
        augment_clean=False,
        dtype=run.torch_dtype,
        seed=0,
    )
    (first, *_) = batches.epoch(1, labeled_only=False)
    with several_ranks(CountingWorld(rank=0, size=ranks)):
        built = build_method(run, problem)
        built.begin_epoch(1)
        CountingWorld.sent.clear()
        built.train_step(first)
    return dict(CountingWorld.sent) | {"weights": sum(weight.numel() for weight in built.net.parameters())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="metalabelnet")
    parser.add_argument("--net", default="resnet34")
    parser.add_argument("--classes", type=int, default=14)
    parser.add_argument("--batch", type=int, default=16, help="rows of the whole batch")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--image", type=int, default=224, help="edge of the images on disk")
    args = parser.parse_args()
    result = count(args.method, args.net, args.classes, args.batch, args.ranks)
    result["samples: bytes"] = 2 * args.batch // args.ranks * 3 * args.image**2
    print(json.dumps(vars(args) | result))
