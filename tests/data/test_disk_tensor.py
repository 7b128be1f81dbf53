"""Samples on disk behave like samples in memory; the memory limit decides where they go."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from metalabelnet.data import ReadOptions, load
from metalabelnet.data.disk_tensor import (
    GIB,
    MAX_CHUNK_VALUES,
    DiskTensor,
    chunk_size,
    chunks,
    map_chunks,
    sample_memory_bytes,
)
from metalabelnet.data.rows import Rows
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.methods import METHODS
from metalabelnet.methods.metalabelnet import MetaLabelNet
from metalabelnet.train import prepare as prepare_module
from metalabelnet.train.prepare import _free_gpu_bytes
from small_runs import StepRunner, small_problem, small_run


def on_disk(x: torch.Tensor, folder: Path) -> DiskTensor:
    stored = DiskTensor.empty(len(x), tuple(x.shape[1:]), x.dtype, folder)
    for start in range(0, len(x), 7):
        stored[start] = x[start : start + 7]
    return stored


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_rows_are_read_as_they_were_written(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = (torch.rand(50, 3, 4, 5) * 255).to(dtype)
    stored = on_disk(x, tmp_path)
    assert list(tmp_path.iterdir()) == []  # the file is anonymous
    assert (len(stored), stored.shape, stored.ndim, stored.dtype) == (50, x.shape, 4, dtype)
    assert stored.nbytes == x.nbytes
    which = torch.tensor([3, 3, 49, 0])
    assert torch.equal(stored[which], x[which])
    assert torch.equal(stored[5:9], x[5:9])
    assert torch.equal(stored[x[:, 0, 0, 0] > 100], x[x[:, 0, 0, 0] > 100])
    fewer = stored.take(torch.arange(40, 10, -2)).take(torch.tensor([1, 4]))
    assert torch.equal(fewer[:], x[[38, 32]])
    monkeypatch.setattr("metalabelnet.data.disk_tensor.MAX_CHUNK_SAMPLES", 8)
    assert torch.equal(torch.cat(list(chunks(stored))), x)


def test_chunks_of_large_samples_are_small() -> None:
    sizes = [len(part) for part in chunks(torch.zeros(5, MAX_CHUNK_VALUES // 2, dtype=torch.uint8))]
    assert sizes == [2, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_identically_from_disk(method: str, tmp_path: Path) -> None:
    problem = small_problem(unlabeled=6)
    run = small_run(method, epochs=3, warmup=1)

    def moved(rows: Rows) -> Rows:
        return replace(rows, x=on_disk(rows.x, tmp_path))  # type: ignore[arg-type]

    disk_problem = replace(problem, train=moved(problem.train), clean=moved(problem.clean))
    from_memory, from_disk = StepRunner(run, problem).advance(), StepRunner(run, disk_problem).advance()
    assert from_memory.losses == from_disk.losses
    for name, tensor in from_memory.method.model_state_dict().items():
        assert torch.equal(tensor, from_disk.method.model_state_dict()[name])


def test_features_are_cached_only_if_samples_are_in_memory(tmp_path: Path) -> None:
    problem, run = small_problem(), small_run("metalabelnet", epochs=3, warmup=1)
    disk_problem = replace(problem, train=replace(problem.train, x=on_disk(problem.train.x, tmp_path)))  # type: ignore[arg-type]
    from_memory, from_disk = StepRunner(run, problem).advance().method, StepRunner(run, disk_problem).advance().method
    assert isinstance(from_memory, MetaLabelNet)
    assert isinstance(from_disk, MetaLabelNet)
    assert torch.equal(from_memory.soft_labels(), from_disk.soft_labels())  # type: ignore[arg-type]
    assert from_memory.features is not None
    assert from_disk.features is None


PEAK_MEMORY = """
import resource, sys
from pathlib import Path
from metalabelnet.cli import main
peaks = []
for name in ("few", "many"):
    code = main(["train", name, "--clean", f"{name}.csv", "--image-size", "256", "--memory-limit", "0.01",
                 "--net", "pooled:make", "--method", "metalabelnet", "--epochs", "2", "--warmup", "1",
                 "--batch-size", "16", "--device", "cpu", "--recipe", sys.argv[1], "--out", f"run-{name}"])
    code = code or main(["predict", f"run-{name}", name, "-o", f"{name}-out.csv", "--net", "pooled:make"])
    assert code == 0
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""


@pytest.mark.parametrize("recipe", ["paper", pytest.param("modern", marks=pytest.mark.slow)])
def test_memory_use_is_constant_when_samples_are_on_disk(recipe: str, tmp_path: Path) -> None:
    """With five times the images, 48 MiB more when decoded, the peak grows by less than a tenth of that."""
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
    program = [sys.executable, "-c", PEAK_MEMORY, recipe]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "60.0 MiB of samples exceed the memory limit: they are read from disk during training" in done.stderr
    assert int(done.stdout.splitlines()[-1]) < 5_000  # KiB


def test_memory_limit_is_as_given_or_half_of_the_free_memory() -> None:
    assert sample_memory_bytes(1.5) == 1.5 * GIB
    assert sample_memory_bytes(1.5, gpu_free_bytes=1000) == 1.5 * GIB
    assert sample_memory_bytes(None, gpu_free_bytes=1000) == 500
    assert 0 < sample_memory_bytes(None) == pytest.approx(sample_memory_bytes(None, gpu_free_bytes=1 << 60), rel=0.5)


def test_samples_larger_than_gpu_memory_stay_on_disk(tmp_path: Path) -> None:
    rows = "".join(f"{k}.5,{'ab'[k % 2]},{int(k < 8)}\n" for k in range(40))
    (tmp_path / "t.csv").write_text(f"v,label,ok\n{rows}")
    for free, kind in ((None, torch.Tensor), (40 * 4 * 2, torch.Tensor), (40 * 4 * 2 - 1, DiskTensor)):
        options = ReadOptions(clean_column="ok", gpu_free_bytes=free)
        assert isinstance(load(str(tmp_path / "t.csv"), tmp_path, read_options=options).train.x, kind)


def test_free_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module.torch.cuda, "mem_get_info", lambda device: (device.index, 99))
    assert _free_gpu_bytes(torch.device("cuda:7")) == 7
    assert _free_gpu_bytes(torch.device("cpu")) is None


def test_results_of_chunks_are_those_of_all_samples() -> None:
    x = torch.randn(2500, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(map_chunks(lambda part: 2 * part[:, :3], x), 2 * x[:, :3])
    assert torch.equal(map_chunks(lambda part: part.sum(1).long(), x), x.sum(1).long())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not report the memory of a process")
def test_chunks_of_wide_sparse_samples_use_the_same_memory() -> None:
    """Small results between large chunks would keep the memory of every chunk from being used again."""
    x = SparseTensor(sparse.random(2400, 180_000, density=1e-3, format="csr", dtype=np.float32, random_state=0))
    assert chunk_size((180_000,)) < 30

    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    layer, peaks = torch.nn.Linear(180_000, 4).double(), []

    @torch.no_grad()
    def logits(part: torch.Tensor) -> torch.Tensor:
        peaks.append(memory())
        return layer(part.double())

    map_chunks(logits, x)
    assert peaks[-1] - peaks[len(peaks) // 4] < 500 << 20  # chunks of 32 MB: 2 GB follow
