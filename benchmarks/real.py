"""Tables and texts with real label noise: `metalabelnet-plus` against logistic regression, paired over draws.

    python benchmarks/real.py FOLDER [--sets sentiment tubespam digits] [--draws 10] [--out results/real/runs.jsonl]
    python benchmarks/real.py FOLDER --sets sentiment --encoder NAME --draws 5 --out results/real/encoders.jsonl
    python benchmarks/real.py FOLDER --sets sentiment --held-out --encoder NAME --out results/real/held_out.jsonl
    python benchmarks/real.py FOLDER --annotations --out results/real/annotations.jsonl
    python benchmarks/real.py --show results/real/runs.jsonl

FOLDER/NAME/ has train.csv (id, text, given, true), test.csv (id, text, label): texts whose given labels are wrong by
nature; and annotations.csv (id, annotator, label). 100 clean rows are drawn at random from the training rows and keep
their given labels. `digits` is scikit-learn's data set as a table of 64 columns, with added noise. Every method sees
the same rows, and the choices of every method are made on clean and training rows. With --encoder the texts become
embeddings of that encoder in place of TF-IDF. With --held-out every draw has another test part in place of test.csv: a
quarter of train.csv, which is then not trained on.

`Bayes + refit` is Bayes' rule with logistic regression on the clean rows as prior and the noise matrix counted on them;
logistic regression is then fitted to these soft labels and the clean rows.

With --annotations every sample has the labels of all its annotators: `metalabelnet-plus` uses them as they are, the
other rows one label made of them, by majority vote or by Dawid and Skene's model (with crowd-kit, too, if it is
installed). The labeling rules of tubespam are applied to every comment: where one gives no label, it abstains.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from linear import exhaust
from paired_rows import read_draws, show

from metalabelnet.core.dawid_skene import fit_dawid_skene
from metalabelnet.core.intervals import paired_difference
from metalabelnet.core.logistic import fit_logistic, log_softmax, logits
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.labels.metrics import average_precision
from metalabelnet.methods.fixed_features import make_features
from metalabelnet.methods.label_likelihood import label_log_likelihood
from metalabelnet.methods.logistic import CLEAN_WEIGHT, select_decay
from metalabelnet.train import make_run, train
from metalabelnet.train.logistic_run import with_all_clean_rows
from metalabelnet.train.prepare import prepare

if TYPE_CHECKING:
    from metalabelnet.core.annotations import Annotations
    from metalabelnet.data.problem import Problem

METHODS = ("metalabelnet-plus", "logistic-given", "logistic-clean", "logistic-both")
BAYES = "Bayes + refit"
CLEAN = 100
QUARTERS = 4
DIGITS_NOISES = ("uniform:0.4", "uniform:0.8", "feature:0.4")
LABELING_RULES = ("tubespam",)  # sets whose annotators see every sample, and abstain where they give no label
CEILING = "logistic-given, true labels"  # no method: what perfect labels would give
METRICS = ("test_accuracy", "right_before", "right_after", "suspicion_ap", "clean_accuracy", "seconds")


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, columns: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def text_runs(source: Path, draw: int, folder: Path, *, held_out: bool = False) -> dict[str, Any]:
    """Write the files of a draw; return the options of its runs. `held_out`: test on a quarter of train.csv."""
    rows, test_rows = read_csv(source / "train.csv"), read_csv(source / "test.csv")
    if held_out:
        order = np.random.default_rng(draw // QUARTERS).permutation(len(rows))
        test_rows = [rows[k] | {"label": rows[k]["true"]} for k in order[draw % QUARTERS :: QUARTERS]]
        tested = {row["id"] for row in test_rows}
        rows = [row for row in rows if row["id"] not in tested]
    chosen = np.random.default_rng(draw).permutation(len(rows))[:CLEAN]
    write_csv(folder / "train.csv", ["id", "text", "given", "true"], [list(row.values()) for row in rows])
    write_csv(folder / "clean.csv", ["id", "label"], [[rows[k]["id"], rows[k]["true"]] for k in chosen])
    test = [[row["id"], row["text"], row["label"]] for row in test_rows]
    write_csv(folder / "test.csv", ["id", "text", "given"], test)
    return {
        "data": str(folder / "train.csv"),
        "text": "text",
        "label": "given",
        "true_label": "true",
        "id": "id",
        "clean_file": str(folder / "clean.csv"),
        "test": str(folder / "test.csv"),
    }


def encoder_label(name: str | None) -> str:
    """Return what is added to the name of a set: the name of the encoder without the folders of its path."""
    family, colon, rest = (name or "").rpartition(":")
    return f", {family}{colon}{Path(rest).name}" if name else ""


def digits_runs(draw: int, folder: Path, noise: str) -> dict[str, Any]:
    """Write digits as a table, a third of them for testing; return the options of its runs."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(draw).permutation(len(y))
    columns = [f"pixel{k}" for k in range(64)]
    for name, part in (("train", order[600:]), ("test", order[:600])):
        write_csv(folder / f"{name}.csv", [*columns, "digit"], [[*X[k].tolist(), f"d{y[k]}"] for k in part])
    return {
        "data": str(folder / "train.csv"),
        "label": "digit",
        "true_label": "digit",
        "test": str(folder / "test.csv"),
        "clean": CLEAN,
        "noise": noise,
        "seed": draw,
    }


