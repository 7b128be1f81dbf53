"""A tiny data set in an .npz file, runs on it that take a fraction of a second, and the outputs of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metalabelnet.noise.spec import CIFAR10N_SETS
from metalabelnet.train import RunFolder, make_run
from metalabelnet.train.settings import Run

CLASSES = ("a", 'b, "c"', "ü – 文")  # names that need quotes and Unicode in a CSV file
BASIC_METHODS = ("cross-entropy", "clean-only", "fine-tune", "metalabelnet")


def table_samples(rows: int, seed: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of four columns, two of which depend on the class, and its labels."""
    random = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    x = random.normal(size=(rows, 4)).astype(np.float32)
    x[:, 0] += 2 * np.cos(2 * np.pi * y / classes)
    x[:, 1] += 2 * np.sin(2 * np.pi * y / classes)
    return x, y


def write_npz(path: Path, **changes: Any) -> Path:
    """Write 80 training rows (18 of them become the clean set) and 30 test rows; None leaves an array out."""
    (x, y), (x_test, y_test) = table_samples(80, seed=0), table_samples(30, seed=1)
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test, "classes": np.array(CLASSES)}
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def write_human_labels(folder: Path, true: torch.Tensor) -> None:
    """Write stand-ins of the files of CIFAR-10N and CIFAR-100N; the k-th label set has every k-th label wrong."""
    clean = true.clamp_min(0).numpy()
    keys = ("worse_label", "aggre_label", "random_label1", "random_label2", "random_label3")
    arrays = {"clean_label": clean}
    for k, _ in enumerate(CIFAR10N_SETS, 1):
        wrong = np.arange(len(clean)) % k == k - 1
        arrays[keys[k - 1]] = np.where(wrong, (clean + 1) % (clean.max() + 1), clean)
    torch.save(arrays, folder / "CIFAR-10_human.pt")
    torch.save({"clean_label": clean, "noisy_label": arrays["aggre_label"]}, folder / "CIFAR-100_human.pt")


def tiny_run(path: Path, method: str = "metalabelnet", **changes: Any) -> Run:
    """Return a run of five epochs, two of them warm-up: four steps over 48 labeled rows, five over all 62."""
    fields = {"method": method, "noise": "uniform:0.4", "clean": 18, "unlabeled": 14, "epochs": 5, "warmup": 2}
    fields |= {"batch_size": 12, "lr": 0.05, "lr_milestones": (4,), "device": "cpu"}
    return make_run(str(path), recipe="paper", **(fields | changes))


def run_outputs(folder: Path) -> dict[str, Any]:
    """Return everything a run writes, except the time it took."""
    metrics = [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(folder).metrics()]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.pop("seconds") > 0
    metadata = json.loads((folder / "run.json").read_text())
    metadata.pop("commit")  # may change between runs
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*")}
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "labels": (folder / "labels.csv").read_bytes(),
        "summary": summary,
        "metrics": metrics,
        "run": metadata,
        "files": files,
    }


def folder_contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return modification time and bytes of every file, to check that a folder did not change."""
    files = [folder, *folder.rglob("*")]
    return {str(f): (f.stat().st_mtime_ns, f.read_bytes() if f.is_file() else b"") for f in files}
