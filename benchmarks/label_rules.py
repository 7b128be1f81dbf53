"""Compare candidate rules for corrected labels (the rule in use is in `labels/correction.py`).

    python benchmarks/label_rules.py --json results/labels/rules-digits.json

One run on `digits` for each of uniform and feature-dependent noise at 10, 20, 40 and 60 %, with a seed that no other
table uses. Each candidate is computed from the probabilities of every epoch. The table shows means over the eight runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.core.calibration import fit_temperature
from metalabelnet.core.posterior import fit_transition_matrix, posterior
from metalabelnet.labels.loo_refit import loo_logits
from metalabelnet.labels.metrics import auroc, average_precision, expected_calibration_error
from metalabelnet.labels.snapshots import (
    LabelDistribution,
    calibrated_distribution,
    clean_rows,
    given_probability,
    is_lower,
    snapshot_predictions,
    suspicion_scale,
)
from metalabelnet.train import make_run
from metalabelnet.train.loop import EpochOutputs, TrainingLoop
from metalabelnet.train.prepare import prepare
from metalabelnet.train.train_run import run_to_completion

NOISES = [f"{kind}:{rate}" for kind in ("uniform", "feature") for rate in (0.1, 0.2, 0.4, 0.6)]


class RecordingLoop(TrainingLoop):
    """A training loop that keeps the predictions of every epoch and the LOO refit of the first snapshot."""

    def evaluate(self, outputs: EpochOutputs) -> None:
        super().evaluate(outputs)
        if self.epoch == 0:
            self.__dict__["fit"] = loo_logits(self.method, self.problem.train, clean_rows(self.method, self.problem))
        self.__dict__.setdefault("predictions", []).append(snapshot_predictions(self.method, self.problem))


def bayes_posterior(p: Tensor, given: Tensor) -> Tensor:
    """p(true = k | x, y) ∝ p_k(x) T_ky, with T estimated by expectation maximization on these rows."""
    return posterior(p, given, fit_transition_matrix(p, given))


def candidates(noise: str, seed: int, method: str) -> tuple[dict[str, Tensor], Any]:
    """The probabilities of the training rows by each candidate, and the rows."""
    run = make_run("digits", recipe="paper", method=method, noise=noise, seed=seed, device="cpu")
    problem = prepare(run)
    loop = RecordingLoop(run, problem, None, None)
    result = run_to_completion(loop.steps(None, None, 1e9))
    predictions = loop.__dict__["predictions"]
    true = predictions[0].true
    train, clean = (torch.stack([epoch[part] for epoch in predictions]).double() for part in (0, 1))
    e, epochs = result.summary["selected_epoch"], len(predictions)

    def mean(first: int, last: int) -> LabelDistribution:
        parts = (train[first : last + 1], clean[first : last + 1].softmax(2))
        logs = [p.mean(0).clamp_min(1e-12).log() for p in parts]
        return calibrated_distribution(logs[0], logs[1], true, (first, last))

    means = [mean(0, k) for k in range(epochs)]

    def last_lower_loss(first: LabelDistribution, errors: float = 2) -> LabelDistribution:
        best = first
        for other in means:
            best = other if is_lower(other.losses, best.losses, errors) else best
        return best

    fit = calibrated_distribution(*loop.__dict__["fit"], true, (0, 0))
    validation_count = len(problem.validation)
    validation_temperature, _ = fit_temperature(clean[e, :validation_count], true[:validation_count])
    found = {
        "the given labels": one_hot(problem.train.given, 10).double(),
        "classifier of the selected epoch": train[e],
        "… calibrated on the validation_count-out clean samples": (train[e].log() / validation_temperature).softmax(1),
        "… calibrated on all clean samples": mean(e, e).p,
        "… and Bayes' rule with a noise matrix": bayes_posterior(mean(e, e).p, problem.train.given),
        "mean over the epochs of warm-up": mean(0, run.warmup - 1).p,
        "mean up to the selected epoch": means[e].p,
        "mean over all epochs": means[-1].p,
        "mean up to the lowest loss on clean samples": min(means, key=lambda m: float(m.losses.mean())).p,
        "mean up to the last loss lower by two standard errors": last_lower_loss(means[0]).p,
        "LOO ridge head on the features of the first snapshot": fit.p,
        "… and Bayes' rule with a noise matrix, unconditionally": bayes_posterior(fit.p, problem.train.given),
        "LOO ridge head, or a mean whose loss is lower by two standard errors": last_lower_loss(fit).p,
        "… by one standard error": last_lower_loss(fit, 1).p,
        "… by one, or two where the mean shows memorization (the rule)": result.labels.probabilities,
    }
    if result.labels.soft_labels is not None:
        found["soft labels ŷ"] = result.labels.soft_labels.double()
    snapshots = [fit, *means]
    w = torch.softmax(-suspicion_scale(len(true)) * torch.stack([snapshot.losses.mean() for snapshot in snapshots]), 0)
    p_y = torch.stack([given_probability(snapshot.p, problem.train.given) for snapshot in snapshots])
    found["suspicion by a sum of all p_y, with the rule's weights"] = 1 - w @ p_y
    found["the rule's own suspicion, by a product"] = result.labels.suspicion  # type: ignore[assignment]
    return found, problem.train


def main() -> None:
    """Print the table; write it to a file with --json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", nargs="*", default=NOISES)
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--method", default="metalabelnet")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines: dict[str, list[tuple[Any, ...]]] = {}
    for noise in args.noise:
        found, rows = candidates(noise, args.seed, args.method)
        wrong = rows.given != rows.true
        for name, p in found.items():
            ranked = p if p.ndim == 1 else 1 - p.gather(1, rows.given[:, None])[:, 0]
            areas = (average_precision(ranked, wrong), auroc(ranked, wrong))
            right = None if p.ndim == 1 else 100 * float((p.argmax(1) == rows.true).double().mean())
            error = None if p.ndim == 1 else expected_calibration_error(p, rows.true)
            lines.setdefault(name, []).append((right, error, *areas))
        print(noise, file=sys.stderr, flush=True)
    print("| rule | correct labels | calibration error | average precision | AUROC |\n|---|---|---|---|---|")
    for name, values in lines.items():
        means = [None if None in column else sum(column) / len(column) for column in zip(*values, strict=True)]
        digits = (1, 1, 4, 4)
        cells = ["–" if v is None else f"{v:.{d}f}" for v, d in zip(means, digits, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        settings = {"seed": args.seed, "method": args.method, "noise": args.noise}
        args.json.write_text(json.dumps({**settings, "rows": lines}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
