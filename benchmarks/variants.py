"""Train variants of metalabelnet-plus and baselines in cells of its table, within a time budget.

    python benchmarks/variants.py --data-dir DATA --seconds 540 --results variants.jsonl
    python benchmarks/variants.py --list

The runs use the cells of `metalabelnet reproduce beyond` with a given number of epochs (`--epochs`), up to
`--concurrent` at a time on one GPU, grouped by variant because these share compiled code. Each finished run writes a
line; runs with a line are not repeated, so the same command resumes after the time budget. The metrics of each epoch
are saved in a folder named like the results file. Several commands with different `--variants` may write to one file.

    held_out  accuracy on the validation samples in percent: use it to choose a variant
    train     accuracy on the true labels of the training samples
    test      accuracy on the test samples: do not use it to choose a variant, except with `--development-split`

`--development-split DIR` writes the training images to DIR with the last 10,000 as test images and uses these: choosing
by `test` then involves no real test image.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.data import load
from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.errors import RunStopped
from metalabelnet.launch.concurrent_runs import train_concurrently
from metalabelnet.launch.process_pool import Job
from metalabelnet.methods import METHODS
from metalabelnet.noise.cifar_n import CLEAN_LABELS, FILES, read_human_labels
from metalabelnet.reproduction import beyond
from metalabelnet.reproduction.experiment import RunSpec
from metalabelnet.reproduction.resources import Resources, check_noise_probs

if TYPE_CHECKING:
    import numpy.typing as npt

    from metalabelnet.train.result import Progress

PLUS = "metalabelnet-plus"
CELLS = ("cifar10-5000/uniform:0.8", "cifar10-1000/worst", "cifar10-1000/uniform:0.4", "cifar10-5000/authors:0.4")
DEVELOPMENT_IMAGES = 10_000  # training images used as test images

# In order of priority: the default, the baselines, then one change each.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plus": (PLUS, {}),
    **{name: (PLUS, settings) for name, settings in beyond.ABLATIONS.items() if settings},
    "likeliest class": (PLUS, {"sharpening": 50.0}),
    "clean weight 2": (PLUS, {"clean_weight": 2.0}),
    "warm-up share 0.2": (PLUS, {"warmup_share": 0.2}),
    **{name: (name, {}) for name in ("clean-only", "fine-tune", "fixmatch", "glc", "sce", "co-teaching")},
}


def run_spec(variant: str, cell: str, seed: int, epochs: int, **changes: Any) -> RunSpec:
    """The run of a variant in a cell."""
    method, settings = VARIANTS[variant]
    schedule = {"epochs": epochs, "snapshots": 0}
    fields = beyond.make_fields(method, cell, seed, settings=settings, **{**schedule, **changes})
    return RunSpec(experiment="beyond", method=method, cell=cell, point="", seed=seed, fields=fields)


def main() -> None:
    """Train the variants that fit into the time budget."""
    args = parse_arguments()
    if args.list:
        for name, (method, settings) in VARIANTS.items():
            print(f"{name:22s} {method} {settings or ''}")
        return
    deadline = time.monotonic() + args.seconds
    work = args.out or Path(tempfile.mkdtemp(prefix="variants-"))
    probs = None if args.noise_probs is None else check_noise_probs(args.noise_probs)
    data_dir = args.data_dir
    if args.development_split is not None:
        names = {cell_data(cell) for cell in args.cells.split(",")}
        data_dir, probs = write_development_split(args.data_dir, probs, args.development_split, names)
    resources = Resources(data_dir=data_dir, noise_probs=probs, device=args.device, dtype=args.dtype)
    runs = plan_runs(args, resources, work)
    jobs = [job for _, job in runs]
    print(f"{len(jobs)} runs to train", flush=True)

    def on_progress(number: int, progress: Progress | None) -> None:
        if progress is not None:
            return
        folder = jobs[number].folder
        if (folder / "summary.json").exists():
            metadata = json.loads((folder / "run.json").read_text())
            origin = {"device": metadata["versions"]["device"], "commit": args.commit or metadata["commit"]}
            write_line(args.results, runs[number][0], json.loads((folder / "summary.json").read_text()), origin)
        metrics_folder = args.results.with_suffix("")
        if (folder / "metrics.jsonl").exists():
            metrics_folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "metrics.jsonl", metrics_folder / f"{folder.name}.jsonl")
        shutil.rmtree(folder)

    try:
        train_concurrently(
            jobs,
            concurrent=args.concurrent,
            resume=args.out is not None,
            on_progress=on_progress,
            stop=lambda: time.monotonic() > deadline,
        )
    except RunStopped:
        print("time budget used up; progress saved; resume with the same command", flush=True)


def cell_data(cell: str) -> str:
    """The data set of a cell."""
    return str(beyond.make_fields(PLUS, cell, 0)["data"])


def write_development_split(
    data_dir: Path | None, probs: Path | None, folder: Path, names: set[str]
) -> tuple[Path, Path | None]:
    """Write the training images to a folder, the last ones as test images, and cut the noise files accordingly."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names & {"cifar10", "fashion-mnist"}:
        train = load(name, data_dir).train
        x, y = train.x.numpy(), train.true.numpy()
        parts = {
            "train": (x[:-DEVELOPMENT_IMAGES], y[:-DEVELOPMENT_IMAGES]),
            "test": (x[-DEVELOPMENT_IMAGES:], y[-DEVELOPMENT_IMAGES:]),
        }
        if name == "cifar10":
            arrays = {f"{what}_{part}": a for part, xy in parts.items() for what, a in zip("xy", xy, strict=True)}
            np.savez(
                folder / "cifar10.npz", **{k: a.transpose(0, 2, 3, 1) if a.ndim == 4 else a for k, a in arrays.items()}
            )
        else:
            (folder / name).mkdir(exist_ok=True)
            for part, (images, labels) in zip(("train", "t10k"), parts.values(), strict=True):
                write_idx(folder / name / f"{part}-images-idx3-ubyte", images[:, 0])
                write_idx(folder / name / f"{part}-labels-idx1-ubyte", labels.astype(np.uint8))
    if probs is not None:
        np.save(folder / "probabilities.npy", np.load(probs)[:-DEVELOPMENT_IMAGES])
        probs = folder / "probabilities.npy"
    human_labels = data_folder(data_dir) / FILES["cifar10n"].name
    if human_labels.is_file():
        keys = (CLEAN_LABELS, *FILES["cifar10n"].keys.values())
        arrays = {key: read_human_labels(human_labels, FILES["cifar10n"], key)[key] for key in keys}
        torch.save({key: a[:-DEVELOPMENT_IMAGES] for key, a in arrays.items()}, folder / human_labels.name)
    return folder, probs


