"""Time and memory of `metalabelnet-plus` on fixed features, relative to one logistic regression of scikit-learn.

    OMP_NUM_THREADS=1 python benchmarks/fixed_features.py table [--rows 1000000] [--repeats 3] [--out FILE]
    OMP_NUM_THREADS=1 python benchmarks/fixed_features.py texts [--rows 20000] [--repeats 3] [--out FILE]

table  rows of 100 standardized numbers, 5 classes, 30 % of the given labels uniformly wrong, 1,000 clean rows
texts  texts of 10 to 40 words from a vocabulary of 30,000 words with Zipf's frequencies, of which the classes favor
       some; 4 classes, same noise. Features: TF-IDF of words and character n-grams, as the package makes them

Both get the same features in the same process: `LogisticRegression` of scikit-learn with its defaults (lbfgs, C = 1,
up to 1,000 iterations) on the given labels, and `MetaLabelNetClassifier` with its defaults, which also makes the label
table and the summary. Seconds are CPU time, the minimum of repeats in turn; memory is the largest resident set after
each of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

CLEAN, NOISE = 1000, 0.3


def make_table(rows: int, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    true = rng.integers(0, 5, rows)
    centers = 0.35 * rng.standard_normal((5, 100))
    X = rng.standard_normal((rows, 100), dtype=np.float32) + centers[true].astype(np.float32)
    return X, true


def make_texts(rows: int, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    from metalabelnet.data.encoders import TextEncoder

    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(rng.choice(letters, rng.integers(3, 10))) for _ in range(30_000)])
    frequency = 1 / np.arange(1, len(words) + 1)
    true = rng.integers(0, 4, rows)
    favored = [frequency * rng.lognormal(0, 0.8, len(words)) for _ in range(4)]
    texts: list[list[str]] = [[]] * rows
    for k in range(4):
        of_class, p = np.flatnonzero(true == k), favored[k] / favored[k].sum()
        for i in of_class:
            texts[i] = [" ".join(words[rng.choice(len(words), rng.integers(10, 40), p=p)])]
    encoder = TextEncoder.fit("text", texts, analyzers=("word", "char"), sparse=True)
    return encoder.encode_sparse(texts).csr, true


def peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("table", "texts"))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--repeats", type=int, default=1, help="fits of each in turn; the shortest times are written")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    from sklearn.linear_model import LogisticRegression

    from metalabelnet import MetaLabelNetClassifier

    rows = args.rows or {"table": 1_000_000, "texts": 20_000}[args.data]
    rng = np.random.default_rng(0)
    X, true = (make_table if args.data == "table" else make_texts)(rows, rng)
    classes = int(true.max()) + 1
    given = np.where(rng.random(rows) < NOISE, rng.integers(0, classes, rows), true)
    clean_mask = np.zeros(rows, bool)
    clean_mask[rng.permutation(rows)[:CLEAN]] = True
    y = np.where(clean_mask, true, given)
    record: dict[str, Any] = {"data": args.data, "rows": rows, "columns": X.shape[1], "classes": classes}
    record["features_gib"] = peak_gib()
    seconds: dict[str, list[float]] = {"logistic_seconds": [], "seconds": []}
    for repeat in range(args.repeats):
        start = time.process_time()
        logistic = LogisticRegression(max_iter=1000).fit(X, given)
        seconds["logistic_seconds"].append(time.process_time() - start)
        if repeat == 0:
            record["logistic_gib"] = peak_gib()
        start = time.process_time()
        fitted = MetaLabelNetClassifier("metalabelnet-plus", device="cpu").fit(X, y, clean_mask)
        seconds["seconds"].append(time.process_time() - start)
        print({name: round(values[-1], 1) for name, values in seconds.items()}, flush=True)
        if repeat < args.repeats - 1:
            del fitted
    record |= {name: round(min(values), 1) for name, values in seconds.items()} | {"repeats": args.repeats}
    record |= {"iterations": int(logistic.n_iter_.max()), "gib": peak_gib()}
    for name, classifier in (("logistic_right", logistic), ("right", fitted)):
        record[name] = round(float((classifier.predict(X) == true).mean()), 4)
    record["ratio"] = round(record["seconds"] / record["logistic_seconds"], 2)
    record |= {"machine": platform.machine(), "date": datetime.now(UTC).date().isoformat()}
    print(record)
    if args.out is not None:
        with args.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
