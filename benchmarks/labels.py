"""Quality of corrected labels and suspects, compared with cleanlab on the same network.

    python benchmarks/labels.py digits --noise uniform:0.1 feature:0.4 --seed 0 1 2
    python benchmarks/labels.py fashion-mnist --noise uniform:0.4 --epochs 6
    python benchmarks/labels.py cifar10n --data-dir DIR --save DIR              train and save (without cleanlab)
    python benchmarks/labels.py cifar10n --from DIR --json results/labels/x.jsonl  score saved runs
    python benchmarks/labels.py --table results/labels/*.jsonl                     print the table as Markdown

`run` is one run of this package, whose label table is scored. cleanlab gets the probabilities of five-fold
cross-validation: five cross-entropy runs of the same network, recipe and number of epochs, each on four fifths of the
noisy rows and the clean rows with their true labels; the validation rows select the epoch as in our run (`cleanlab`),
or the last epoch is used (`cleanlab, last`).

For each noise and seed, NAME.run.npz and NAME.fold0.npz to NAME.fold4.npz are saved; existing files are reused:

    run    given, true (N,), p (N, C) probabilities of the label table, suspicion (N,), suspect (N,), seconds;
           p_y (E, N), losses (E, n): of every snapshot the probability of the given label and the losses on clean rows
           from which the suspicion is computed again, so that a change of its rule needs no training
    foldK  rows (M,) of the fold, selected and last (M, C) out-of-sample probabilities, seconds
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.data import load
from metalabelnet.data.problem import Problem
from metalabelnet.labels.correction import decide_labels
from metalabelnet.labels.metrics import auroc, average_precision, expected_calibration_error, predict_logits
from metalabelnet.labels.snapshots import Snapshots, suspicion_scale
from metalabelnet.seeds import generator
from metalabelnet.train import settings
from metalabelnet.train.loop import EpochOutputs, TrainingLoop
from metalabelnet.train.prepare import prepare
from metalabelnet.train.train_run import run_to_completion
from metalabelnet.train.versions import commit, versions

if TYPE_CHECKING:
    from metalabelnet.train.settings import Run

FOLDS = 5
NOISES = [f"{kind}:{rate / 10:g}" for kind in ("uniform", "feature") for rate in range(1, 7)]
BOOTSTRAP_SAMPLES = 200
FASHION_MNIST_ROWS = 21_000  # 20,000 noisy and 1,000 clean


class LoopWithLastEpoch(TrainingLoop):
    """A training loop that keeps the predictions of its last epoch for the test rows."""

    last: torch.Tensor

    def evaluate(self, outputs: EpochOutputs) -> None:
        super().evaluate(outputs)
        if self.epoch == self.method.epochs - 1:
            self.last = predict_logits(self.method, self.problem.test.x).softmax(1)


def make_run(args: argparse.Namespace, noise: str, seed: int) -> Run:
    """The settings of a run on a data set, with the changes of the command line."""
    changes: dict[str, Any] = {"method": args.method, "noise": noise, "seed": seed, "device": args.device}
    changes |= {"data_dir": args.data_dir, "clean": args.clean, "dtype": args.dtype}
    data = args.data
    if data == "fashion-mnist":
        data = str(write_fashion_mnist(args.folder, args.data_dir))
        changes |= {"data_dir": None, "net": "small-cnn", "batch_size": 128, "clean": args.clean or 1000}
        args.epochs = args.epochs or 6
    elif data == "cifar10n":
        data = "cifar10"
    if args.epochs:
        third = args.epochs // 3
        changes |= {"epochs": args.epochs, "warmup": third, "lr_milestones": (third, 2 * third)}
    return settings.make_run(
        data, recipe="paper", **{name: value for name, value in changes.items() if value is not None}
    )


def write_fashion_mnist(folder: Path, data_dir: str | None) -> Path:
    """Write a smaller Fashion-MNIST: the first training images and 2,000 test images."""
    file = folder / "fashion-mnist-20k.npz"
    if not file.exists():
        data = load("fashion-mnist", Path(data_dir) if data_dir else None)
        assert data.test is not None
        np.savez(
            file,
            x_train=data.train.x[:FASHION_MNIST_ROWS].numpy(),
            y_train=data.train.true[:FASHION_MNIST_ROWS].numpy(),
            x_test=data.test.x[:2000].numpy(),
            y_test=data.test.true[:2000].numpy(),
            classes=np.array(data.classes),
        )
    return file


class RecordingSnapshots(Snapshots):
    """Snapshots that keep p_y and the losses on clean rows, so that suspicion can be computed again."""

    recorded: list[tuple[torch.Tensor, torch.Tensor]]

    def add_given_probability(self, p_y: torch.Tensor, losses: torch.Tensor) -> None:
        super().add_given_probability(p_y, losses)
        self.recorded = [*getattr(self, "recorded", []), (p_y, losses)]


def train_run(run: Run, problem: Problem) -> dict[str, Any]:
    """Train one run of the package and return the arrays to save."""
    loop = TrainingLoop(run, problem, None, None)
    loop.snapshots = RecordingSnapshots(run.snapshots, loop.method.epochs)
    result = run_to_completion(loop.steps(None, None, 1e9))
    verdict, rows = result.labels.decisions(), result.labels.rows
    arrays = {"given": rows.given, "true": rows.true, "p": result.labels.probabilities.float()}
    arrays |= {"suspicion": verdict.suspicion.float(), "suspect": verdict.suspect}
    p_y, losses = (torch.stack(parts) for parts in zip(*loop.snapshots.recorded, strict=True))
    arrays |= {"p_y": p_y.float(), "losses": losses.float()}
    return {name: tensor.cpu().numpy() for name, tensor in arrays.items()}


def train_fold(run: Run, problem: Problem, k: int) -> dict[str, Any]:
    """Train on four folds and return the out-of-sample probabilities of the fifth."""
    rows = problem.train
    part = torch.randperm(len(rows), generator=generator(run.seed, "folds")) % FOLDS
    inside, outside = rows.take((part != k).nonzero()[:, 0]), rows.take((part == k).nonzero()[:, 0])
    clean = problem.clean
    both = dataclasses.replace(
        inside,
        x=torch.cat([inside.x, clean.x]),
        given=torch.cat([inside.given, clean.true]),
        true=torch.cat([inside.true, clean.true]),
        index=torch.arange(len(inside) + len(clean), device=inside.x.device),
        ids=inside.ids + clean.ids,
    )
    one = dataclasses.replace(run, method="cross-entropy", settings={}, snapshots=0)
    held_out = Problem(
        train=both, clean=clean, validation=problem.validation, test=outside, noise_rate=problem.noise_rate
    )
    loop = LoopWithLastEpoch(one, held_out, None, None)
    result = run_to_completion(loop.steps(None, None, 1e9))
    selected = predict_logits(result.method, outside.x).softmax(1)
    arrays = {"rows": (part == k).nonzero()[:, 0], "selected": selected.float(), "last": loop.last.float()}
    return {name: tensor.cpu().numpy() for name, tensor in arrays.items()}


def train_missing(args: argparse.Namespace, noise: str, seed: int) -> str:
    """Train the runs without a saved file; returns the name of the files."""
    name = f"{args.data}-{noise.replace(':', '') if args.data != 'cifar10n' else 'worst'}-seed{seed}"
    parts = ["run", *(f"fold{k}" for k in range(FOLDS))]
    missing = [part for part in parts if not (args.folder / f"{name}.{part}.npz").exists()]
    if missing:
        run = make_run(args, noise, seed)
        problem = prepare(run)
        for part in missing:
            start = time.monotonic()
            arrays = train_run(run, problem) if part == "run" else train_fold(run, problem, int(part[-1]))
            np.savez_compressed(args.folder / f"{name}.{part}.npz", **arrays, seconds=time.monotonic() - start)
            print(f"{name}: {part} {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return name


def quality(p: Any, label: Any, score: Any, flag: Any, given: Any, true: Any) -> dict[str, float | None]:
    """Metrics of one variant of corrected labels and suspicion."""
    wrong = torch.tensor(given != true)
    score, hits = torch.as_tensor(score), int((flag & (given != true)).sum())
    return {
        "right": 100 * float((label == true).mean()),
        "ap": average_precision(score, wrong),
        "auroc": auroc(score, wrong),
        "ece": expected_calibration_error(torch.as_tensor(p), torch.as_tensor(true)),
        "f1": 2 * hits / max(1, int(flag.sum()) + int(wrong.sum())),
        "flagged": int(flag.sum()),
    }


def suspicion_variants(run: Any) -> dict[str, tuple[Any, Any]]:
    """Suspicion and suspects by the current rule, and with a sum of p_y over snapshots instead of the product.

    Files without p_y keep their saved suspicion.
    """
    if "p_y" not in run:
        return {"metalabelnet": (run["suspicion"], run["suspect"])}
    p_y, losses = (torch.tensor(run[name], dtype=torch.float64) for name in ("p_y", "losses"))
    history = Snapshots(0, 1)
    for snapshot in zip(p_y, losses, strict=True):
        history.add_given_probability(*snapshot)
    w = torch.softmax(-suspicion_scale(losses.shape[1]) * losses.mean(1), 0)
    found = {"metalabelnet": history.suspicion(), "sum of p_y": 1 - w @ p_y}
    p, given = torch.tensor(run["p"]), torch.tensor(run["given"])
    verdicts = {variant: decide_labels(p, given, suspicion) for variant, suspicion in found.items()}
    return {variant: (verdict.suspicion.numpy(), verdict.suspect.numpy()) for variant, verdict in verdicts.items()}


def bootstrap_lead(ours: Any, theirs: Any, wrong: Any) -> dict[str, float]:
    """The lead of our average precision over theirs, with its bootstrap standard error."""

    def lead_on(rows: torch.Tensor) -> float:
        return average_precision(a[rows], w[rows]) - average_precision(b[rows], w[rows])

    a, b, w = (torch.as_tensor(array) for array in (ours, theirs, wrong))
    g, n = generator(0, "drawn again"), len(w)
    resampled = [lead_on(torch.randint(n, (n,), generator=g)) for _ in range(BOOTSTRAP_SAMPLES)]
    return {"ap": lead_on(torch.arange(n)), "se": float(np.std(resampled, ddof=1))}


def score(folder: Path, name: str) -> dict[str, Any]:
    """The metrics of one saved run as a result line."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    run = np.load(folder / f"{name}.run.npz")
    given, true = run["given"], run["true"]
    folds = [np.load(folder / f"{name}.fold{k}.npz") for k in range(FOLDS)]
    line: dict[str, Any] = {"name": name, "rows": len(given)}
    line["before"] = 100 * float((given == true).mean())
    found = suspicion_variants(run)
    for variant, (suspicion, suspect) in found.items():
        values = quality(run["p"], run["p"].argmax(1), suspicion, suspect, given, true)
        line[variant] = values | {"seconds": round(float(run["seconds"]), 1)}
    for which in ("selected", "last"):
        p = np.empty_like(run["p"])
        for part in folds:
            p[part["rows"]] = part[which]
        issues = find_label_issues(given, p, n_jobs=1)
        fixed = np.where(issues, p.argmax(1), given)
        values = quality(p, p.argmax(1), -get_label_quality_scores(given, p), issues, given, true)
        values |= {"right_fixed": 100 * float((fixed == true).mean())}
        values |= {"lead": bootstrap_lead(found["metalabelnet"][0], -get_label_quality_scores(given, p), given != true)}
        line[f"cleanlab, {which}"] = values | {"seconds": round(sum(float(part["seconds"]) for part in folds), 1)}
    return line


