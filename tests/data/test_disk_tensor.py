"""Samples on disk are to everybody what samples in memory are."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metalabelnet.data.disk_tensor import MOST_VALUES, DiskTensor, chunks
from metalabelnet.data.rows import Rows
from metalabelnet.methods import METHODS
from metalabelnet.methods.label_net_method import Generated
from small import Walk, small_problem, small_run


def on_disk(x: torch.Tensor, folder: Path) -> DiskTensor:
    stored = DiskTensor.empty(len(x), tuple(x.shape[1:]), x.dtype, folder)
    for start in range(0, len(x), 7):
        stored[start] = x[start : start + 7]
    return stored


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_rows_come_back_as_they_were_written(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = (torch.rand(50, 3, 4, 5) * 255).to(dtype)
    stored = on_disk(x, tmp_path)
    assert list(tmp_path.iterdir()) == []  # nobody has to clean up
    assert (len(stored), stored.shape, stored.ndim, stored.dtype) == (50, x.shape, 4, dtype)
    assert stored.nbytes == x.nbytes
    which = torch.tensor([3, 3, 49, 0])
    assert torch.equal(stored[which], x[which])
    assert torch.equal(stored[5:9], x[5:9])
    assert torch.equal(stored[x[:, 0, 0, 0] > 100], x[x[:, 0, 0, 0] > 100])
    fewer = stored.take(torch.arange(40, 10, -2)).take(torch.tensor([1, 4]))
    assert torch.equal(fewer[:], x[[38, 32]])
    monkeypatch.setattr("metalabelnet.data.disk_tensor.CHUNK", 8)
    assert torch.equal(torch.cat(list(chunks(stored))), x)


def test_chunks_of_large_samples_are_small() -> None:
    sizes = [len(part) for part in chunks(torch.zeros(5, MOST_VALUES // 2, dtype=torch.uint8))]
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_the_same_from_disk(method: str, tmp_path: Path) -> None:
    problem = small_problem(unlabeled=6)
    run = small_run(method, epochs=3, warmup=1)

    def moved(rows: Rows) -> Rows:
        return replace(rows, x=on_disk(rows.x, tmp_path))  # type: ignore[arg-type]

    elsewhere = replace(problem, train=moved(problem.train), clean=moved(problem.clean))
    here, there = Walk(run, problem).go(), Walk(run, elsewhere).go()
    assert here.losses == there.losses
    for name, tensor in here.method.model().items():
        assert torch.equal(tensor, there.method.model()[name])


OFF = {"features": "warm-up", "average": 0.0, "prior": 0.0, "given": 0.0, "handover": 0.0}


@pytest.mark.parametrize(("method", "settings"), [("metalabelnet", {}), ("metalabelnet-plus", OFF)])
def test_fixed_features_are_kept_only_where_samples_are(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    problem, run = small_problem(), small_run(method, epochs=3, warmup=1, settings=settings)
    elsewhere = replace(problem, train=replace(problem.train, x=on_disk(problem.train.x, tmp_path)))  # type: ignore[arg-type]
    here, there = Walk(run, problem).go().method, Walk(run, elsewhere).go().method
    assert isinstance(here, Generated)
    assert isinstance(there, Generated)
    assert torch.equal(here.soft_labels(), there.soft_labels())  # type: ignore[arg-type]
    assert here.features is not None
    assert there.features is None


FLAT = """
import resource, sys
from pathlib import Path
from metalabelnet.cli import main
peaks = []
for name in ("few", "many"):
    code = main(["train", name, "--clean", f"{name}.csv", "--image-size", "256", "--memory-limit", "0.01",
                 "--net", "pooled:make", "--method", "metalabelnet", "--epochs", "2", "--warmup", "1",
                 "--batch-size", "16", "--device", "cpu", "--out", f"run-{name}"])
    code = code or main(["predict", f"run-{name}", name, "-o", f"{name}-out.csv", "--net", "pooled:make"])
    assert code == 0
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""


def test_memory_stays_flat_when_samples_are_streamed(tmp_path: Path) -> None:
    """Five times the images, 48 MiB more of them decoded, and the peak grows by less than a tenth of that."""
    from PIL import Image

    for name, count in (("few", 64), ("many", 320)):
        for k in range(count):
            file = tmp_path / name / "ab"[k % 2] / f"{k}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 2), (200 * (k % 2), k % 256, k // 256)).save(file, compress_level=0)
        rows = "".join(f"{'ab'[k % 2]}/{k}.png,{'ab'[k % 2]}\n" for k in range(10))
        (tmp_path / f"{name}.csv").write_text(f"id,label\n{rows}")
    (tmp_path / "pooled.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n"
        "    return nn.Sequential(nn.AvgPool2d(64), nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, classes))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "METALABELNET_DATA": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", FLAT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "60.0 MiB of samples are more than memory should hold: read from disk as needed" in done.stderr
    assert int(done.stdout.splitlines()[-1]) < 5_000  # KiB
