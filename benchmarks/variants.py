"""Variants of metalabelnet-plus in cells of its table, beside what a person would try first, within a given time.

    python benchmarks/variants.py --data-dir DATA --seconds 540 --results variants.jsonl
    python benchmarks/variants.py --list

Runs go through the cells of `metalabelnet reproduce beyond` with a shorter schedule (`--epochs`; drops of the rate and
warm-up in proportion), up to `--concurrent` at a time on one card, those of one variant side by side because they share
what is compiled. A line is written for each run when it has ended; a run that has its line already is not made again,
so that the same command goes on where the time was up. Its epochs are kept beside the file, in a folder of its name.
Two commands with other `--variants` may write to one file.

    held_out  accuracy on the clean samples held out to select the epoch, in per cent: what to choose a variant by
    train     accuracy on the training samples, by their true labels, which nothing was chosen by either
    test      accuracy on the test samples: not to be chosen by, unless `--apart` makes them of training images

`--apart DIR` writes the data's training images there, the last 10,000 in place of the test images, and takes them from
there: what is chosen by `test` is then chosen without a test image.
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

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.data import load
from metalabelnet.errors import RunStopped
from metalabelnet.launch.concurrent_runs import train_concurrently
from metalabelnet.launch.process_pool import Job
from metalabelnet.methods import METHODS
from metalabelnet.reproduction import beyond
from metalabelnet.reproduction.experiments import RunSpec
from metalabelnet.reproduction.resources import Resources, check_noise_probs, write_human_labels

if TYPE_CHECKING:
    import numpy.typing as npt

    from metalabelnet.train.loop import Progress

PLUS = "metalabelnet-plus"
CELLS = ("cifar10-5000/uniform:0.8", "cifar10-1000/worst", "cifar10-1000/uniform:0.4", "cifar10-5000/authors:0.4")
APART = 10_000  # training images that stand in for the test images

# What is asked first comes first: the whole, what it is measured by, one thing changed.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plus": (PLUS, {}),
    "clean-only": ("clean-only", {}),
    "fine-tune": ("fine-tune", {}),
    "gce": ("gce", {}),
    "co-teaching": ("co-teaching", {}),
    **{name: (PLUS, settings) for name, settings in beyond.ABLATIONS.items() if settings},
    "handed over in a half": (PLUS, {"handover": 0.5}),
    "handed over to the end": (PLUS, {"handover": 1.0}),
    "neither": (PLUS, {"given": 0.0, "step3": "paper"}),
    "half the rate": (PLUS, {"lr_scale": 2.0}),
    "the schedule's rate": (PLUS, {"lr_scale": 1.0}),
    "twice the rate": (PLUS, {"lr_scale": 8.0}),
    "prior 1": (PLUS, {"prior": 1.0}),
    "prior 2": (PLUS, {"prior": 2.0}),
    "half given label": (PLUS, {"given": 0.5}),
    "the given label once": (PLUS, {"given": 1.0}),
    "thrice the given label": (PLUS, {"given": 3.0}),
    "twice the strong view": (PLUS, {"consistency": 2.0}),
    "four times the strong view": (PLUS, {"consistency": 4.0}),
    "twice the strong view, thrice the given label": (PLUS, {"consistency": 2.0, "given": 3.0}),
    "0.7 of warm-up": (PLUS, {"warmup_share": 0.7}),
    "three times β": (PLUS, {"beta": 0.03}),
    "a tenth of β": (PLUS, {"beta": 0.001}),
    "short look-ahead": (PLUS, {"inner_step": 0.1}),
    "own statistics": (PLUS, {"clean_updates_statistics": False}),
}


def entry(variant: str, cell: str, seed: int, epochs: int, **changes: Any) -> RunSpec:
    """The run of a variant: the cell's, with everything that counts epochs in proportion."""
    method, settings = VARIANTS[variant]
    short = {
        "epochs": epochs,
        "warmup": max(1, round(epochs * 44 / 120)),
        "lr_milestones": (epochs // 3, 2 * epochs // 3),
        "snapshots": 0,
    }
    fields = beyond.make_fields(method, cell, seed, settings=settings, **{**short, **changes})
    return RunSpec(what="beyond", method=method, cell=cell, point="", seed=seed, fields=fields)


def main() -> None:
    """Run what there is time for."""
    args = arguments()
    if args.list:
        for name, (method, settings) in VARIANTS.items():
            print(f"{name:22s} {method} {settings or ''}")
        return
    until = time.monotonic() + args.seconds
    work = args.out or Path(tempfile.mkdtemp(prefix="variants-"))
    human = None if args.human_labels is None else write_human_labels(args.human_labels, work / "noise")
    probs = None if args.noise_probs is None else check_noise_probs(args.noise_probs)
    data_dir = args.data_dir
    if args.apart is not None:
        names = {cell_data(cell) for cell in args.cells.split(",")}
        data_dir, probs = set_apart(args.data_dir, probs, human, args.apart, names)
    resources = Resources(data_dir=data_dir, noise_probs=probs, human_labels=human, device=args.device, dtype=args.dtype)
    todo = plan(args, resources, work)
    jobs = [job for _, job in todo]
    print(f"{len(jobs)} runs to make", flush=True)

    def tell(number: int, progress: Progress | None) -> None:
        if progress is not None:
            return
        folder = jobs[number].folder
        if (folder / "summary.json").exists():
            made = json.loads((folder / "run.json").read_text())
            of = {"device": made["versions"]["device"], "commit": args.commit or made["commit"]}
            write(args.results, todo[number][0], json.loads((folder / "summary.json").read_text()), of)
        kept = args.results.with_suffix("")
        if (folder / "metrics.jsonl").exists():
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "metrics.jsonl", kept / f"{folder.name}.jsonl")
        shutil.rmtree(folder)

    try:
        train_concurrently(
            jobs,
            concurrent=args.concurrent,
            resume=args.out is not None,
            on_progress=tell,
            stop=lambda: time.monotonic() > until,
        )
    except RunStopped:
        print("the time is up: the same command goes on", flush=True)