def table(files: list[Path]) -> str:
    """A Markdown table of the result lines in these files, with means over seeds."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(line["name"].rpartition("-seed")[0], []).append(line)
    variants = ("metalabelnet", "cleanlab, selected", "cleanlab, last")
    head = ["data and noise", "seeds", "correct before"]
    head += [
        f"{what}: {variant}" for what in ("correct after", "average precision") for variant in ("ours", *variants[1:])
    ]
    head += [
        "lead over the better",
        "AUROC: ours",
        *(f"ECE: {variant}" for variant in ("ours", *variants[1:])),
    ]
    text = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]

    def mean(group: list[dict[str, Any]], variant: str, what: str) -> float:
        return float(np.mean([line[variant][what] for line in group]))

    for name, group in groups.items():
        rights = [
            max(mean(group, variant, what) for what in ("right", "right_fixed") if what in group[0][variant])
            for variant in variants
        ]
        aps = [mean(group, variant, "ap") for variant in variants]
        cells = [name, str(len(group)), f"{np.mean([line['before'] for line in group]):.1f}"]
        cells += [f"**{v:.1f}**" if v == max(rights) else f"{v:.1f}" for v in rights]
        cells += [f"**{v:.4f}**" if v == max(aps) else f"{v:.4f}" for v in aps]
        better = variants[1:][int(aps[2] > aps[1])]
        leads = [line[better]["lead"] for line in group]
        error = np.sqrt(sum(one["se"] ** 2 for one in leads)) / len(leads)
        cells.append(f"{np.mean([one['ap'] for one in leads]):+.4f} ± {error:.4f}")
        cells += [
            f"{mean(group, variants[0], 'auroc'):.4f}",
            *(f"{mean(group, variant, 'ece'):.1f}" for variant in variants),
        ]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text)


def main() -> None:
    """Train and score, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", choices=["digits", "fashion-mnist", "cifar10n"])
    parser.add_argument("--noise", nargs="*", default=NOISES, metavar="KIND:RATE")
    parser.add_argument("--seed", nargs="*", type=int, default=[0])
    parser.add_argument("--method", default="metalabelnet")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--clean", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--data-dir")
    parser.add_argument("--save", type=Path, metavar="DIR", help="train and save to this folder without scoring")
    parser.add_argument("--from", dest="saved", type=Path, metavar="DIR", help="score the runs saved in this folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write result lines to")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="print these result lines as a table")
    args = parser.parse_args()
    if args.table:
        print(table(args.table))
        return
    if args.data is None:
        parser.error("give a data set, or files with --table")
    args.folder = args.save or args.saved or Path("runs/labels")
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.saved:
        names = sorted(file.name.removesuffix(".run.npz") for file in args.saved.glob(f"{args.data}-*.run.npz"))
    else:
        if args.data == "cifar10n":
            args.noise = ["cifar10n:worst"]
        names = [train_missing(args, noise, seed) for noise in args.noise for seed in args.seed]
    if args.save:
        return
    lines = []
    for name in names:
        line = score(args.folder, name) | {"versions": versions(), "commit": commit()}
        lines.append(json.dumps(line))
        ap = {
            variant: round(found["ap"], 4)
            for variant, found in line.items()
            if isinstance(found, dict) and "ap" in found
        }
        print(name, f"before {line['before']:.1f} after {line['metalabelnet']['right']:.1f}", ap, flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
