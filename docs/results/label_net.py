"""Plot what the label net of `metalabelnet-plus` learns: the noise rate of a sample against its margin.

    python docs/results/label_net.py         (needs matplotlib and scikit-learn; half a minute)

`digits` with 100 clean samples, seed 0, at the end of warm-up. The line is the mean noise rate that the label net
gives a tenth of the training samples with similar margins; a point is the share of wrong labels among them, which the
method does not know.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

from metalabelnet.core.bayes_label_net import margin
from metalabelnet.core.forward_pass import predict
from metalabelnet.data.batches import Batches, to_input
from metalabelnet.methods.metalabelnet_plus import MetaLabelNetPlus
from metalabelnet.train import make_run
from metalabelnet.train.build_method import build_method
from metalabelnet.train.prepare import prepare

OUTPUT = Path(__file__).parent / "label-net.svg"
NOISES = ("uniform:0.4", "feature:0.4", "feature:0.8")
BINS = 10


def warm_up(noise: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return margin, learned noise rate and whether the given label is wrong, for each training row."""
    run = make_run("digits", method="metalabelnet-plus", noise=noise, clean=100, device="cpu", snapshots=0)
    problem = prepare(run)
    method = build_method(run, problem)
    assert isinstance(method, MetaLabelNetPlus)
    batches = Batches(
        train=problem.train,
        clean=problem.clean,
        size=run.batch_size,
        augment=run.augment,
        augment_clean=True,
        dtype=run.torch_dtype,
        seed=run.seed,
        strong_augment_from=method.strong_augment_from,
        mixup=method.mixup,
        second_view=method.second_view,
    )
    for epoch in range(method.warmup):
        method.begin_epoch(epoch)
        for batch in batches.epoch(epoch, labeled_only=True):
            method.train_step(batch)
    method.begin_epoch(method.warmup)
    assert method.rates is not None
    log_r = predict(method.net, to_input(problem.train.x, run.torch_dtype)).log_softmax(1)
    return margin(log_r), method.rates["rate"], problem.train.given != problem.train.true


def main() -> None:
    """Train, plot, and print the mean difference between learned and true noise rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=OUTPUT)
    args = parser.parse_args()
    with mpl.rc_context({"svg.hashsalt": "metalabelnet", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(10, 3), layout="constrained")
        axes = figure.subplots(1, len(NOISES), sharey=True)
        for ax, noise in zip(axes, NOISES, strict=True):
            m, rate, wrong = warm_up(noise)
            order = m.argsort()
            bins = [rows for rows in order.chunk(BINS) if len(rows)]
            shares = [float(wrong[rows].double().mean()) for rows in bins]
            learned = [float(rate[rows].mean()) for rows in bins]
            centers = [float(m[rows].mean()) for rows in bins]
            ax.plot(centers, learned, label="learned noise rate")
            ax.plot(centers, shares, "o", label="wrong labels")
            ax.set(title=noise, xlabel="margin", ylim=(0, 1))
            difference = sum(abs(a - b) for a, b in zip(learned, shares, strict=True)) / len(bins)
            print(f"{noise}: learned and true noise rate of a tenth differ by {difference:.3f} on average", flush=True)
        axes[0].set_ylabel("noise rate")
        axes[0].legend(frameon=False)
        figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
