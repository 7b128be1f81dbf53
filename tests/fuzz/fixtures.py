"""The files of the fuzzer's cases: small data of every kind, and runs trained on it."""

import contextlib
import io
import shutil
from pathlib import Path

import numpy as np
from cases import FAST, NETS, RESUMABLE, RESUME

from metalabelnet.cli import main
from metalabelnet.cli.parser import make_parser
from metalabelnet.data.files.list_data import ReadOptions
from metalabelnet.data.packed.source import list_images
from metalabelnet.data.packed.writer import write_pack
from metalabelnet.errors import RunStopped
from metalabelnet.train import make_run, train
from tiny_data import CLASSES, write_npz
from user_data import TABLE_COLUMNS, table_rows, text_rows, write_csv, write_photos


def write_fixtures(folder: Path) -> None:
    """Write data of every kind, and train runs on it. The current folder must be `folder`: paths are relative."""
    write_npz(folder / "small.npz")
    x, y = np.load("small.npz")["x_train"], np.load("small.npz")["y_train"]
    write_npz(folder / "clean.npz", x_clean=x[:18], y_clean=y[:18])
    np.save("noise.npy", (y + (np.arange(80) % 5 == 0)) % 3)
    (folder / "noise.csv").write_text("".join(f"{label}\n" for label in y))
    write_csv(folder / "matrix.csv", ["0.8", "0.1", "0.1"], [["0.1", "0.8", "0.1"], ["0", "0.2", "0.8"]])
    np.save("probs.npy", np.random.default_rng(0).dirichlet(np.ones(3), 80))
    write_csv(folder / "clean-rows.csv", ["id", "label"], [[k, CLASSES[label]] for k, label in enumerate(y[:18])])
    true_labels = write_photos(folder / "photos", count=27, unlabeled=2)
    write_csv(folder / "clean.csv", ["id", "label"], [*true_labels[5:17], *true_labels[27:29]])
    paths = [(f"photos/{name}", label) for name, label in true_labels]
    write_csv(folder / "photos.csv", ["path", "label"], paths)
    write_csv(folder / "clean-paths.csv", ["id", "label"], [*paths[5:17], *paths[27:29]])
    for k, (name, label) in enumerate([*true_labels[5:17], *true_labels[27:29]]):
        target = folder / "clean-photos" / label / f"{k}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "photos" / name, target)
    write_csv(folder / "table.csv", TABLE_COLUMNS, table_rows(60))
    write_csv(folder / "test.csv", TABLE_COLUMNS, [row for row in table_rows(30, seed=1) if row[4]])
    write_csv(folder / "table.tsv", TABLE_COLUMNS, table_rows(60), separator="\t")
    write_parquet(folder / "table.parquet")
    write_csv(folder / "news.csv", ["text", "label", "checked"], text_rows(60))
    (folder / "nets.py").write_text(NETS)
    (folder / "page.md").write_text("<!-- begin: agreement -->\n<!-- end: agreement -->\n")
    (folder / "results").mkdir()
    for name in ("fig-losses.jsonl", "cifar10n.jsonl"):
        shutil.copyfile(Path(__file__).parents[2] / "results" / name, folder / "results" / name)
    write_annotations(folder / "crowd.csv", [(row[0], row[4]) for row in table_rows(60)])
    write_annotations(folder / "crowd-photos.csv", true_labels)
    write_annotations(folder / "crowd-rows.csv", [(str(k), CLASSES[label]) for k, label in enumerate(y)])
    write_half_a_pack(folder / "packed-half")
    for words in (
        "pack photos -o packed",
        "pack photos -o packed-pixels --decode --image-size 8",
        f"train packed-pixels --clean clean.csv --method gce {FAST} --out run-pack",
        "train table.csv --clean-column checked --annotations crowd.csv --device cpu --out run-crowd",
        f"train small.npz --clean 18 {FAST} --out run-npz",
        f"train photos --clean clean.csv {FAST} --out run-photos",
        f"train table.csv --clean-column checked {FAST} --out run-table",
        f"train news.csv --clean-column checked {FAST} --out run-text",
        f"train small.npz --clean 18 --net nets.py:make {FAST} --out run-net",
        f"compare small.npz --clean 18 --methods gce,fine-tune --seeds 1 --jobs 1 {FAST} --out compared",
        "report run-npz run-photos -o report.html",
        "review photos --db verdicts.sqlite --export clean -o review.csv",
        "predict run-table table.parquet -o predictions.csv",
    ):
        quietly(words)
    for method in RESUMABLE:
        args = make_parser().parse_args(RESUME.replace("METHOD", method).split())
        steps = iter(range(9))
        fields = {"clean": 18, "device": "cpu", "epochs": 4, "warmup": 1, "batch_size": 16, "lr": 0.05}
        run = make_run("small.npz", method=method, **fields)
        with contextlib.suppress(RunStopped):
            train(run, folder=args.out, checkpoint_seconds=0, stop=lambda steps=steps: next(steps, None) is None)
        assert (args.out / "checkpoint" / "state.pt").exists()


def write_annotations(path: Path, labels: list[tuple[str, str]]) -> None:
    """Write annotations by three people: one is right, one often wrong, and one abstains."""
    names = sorted({label for _, label in labels if label})
    rows = [(name, "ann", label) for name, label in labels]
    rows += [(name, "ben", names[k % len(names)]) for k, (name, _) in enumerate(labels)]
    rows += [(name, "cal", "") for name, _ in labels[::7]]
    write_csv(path, ["id", "annotator", "label"], rows)


def write_half_a_pack(folder: Path) -> None:
    """Write the first shard of a pack of the photos, as `pack` leaves it when it is stopped."""
    steps = iter(range(20))
    with contextlib.suppress(RunStopped):
        write_pack(
            list_images("photos", ReadOptions()), folder, shard_bytes=4000, stop=lambda: next(steps, None) is None
        )
    assert not (folder / "pack.json").exists()


def write_parquet(path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    columns = list(zip(*table_rows(60), strict=True))
    parquet.write_table(arrow.table(dict(zip(TABLE_COLUMNS, map(list, columns), strict=True))), path)


def quietly(words: str) -> None:
    """Run a command that must succeed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words.split())
    assert code == 0, err.getvalue()
