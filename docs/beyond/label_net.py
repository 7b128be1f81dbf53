"""Draw what the label net learns: soft labels beside given ones, by class and by epoch.

    python docs/beyond/label_net.py         (needs matplotlib and scikit-learn; a minute or two)

One run of `metalabelnet-plus` on `digits` with 100 clean samples, seed 0. A row of a square is a true class, a column
the class a label speaks for; the label net alone is softmax m_φ(v), without the averaged prediction, the given label
and what was handed over.
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
from metalabelnet.train import recipe
from metalabelnet.train.loop import EpochOutputs, TrainingLoop, run_to_completion
from metalabelnet.train.prepare import prepare

HERE = Path(__file__).parent


class Watched(TrainingLoop):
    """A run that keeps the soft labels, those of the label net alone, and what the classifier says, of every epoch."""

    def evaluate(self, outputs: EpochOutputs) -> None:
        super().evaluate(outputs)
        said = {"classifier": predict_logits(self.method, self.problem.train.x).softmax(1)}
        assert isinstance(self.method, MetaLabelNetPlus)
        if self.soft_labels is not None and self.method.phase2 is not None:
            rows = self.problem.train
            x, index = to_input(rows.x, self.method.task.dtype), torch.arange(len(rows))
            v, _ = self.method._known(x, rows.given, index)  # noqa: SLF001
            said |= {"soft label": self.soft_labels, "label net alone": predict(self.method.phase2.m, v).exp()}
        self.__dict__.setdefault("said", []).append({name: p.detach() for name, p in said.items()})


def by_class(labels: Tensor, true: Tensor) -> Tensor:
    """Row k: the mean label of the samples of class k."""
    of_class = one_hot(true, labels.shape[1]).to(labels)
    return of_class.T @ labels / of_class.sum(0)[:, None]


def main() -> None:
    """Train, draw, and say the shares of right labels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", default="feature:0.6")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("-o", "--out", type=Path, default=HERE / "label-net.svg")
    args = parser.parse_args()
    shorter = {"epochs": args.epochs} if args.epochs else {}
    run = recipe(
        "digits", method="metalabelnet-plus", noise=args.noise, clean=100, device="cpu", snapshots=0, **shorter
    )
    problem = prepare(run)
    loop = Watched(run, problem, None, None)
    run_to_completion(loop.steps(None, None, 1e9))
    said, true, given = loop.__dict__["said"], problem.train.true, problem.train.given
    squares = {"given labels": one_hot(given, 10).double(), **said[-1]}
    names = ["given labels", "label net alone", "soft label"]
    with mpl.rc_context({"svg.hashsalt": "metalabelnet", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(11, 3.2), layout="constrained")
        axes = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.3])
        for place, name in zip(axes, names, strict=False):
            right = 100 * float((squares[name].argmax(1) == true).double().mean())
            place.imshow(by_class(squares[name], true), vmin=0, vmax=1, cmap="Blues")
            place.set(title=f"{name}: {right:.0f} % right", xticks=range(10), yticks=range(10), xlabel="label")
            print(f"{name}: {right:.1f} % right")
        axes[0].set_ylabel("true class")
        for name in (*names[1:], "classifier"):
            epochs = [k for k, epoch in enumerate(said) if name in epoch]
            rights = [100 * float((said[k][name].argmax(1) == true).double().mean()) for k in epochs]
            axes[3].plot(epochs, rights, label=name)
            print(f"{name}: {rights[0]:.1f} % right in epoch {epochs[0]}, {rights[-1]:.1f} % in epoch {epochs[-1]}")
        axes[3].axhline(100 * float((given == true).double().mean()), color="grey", linestyle=":", label="given labels")
        axes[3].set(title="training samples, by epoch", xlabel="epoch", ylabel="right (%)", ylim=(0, 100))
        axes[3].legend(frameon=False, loc="lower right")
        figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