def measure(name: str, options: dict[str, Any], draw: int, out: Path, methods: list[str]) -> None:
    """Train every method on one draw and append a line for each."""
    cache = ReadCache()
    for method in methods:
        start = time.process_time()
        data = dict(options)
        run = make_run(data.pop("data"), method=method, device="cpu", **data)
        append(out, name, method, draw, train(run, read_cache=cache).summary, time.process_time() - start)


def measure_bayes(name: str, options: dict[str, Any], draw: int, out: Path) -> None:
    """Append a line for `Bayes + refit` on one draw. Every λ is chosen as for the logistic rows."""
    start, data = time.process_time(), dict(options)
    problem = with_all_clean_rows(prepare(make_run(data.pop("data"), method="logistic-both", device="cpu", **data)))
    f = make_features(problem.train, problem.clean)
    n, given, true = f.n, f.given[: f.n], problem.train.true.numpy()
    q = np.concatenate([np.full((n, f.classes), 1 / f.classes), np.eye(f.classes)[f.true]])
    is_clean = (np.arange(len(q)) >= n).astype(np.float64)
    log_p = log_softmax(logits(f.X, fit_logistic(f.X, q, is_clean, exhaust(select_decay(f, q, is_clean)))))
    log_p += label_log_likelihood(f, log_p, np.ones(len(f.true), bool))
    q[:n] = np.exp(log_softmax(log_p[:n]))
    w = np.where(is_clean, CLEAN_WEIGHT, 1.0)
    weight, bias = f.linear_layer(fit_logistic(f.X, q, w, exhaust(select_decay(f, q, w))))
    x = problem.test.x[torch.arange(len(problem.test))].double()
    right = (x @ weight.T + bias).argmax(1) == problem.test.true
    labeled = np.flatnonzero(given >= 0)
    suspicion = torch.from_numpy(1 - q[labeled, given[labeled]])
    summary = dict.fromkeys(METRICS) | {
        "test_accuracy": 100 * float(right.double().mean()),
        "right_before": 100 * float((given == true)[labeled].mean()),
        "right_after": 100 * float((q[:n].argmax(1) == true)[labeled].mean()),
        "suspicion_ap": average_precision(suspicion, torch.from_numpy((given != true)[labeled])),
    }
    append(out, name, BAYES, draw, summary, time.process_time() - start)


def append(out: Path, name: str, row: str, draw: int, summary: dict[str, Any], cpu_seconds: float) -> None:
    line = {"set": name, "method": row, "draw": draw, **{key: summary[key] for key in METRICS}}
    line["cpu_seconds"] = round(cpu_seconds, 2)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(name, draw, row, *(f"{key} {line[key]}" for key in METRICS[:4]), line["cpu_seconds"], flush=True)


