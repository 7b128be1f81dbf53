"""Tables and texts with real label noise: `metalabelnet-plus` against logistic regression, paired over draws.

    python benchmarks/real.py FOLDER [--sets sentiment tubespam digits] [--draws 10] [--out results/real/runs.jsonl]
    python benchmarks/real.py FOLDER --sets sentiment --encoder NAME --draws 5 --out results/real/encoders.jsonl
    python benchmarks/real.py FOLDER --annotations --out results/real/annotations.jsonl
    python benchmarks/real.py --show results/real/runs.jsonl

FOLDER/NAME/ has train.csv (id, text, given, true), test.csv (id, text, label): texts whose given labels are wrong by
nature; and annotations.csv (id, annotator, label). 100 clean rows are drawn at random from the training rows and keep
their given labels. `digits` is scikit-learn's data set as a table of 64 columns, with added noise. Every method sees
the same rows, and the choices of every method are made on clean and training rows. With --encoder the texts become
embeddings of that encoder in place of TF-IDF.

With --annotations every sample has the labels of all its annotators: `metalabelnet-plus` uses them as they are, the
other rows one label made of them, by majority vote or by Dawid and Skene's model (with crowd-kit, too, if it is
installed). The labeling rules of tubespam are applied to every comment: where one gives no label, it abstains.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from paired_rows import show

from metalabelnet.core.dawid_skene import fit_dawid_skene
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.train import make_run, train
from metalabelnet.train.prepare import prepare

if TYPE_CHECKING:
    from metalabelnet.core.annotations import Annotations
    from metalabelnet.data.problem import Problem

METHODS = ("metalabelnet-plus", "logistic-given", "logistic-clean", "logistic-both")
CLEAN = 100
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


def text_runs(source: Path, draw: int, folder: Path) -> dict[str, Any]:
    """Write the files of a draw; return the options of its runs."""
    rows = read_csv(source / "train.csv")
    chosen = np.random.default_rng(draw).permutation(len(rows))[:CLEAN]
    write_csv(folder / "train.csv", ["id", "text", "given", "true"], [list(row.values()) for row in rows])
    write_csv(folder / "clean.csv", ["id", "label"], [[rows[k]["id"], rows[k]["true"]] for k in chosen])
    test = [[row["id"], row["text"], row["label"]] for row in read_csv(source / "test.csv")]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="+", default=["sentiment", "tubespam", "digits"])
    parser.add_argument("--encoder", help="pretrained encoder of the texts (default: TF-IDF)")
    parser.add_argument("--annotations", action="store_true", help="all annotations of the sets that have some")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--out", type=Path, default=Path("results/real/runs.jsonl"))
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.encoder and (args.annotations or "digits" in args.sets):
        parser.error("--encoder is for texts: choose --sets sentiment tubespam, without --annotations")
    if args.show:
        show(args.show, METHODS[0], METRICS)
        return
    for draw in range(args.first, args.first + args.draws):
        for name in args.sets:
            if name == "digits" and args.annotations:
                continue
            noises = DIGITS_NOISES if name == "digits" else ("",)
            if name != "digits" and not (args.folder and (args.folder / name).is_dir()):
                print(f"{name}: skipped, {args.folder}/{name} does not exist", file=sys.stderr)
                continue
            for noise in noises:
                with tempfile.TemporaryDirectory() as folder:
                    if args.annotations:
                        measure_annotations(args.folder / name, draw, Path(folder), args.out, args.methods)
                        continue
                    if name == "digits":
                        options, label = digits_runs(draw, Path(folder), noise), f"digits {noise}"
                    else:
                        options = text_runs(args.folder / name, draw, Path(folder)) | {"encoder": args.encoder}
                        label = name + encoder_label(args.encoder)
                    measure(label, options, draw, args.out, args.methods)


if __name__ == "__main__":
    main()