def cell_data(cell: str) -> str:
    """The data of a cell."""
    return str(beyond.make_fields(PLUS, cell, 0)["data"])


def set_apart(
    data_dir: Path | None, probs: Path | None, human: Path | None, folder: Path, names: set[str]
) -> tuple[Path, Path | None]:
    """Write the training images to a folder, the last of them as the test images; and cut the noise's rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names & {"cifar10", "fashion-mnist"}:
        train = load(name, data_dir).train
        x, y = train.x.numpy(), train.true.numpy()
        parts = {"train": (x[:-APART], y[:-APART]), "test": (x[-APART:], y[-APART:])}
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
        np.save(folder / "probabilities.npy", np.load(probs)[:-APART])
        probs = folder / "probabilities.npy"
    for file in [] if human is None else human.glob("*.npy"):
        np.save(file, np.load(file)[:-APART])
    return folder, probs


def write_idx(file: Path, array: npt.NDArray[np.uint8]) -> None:
    """Bytes as MNIST has them."""
    shape = b"".join(length.to_bytes(4, "big") for length in array.shape)
    file.write_bytes(bytes((0, 0, 8, array.ndim)) + shape + array.tobytes())


def write(results: Path, about: dict[str, Any], summary: dict[str, Any], of: dict[str, Any]) -> None:
    """Add the line of a run that has ended, and what it is of: device and commit."""
    line = about | {
        "method": summary["method"],
        "settings": VARIANTS[about["variant"]][1],
        "held_out": summary["clean_accuracy"],
        "train": summary["label_accuracy"],
        "test": summary["test_accuracy"],
        "test_last": summary["test_accuracy_last"],
        "selected_epoch": summary["selected_epoch"],
        "seconds": summary["seconds"],
        **of,
    }
    text = json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()})
    print(text, flush=True)
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def plan(args: argparse.Namespace, resources: Resources, work: Path) -> list[tuple[dict[str, Any], Job]]:
    """The runs that are asked for and not done, in their order."""
    done = {key(json.loads(line)) for line in lines(args.results)}
    todo = []
    smaller = {name: value for name in ("limit", "net") if (value := getattr(args, name))}
    for variant, seed, cell in product(args.variants.split("/"), args.seeds.split(","), args.cells.split(",")):
        about = {"variant": variant, "cell": cell, "seed": int(seed), "epochs": args.epochs, **smaller}
        one = entry(**about)
        if lack := resources.missing(one):
            print(f"left out: {variant} {cell} needs {lack}", flush=True)
        elif key(about) not in done:
            done.add(key(about))
            name = "-".join(map(str, about.values()))
            folder = work / re.sub(r"[^a-z0-9.]+", "-", name)
            todo.append((about, Job(run=resources.run(one), folder=folder)))
    return todo


def key(about: dict[str, Any]) -> tuple[Any, ...]:
    """What tells two runs apart: not the noise, where the method does not read the given labels."""
    method, cell = VARIANTS[about["variant"]][0], about["cell"]
    cell = cell if METHODS[method].traits.reads_given else cell.partition("/")[0]
    return about["variant"], cell, about["seed"], about["epochs"], about.get("limit"), about.get("net")


def lines(file: Path) -> list[str]:
    """What was written so far."""
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the variants")
    parser.add_argument("--variants", default="/".join(VARIANTS), help="names, separated by slashes")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument(
        "--seeds", default="100", help="the tables have 0 to 4: what is chosen here is chosen elsewhere"
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--concurrent", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=540.0, help="stop after so long")
    parser.add_argument("--results", type=Path, default=Path("variants.jsonl"))
    parser.add_argument("--out", type=Path, help="folder of what is under way, to go on from; without: a temporary one")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--apart", type=Path, metavar="DIR", help="train and test on training images alone")
    parser.add_argument("--noise-probs", type=Path)
    parser.add_argument("--human-labels", type=Path)
    parser.add_argument("--commit", metavar="ID", help="the commit to write down where this is no checkout")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype")
    parser.add_argument("--limit", type=int, default=0, help="training samples to use, to try the script itself")
    parser.add_argument("--net", help="likewise, a smaller network")
    args = parser.parse_args()
    for name in args.variants.split("/"):
        if name not in VARIANTS:
            parser.error(f"unknown variant {name!r}: see --list")
    return args


if __name__ == "__main__":
    main()
