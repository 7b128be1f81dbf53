"""A run of a fraction of a second, through the front door: an .npz file, a folder, the loop."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from metalabelnet.train import RunFolder, recipe
from metalabelnet.train.settings import Run

CLASSES = ("a", 'b, "c"', "ü – 文")  # what a CSV file must bring through
BASIC = ("cross-entropy", "clean-only", "fine-tune", "metalabelnet")


def samples(rows: int, seed: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """A table of four columns; the class shifts two of them."""
    random = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    x = random.normal(size=(rows, 4)).astype(np.float32)
    x[:, 0] += 2 * np.cos(2 * np.pi * y / classes)
    x[:, 1] += 2 * np.sin(2 * np.pi * y / classes)
    return x, y


def write_npz(path: Path, **changes: Any) -> Path:
    """80 rows of which 18 become the clean set, and 30 to test; an array that is None is left out."""
    (x, y), (x_test, y_test) = samples(80, seed=0), samples(30, seed=1)
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test, "classes": np.array(CLASSES)}
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def tiny_run(path: Path, method: str = "metalabelnet", **changes: Any) -> Run:
    """Five epochs, two of them warm-up: four steps over the 48 labeled rows, five over all 62."""
    fields = {"method": method, "noise": "uniform:0.4", "clean": 18, "unlabeled": 14, "epochs": 5, "warmup": 2}
    fields |= {"batch_size": 12, "lr": 0.05, "lr_milestones": (4,), "device": "cpu"}
    return recipe(str(path), **(fields | changes))


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for the time it took."""
    timeless = [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(folder).metrics()]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.pop("seconds") > 0
    about = json.loads((folder / "run.json").read_text())
    about.pop("commit")  # changes while the checkout is worked on
    left = {file.relative_to(folder).as_posix() for file in folder.rglob("*")}
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "labels": (folder / "labels.csv").read_bytes(),
        "summary": summary,
        "metrics": timeless,
        "run": about,
        "files": left,
    }


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and its bytes: what must not change when a folder is refused."""
    files = [folder, *folder.rglob("*")]
    return {str(f): (f.stat().st_mtime_ns, f.read_bytes() if f.is_file() else b"") for f in files}
