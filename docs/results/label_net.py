"""Plot what the label net learns: soft labels and given labels by true class, and their accuracy by epoch.

    python docs/results/label_net.py         (needs matplotlib and scikit-learn; one or two minutes)

One run of `metalabelnet-plus` on `digits` with 100 clean samples, seed 0. Rows of a matrix are true classes, columns
are labels. "label net" is softmax m_φ(v) alone, without the EMA prediction, the given label and the handover.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import one_hot

from metalabelnet.core.forward_pass import predict
from metalabelnet.data.batches import to_input
from metalabelnet.labels.metrics import predict_logits
from metalabelnet.methods.metalabelnet_plus import MetaLabelNetPlus
from metalabelnet.train import make_run
from metalabelnet.train.loop import EpochOutputs, TrainingLoop, run_to_completion
from metalabelnet.train.prepare import prepare

OUTPUT = Path(__file__).parent / "label-net.svg"


class RecordingLoop(TrainingLoop):
    """A training loop that keeps soft labels, label net outputs and predictions of every epoch."""

    def evaluate(self, outputs: EpochOutputs) -> None:
        super().evaluate(outputs)
        outputs_of_epoch = {"classifier": predict_logits(self.method, self.problem.train.x).softmax(1)}
        assert isinstance(self.method, MetaLabelNetPlus)
        if self.soft_labels is not None and self.method.phase2 is not None:
            rows = self.problem.train
            x, index = to_input(rows.x, self.method.task.dtype), torch.arange(len(rows))
            v, _ = self.method._features_and_evidence(x, rows.given, index)  # noqa: SLF001
            outputs_of_epoch |= {"soft label": self.soft_labels, "label net": predict(self.method.phase2.m, v).exp()}
        self.__dict__.setdefault("recorded", []).append({name: p.detach() for name, p in outputs_of_epoch.items()})


def mean_by_class(labels: Tensor, true: Tensor) -> Tensor:
    """A matrix whose row k is the mean label of the samples of class k."""
    of_class = one_hot(true, labels.shape[1]).to(labels)
    return of_class.T @ labels / of_class.sum(0)[:, None]


def main() -> None:
    """Train, plot, and print the shares of correct labels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", default="feature:0.6")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("-o", "--out", type=Path, default=OUTPUT)
    args = parser.parse_args()
    shorter = {"epochs": args.epochs} if args.epochs else {}
    run = make_run(
        "digits",
        recipe="paper",
        method="metalabelnet-plus",
        noise=args.noise,
        clean=100,
        device="cpu",
        snapshots=0,
        **shorter,
    )
    problem = prepare(run)
    loop = RecordingLoop(run, problem, None, None)
    run_to_completion(loop.steps(None, None, 1e9))
    recorded, true, given = loop.__dict__["recorded"], problem.train.true, problem.train.given
    matrices = {"given labels": one_hot(given, 10).double(), **recorded[-1]}
    names = ["given labels", "label net", "soft label"]
    with mpl.rc_context({"svg.hashsalt": "metalabelnet", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(11, 3.2), layout="constrained")
        axes = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.3])
        for ax, name in zip(axes, names, strict=False):
            correct = 100 * float((matrices[name].argmax(1) == true).double().mean())
            ax.imshow(mean_by_class(matrices[name], true), vmin=0, vmax=1, cmap="Blues")
            ax.set(title=f"{name}: {correct:.0f} % correct", xticks=range(10), yticks=range(10), xlabel="label")
            print(f"{name}: {correct:.1f} % correct")
        axes[0].set_ylabel("true class")
        for name in (*names[1:], "classifier"):
            epochs = [k for k, epoch in enumerate(recorded) if name in epoch]
            accuracies = [100 * float((recorded[k][name].argmax(1) == true).double().mean()) for k in epochs]
            axes[3].plot(epochs, accuracies, label=name)
            first, last = (f"{accuracies[k]:.1f} % correct in epoch {epochs[k]}" for k in (0, -1))
            print(f"{name}: {first}, {last}")
        axes[3].axhline(100 * float((given == true).double().mean()), color="grey", linestyle=":", label="given labels")
        axes[3].set(title="training samples, by epoch", xlabel="epoch", ylabel="correct (%)", ylim=(0, 100))
        axes[3].legend(frameon=False, loc="lower right")
        figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