def write_idx(file: Path, array: npt.NDArray[np.uint8]) -> None:
    """Write an array in the IDX format of MNIST."""
    shape = b"".join(length.to_bytes(4, "big") for length in array.shape)
    file.write_bytes(bytes((0, 0, 8, array.ndim)) + shape + array.tobytes())


def write_line(results: Path, variant: dict[str, Any], summary: dict[str, Any], origin: dict[str, Any]) -> None:
    """Append the line of a finished run with its device and commit."""
    line = variant | {
        "method": summary["method"],
        "settings": VARIANTS[variant["variant"]][1],
        "held_out": summary["clean_accuracy"],
        "train": summary["label_accuracy"],
        "test": summary["test_accuracy"],
        "test_last": summary["test_accuracy_last"],
        "selected_epoch": summary["selected_epoch"],
        "seconds": summary["seconds"],
        **origin,
    }
    text = json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()})
    print(text, flush=True)
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def plan_runs(args: argparse.Namespace, resources: Resources, work: Path) -> list[tuple[dict[str, Any], Job]]:
    """The selected runs without a line, in order."""
    done = {run_key(json.loads(line)) for line in read_lines(args.results)}
    runs = []
    overrides = {name: value for name in ("limit", "net") if (value := getattr(args, name))}
    for variant, seed, cell in product(args.variants.split("/"), args.seeds.split(","), args.cells.split(",")):
        fields = {"variant": variant, "cell": cell, "seed": int(seed), "epochs": args.epochs, **overrides}
        spec = run_spec(**fields)
        if option := resources.missing(spec):
            print(f"skipped: {variant} {cell} needs {option}", flush=True)
        elif run_key(fields) not in done:
            done.add(run_key(fields))
            name = "-".join(map(str, fields.values()))
            folder = work / re.sub(r"[^a-z0-9.]+", "-", name)
            runs.append((fields, Job(run=resources.run(spec), folder=folder)))
    return runs


def run_key(fields: dict[str, Any]) -> tuple[Any, ...]:
    """The identity of a run; without the noise if the method does not use given labels."""
    method, cell = VARIANTS[fields["variant"]][0], fields["cell"]
    cell = cell if METHODS[method].traits.reads_given else cell.partition("/")[0]
    return fields["variant"], cell, fields["seed"], fields["epochs"], fields.get("limit"), fields.get("net")


def read_lines(file: Path) -> list[str]:
    """The lines written so far."""
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the variants")
    parser.add_argument("--variants", default="/".join(VARIANTS), help="names separated by slashes")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--seeds", default="100", help="the tables use seeds 0 to 4; use others to choose a variant")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--concurrent", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=540.0, help="time budget")
    parser.add_argument("--results", type=Path, default=Path("variants.jsonl"))
    parser.add_argument("--out", type=Path, help="folder of the run folders, for resuming (default: temporary)")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--development-split", type=Path, metavar="DIR", help="train and test on training images only")
    parser.add_argument("--noise-probs", type=Path)
    parser.add_argument("--commit", metavar="ID", help="the commit to store if this is not a git checkout")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype")
    parser.add_argument("--limit", type=int, help="number of training samples, for a quick test")
    parser.add_argument("--net", help="another network, for a quick test")
    args = parser.parse_args()
    for name in args.variants.split("/"):
        if name not in VARIANTS:
            parser.error(f"unknown variant {name!r}: choose from those of --list")
    return args


if __name__ == "__main__":
    main()