def measure_annotations(source: Path, draw: int, folder: Path, out: Path, methods: list[str]) -> None:
    """Train on all annotations of a draw, and on labels made of them, and append a line for each row."""
    options = text_runs(source, draw, folder)
    rows, annotations = read_csv(source / "train.csv"), read_csv(source / "annotations.csv")
    write_csv(folder / "train.csv", ["id", "text", "true"], [[row["id"], row["text"], row["true"]] for row in rows])
    entries = [[one["id"], one["annotator"], one["label"]] for one in annotations]
    if source.name in LABELING_RULES:
        labeled = {(name, rule) for name, rule, _ in entries}
        pairs = [(row["id"], rule) for row in rows for rule in sorted({rule for _, rule in labeled})]
        entries += [[name, rule, ""] for name, rule in pairs if (name, rule) not in labeled]
    write_csv(folder / "annotations.csv", ["id", "annotator", "label"], entries)
    del options["label"]
    runs = {
        method: make_run(method=method, device="cpu", annotations=str(folder / "annotations.csv"), **options)
        for method in METHODS
    }
    problem = prepare(runs[METHODS[0]])
    problems = {METHODS[0]: (METHODS[0], problem)}
    for how, labels in aggregated_labels(problem).items():
        labeled_problem = with_labels(problem, labels)
        for method in METHODS if how == "majority vote" else ("logistic-given", "logistic-both"):
            if method != "logistic-clean":
                problems[f"{method}, {how}"] = method, labeled_problem
    true = np.concatenate([rows.true.numpy() for rows in parts(problem)])
    problems[CEILING] = "logistic-given", with_labels(problem, true)
    for row, (method, row_problem) in problems.items():
        if method not in methods:
            continue
        start = time.process_time()
        summary = train(runs[method], problem=row_problem).summary
        append(out, f"{source.name}, all annotations", row, draw, summary, time.process_time() - start)


def parts(problem: Problem) -> tuple[Any, ...]:
    return problem.train, problem.clean, problem.validation


def aggregated_labels(problem: Problem) -> dict[str, np.ndarray]:
    """Return one label for each training, clean and validation row, made of the annotations in several ways."""
    train_rows, clean, validation = (rows.annotations for rows in parts(problem))
    annotations, classes = train_rows.concat(clean).concat(validation), len(problem.train.classes)
    vote = np.concatenate([rows.given.numpy() for rows in parts(problem)])
    found = {"majority vote": vote}
    found["Dawid-Skene"] = fit_dawid_skene(annotations, classes, shrinkage=0.0).posterior.argmax(1)
    if (labels := crowd_kit_labels(annotations)) is not None:
        found["Dawid-Skene of crowd-kit"] = labels
    voted = annotations.votes(classes).sum(1) > 0
    return {how: np.where(voted, labels, -1) for how, labels in found.items()}


def crowd_kit_labels(annotations: Annotations) -> np.ndarray | None:
    """Return the labels of crowd-kit's Dawid-Skene with its defaults; None if it is not installed."""
    try:
        import pandas as pd
        from crowdkit.aggregation import DawidSkene
    except ImportError:
        return None
    given = annotations.label >= 0  # it has no abstaining annotators
    columns = {"task": annotations.sample, "worker": annotations.annotator, "label": annotations.label}
    labels = DawidSkene().fit_predict(pd.DataFrame({name: values[given] for name, values in columns.items()}))
    found = np.full(annotations.size, -1)
    found[labels.index] = labels
    return found


def with_labels(problem: Problem, labels: np.ndarray) -> Problem:
    """Return the problem with one given label for each row in place of the annotations."""
    counts = [len(rows) for rows in parts(problem)]
    pieces = np.split(labels, np.cumsum(counts)[:-1])
    labeled = {
        name: dataclasses.replace(rows, given=torch.from_numpy(piece), annotations=None)
        for name, rows, piece in zip(("train", "clean", "validation"), parts(problem), pieces, strict=True)
    }
    return dataclasses.replace(problem, **labeled)


def markdown(out: Path) -> list[str]:
    """Return rows of the tables: accuracy with the lead over the best other row; right labels and average precision."""
    rows = []
    for name, by_method in read_draws(out).items():
        others = [method for method in (*METHODS[1:], BAYES) if method in by_method]
        accuracy = {m: [by_method[m][k]["test_accuracy"] for k in sorted(by_method[m])] for m in (METHODS[0], *others)}
        best = max(others, key=lambda m: statistics.mean(accuracy[m]))
        low, high = (lead := paired_difference(np.subtract(accuracy[METHODS[0]], accuracy[best]).tolist())).interval()
        cells = [f"{statistics.mean(v):.1f} ± {statistics.pstdev(v):.1f}" for v in accuracy.values()]
        lead_text = f"{lead.mean:+.2f} ({low:+.2f} to {high:+.2f})".replace("-", "−")
        rows.append(f"| {name} | {' | '.join(cells)} | {lead_text} |")
        own = [f"{mean_of(by_method[METHODS[0]], key):.1f}" for key in ("right_before", "right_after")]
        ranks = [f"{mean_of(by_method[m], 'suspicion_ap'):.2f}" for m in (METHODS[0], *others)]
        rows.append(f"| {name} | {' | '.join([*own, *ranks])} |")
    return rows


def annotation_markdown(out: Path) -> list[str]:
    """Return a row for each way to use annotations: accuracy and right labels of both sets."""
    sets, rows = read_draws(out), []
    for method in dict.fromkeys(method for by_method in sets.values() for method in by_method):
        cells = []
        for by_method in sets.values():
            values = [line["test_accuracy"] for line in by_method[method].values()]
            labels = "right_after" if method.startswith(METHODS[0]) else "right_before"
            cells += [f"{statistics.mean(values):.1f} ± {statistics.pstdev(values):.1f}"]
            cells += [f"{mean_of(by_method[method], labels):.1f}"]
        rows.append(" | ".join(cells))
    return rows


def mean_of(draws: dict[int, dict[str, Any]], key: str) -> float:
    return statistics.mean(line[key] for line in draws.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="+", default=["sentiment", "tubespam", "digits"])
    parser.add_argument("--encoder", help="pretrained encoder of the texts (default: TF-IDF)")
    parser.add_argument("--held-out", action="store_true", help="test on a quarter of the training texts per draw")
    parser.add_argument("--annotations", action="store_true", help="all annotations of the sets that have some")
    parser.add_argument("--methods", nargs="+", default=[*METHODS, BAYES], choices=[*METHODS, BAYES])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--out", type=Path, default=Path("results/real/runs.jsonl"))
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.encoder and (args.annotations or "digits" in args.sets):
        parser.error("--encoder is for texts: choose --sets sentiment tubespam, without --annotations")
    if args.held_out and (args.annotations or "digits" in args.sets):
        parser.error("--held-out is for texts: choose --sets sentiment tubespam, without --annotations")
    if args.show:
        show(args.show, METHODS[0], METRICS)
        rows = annotation_markdown(args.show) if "annotations" in args.show.name else markdown(args.show)
        print("\n".join(rows))
        return
    for draw in range(args.first, args.first + args.draws):
        for name in args.sets:
            for noise in DIGITS_NOISES if name == "digits" else ("",):
                measure_draw(args, name, noise, draw)


def measure_draw(args: argparse.Namespace, name: str, noise: str, draw: int) -> None:
    """Measure all rows of a draw of a set."""
    if name == "digits" and args.annotations:
        return
    if name != "digits" and not (args.folder and (args.folder / name).is_dir()):
        print(f"{name}: skipped, {args.folder}/{name} does not exist", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.annotations:
            measure_annotations(args.folder / name, draw, Path(folder), args.out, args.methods)
            return
        if name == "digits":
            options, label = digits_runs(draw, Path(folder), noise), f"digits {noise}"
        else:
            options = text_runs(args.folder / name, draw, Path(folder), held_out=args.held_out)
            options |= {"encoder": args.encoder}
            label = name + encoder_label(args.encoder)
        measure(label, options, draw, args.out, [m for m in args.methods if m != BAYES])
        if BAYES in args.methods:
            measure_bayes(label, options, draw, args.out)


if __name__ == "__main__":
    main()
