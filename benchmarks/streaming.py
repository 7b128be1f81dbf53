"""Training from packed photos: how fast they are packed, read and decoded, and what that adds to a training step.

    python benchmarks/streaming.py --images 100000 --folder /tmp/photos
    python benchmarks/streaming.py --images 2000 --folder /tmp/photos --net small-cnn --size 64 --device cpu --steps 20
    python benchmarks/streaming.py --images 2000 --folder /tmp/photos --only reading     litdata too, if installed

Writes synthetic JPEG files of the size of a photo, packs them, and measures

    packing     images per second, with every image decoded once
    reading     stored images per second of CPU time in random order: by offset with and without the check of the
                digest, through a memory map, and by litdata (its own file format, one process)
    decoding    images per second with one worker process and with all of them, and per second of CPU time
    steps       milliseconds of a training step (metalabelnet, phase 2) with data on the device and from the pack, and
                the memory of the process and its workers (proportional set size)

Needs Pillow, and torchvision for ResNet-50.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import mmap
import multiprocessing
import os
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.data import ReadOptions, load
from metalabelnet.data.packed.packed_tensor import Pack, PackedTensor
from metalabelnet.data.packed.source import list_images
from metalabelnet.data.packed.writer import write_pack
from metalabelnet.data.problem import Problem
from metalabelnet.engine import tf32_and_cudnn_benchmark
from metalabelnet.input_files.decode_worker import read_stored
from metalabelnet.train.settings import make_run
from metalabelnet.train.train_run import training_steps
from metalabelnet.train.versions import commit, versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.data.rows import Rows

CLASSES = 14
WIDTH, HEIGHT, QUALITY = 640, 480, 85  # of a photo; its file has about 90 kB
ROWS_ON_DEVICE = 8192
WARMUP_STEPS = 25  # before steps are timed: compilation, and the first batches
MIN_SECONDS = 3.0  # of a measurement of reading or decoding


def write_photo(job: tuple[Path, int]) -> None:
    """Write a photo-like image: a smooth scene with fine grain."""
    from PIL import Image

    folder, number = job
    file = folder / f"class {number % CLASSES:02d}" / f"{number:07d}.jpg"
    if file.exists():
        return
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    scene = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.int16)
    grain = random.integers(-14, 15, (HEIGHT, WIDTH, 1), dtype=np.int16)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Image.fromarray((scene + grain).clip(0, 255).astype(np.uint8)).save(content, "JPEG", quality=QUALITY)
    file.write_bytes(content.getvalue())


def make_pack(args: argparse.Namespace) -> dict[str, Any]:
    """Write the photos and the pack, unless they are there, and return how long packing took."""
    photos, folder = args.folder / "photos", args.folder / "packed"
    jobs = [(photos, number) for number in range(args.images)]
    with multiprocessing.get_context("fork").Pool(args.workers) as pool:
        list(pool.imap_unordered(write_photo, jobs, chunksize=64))
    names = [f"class {k % CLASSES:02d}/{k:07d}.jpg" for k in range(0, args.images, max(4, args.images // 2000))]
    clean = args.folder / "clean.csv"
    clean.write_text("id,label\n" + "".join(f"{name},{name[:8]}\n" for name in names))
    source = list_images(str(photos), ReadOptions(clean_file=str(clean), image_size=args.size))
    start = time.monotonic()
    finished = (folder / "pack.json").exists()
    index = write_pack(source, folder)
    seconds = time.monotonic() - start
    size = sum(shard["bytes"] for shard in index.shards)
    rate = None if finished else args.images / seconds
    return {"images": args.images, "bytes_per_image": size / args.images, "packing_per_second": rate}


def per_second(read: Callable[[int], Any], order: list[int]) -> float:
    """Return how often the function can be called in a second of CPU time, on random images."""
    start, done = time.process_time(), 0
    while (seconds := time.process_time() - start) < MIN_SECONDS:
        read(order[done % len(order)])
        done += 1
    return done / seconds


def measure_reading(args: argparse.Namespace) -> dict[str, float]:
    """Return stored images per second of CPU time."""
    pack = Pack(args.folder / "packed", 0)
    order = np.random.default_rng(0).permutation(len(pack.ids)).tolist()

    def by_offset(position: int) -> bytes:
        image = pack.stored(position)
        return read_stored(pack.descriptor(position), image.offset, image.size)

    def checked(position: int) -> bool:
        return hashlib.sha256(by_offset(position)).hexdigest() == pack.stored(position).digest

    maps: dict[str, mmap.mmap] = {}

    def mapped(position: int) -> bytes:
        image = pack.stored(position)
        if image.file not in maps:
            with Path(image.file).open("rb") as file:
                maps[image.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return maps[image.file][image.offset : image.offset + image.size]

    result = {"by offset": per_second(by_offset, order), "by offset, digest checked": per_second(checked, order)}
    result["memory map"] = per_second(mapped, order)
    try:
        import litdata
    except ImportError:
        return result
    folder = args.folder / "litdata"
    if not (folder / "index.json").exists():
        files = [str(file) for file in sorted((args.folder / "photos").rglob("*.jpg"))]
        litdata.optimize(fn=read_file, inputs=files, output_dir=str(folder), chunk_bytes="256MB", num_workers=1)
    samples = litdata.StreamingDataset(str(folder))
    return result | {"litdata": per_second(lambda position: samples[position % len(samples)], order)}


def read_file(path: str) -> bytes:
    """Return the content of a file: what litdata stores for a sample."""
    return Path(path).read_bytes()


def measure_decoding(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return decoded images per second, of real time and of the workers' CPU time, by number of worker processes."""
    result = {}
    for workers in dict.fromkeys((1, args.workers)):
        x = load(str(args.folder / "packed"), read_options=ReadOptions(workers=workers, image_size=args.size)).train.x
        assert isinstance(x, PackedTensor)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        x.read(order[:8])  # starts the processes
        before, start, done, batch = _cpu_seconds_of_children(), time.monotonic(), 0, 64 * workers
        while (seconds := time.monotonic() - start) < 2 * MIN_SECONDS:
            first = done % max(1, len(order) - batch)
            done += len(x.read(order[first : first + batch]))
        cpu = _cpu_seconds_of_children() - before
        result[f"{workers} workers"] = {"per_second": done / seconds, "per_cpu_second": done / cpu}
    return result


def _children() -> list[Path]:
    """Return the folders of the child processes in /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(entry)
        except OSError:  # it has ended
            continue
    return found


def _cpu_seconds_of_children() -> float:
    fields = [(entry / "stat").read_text().rpartition(")")[2].split() for entry in _children()]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def measure_steps(args: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of a step and the memory, with data on the device and from the pack."""
    folder = str(args.folder / "packed")
    fields = {"net": args.net, "batch_size": args.batch, "epochs": 1, "warmup": 0, "lr": 1e-3, "augment": "flip"}
    fields |= {"device": args.device, "dtype": args.dtype, "image_size": args.size, "workers": args.workers}
    run = make_run(folder, recipe="paper", method="metalabelnet", **fields)
    data = load(folder, read_options=run.read_options())
    assert data.clean is not None
    clean, rows = data.clean, data.train
    few = rows.take(torch.arange(min(ROWS_ON_DEVICE, len(rows))))
    result: dict[str, Any] = {}
    for name, train, clean_rows in (("from the pack", rows, clean), ("on the device", _load(few), _load(clean))):
        parts = {"train": train, "clean": clean_rows, "validation": clean_rows, "test": clean_rows}
        problem = Problem(**{part: value.to(args.device) for part, value in parts.items()}, noise_rate=0.0)
        steps = training_steps(run, problem=problem)
        times = []
        with tf32_and_cudnn_benchmark():
            for _ in range(WARMUP_STEPS):
                next(steps)
            for _ in range(args.repeats):
                _wait(args.device)
                start = time.monotonic()
                for _ in range(args.steps // args.repeats):
                    next(steps)
                _wait(args.device)
                times.append(1000 * (time.monotonic() - start) / (args.steps // args.repeats))
        result[name] = {"ms": statistics.median(times), "ms of each repeat": times}
        if name == "from the pack":
            result[name] |= memory_mib()
        steps.close()
    result["ratio"] = result["from the pack"]["ms"] / result["on the device"]["ms"]
    return result


def _load(rows: Rows) -> Rows:
    """Return the rows with their images in memory."""
    return type(rows)(**{**vars(rows), "x": torch.cat([rows.x[s : s + 256] for s in range(0, len(rows), 256)])})


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def memory_mib() -> dict[str, float]:
    """Return the proportional set size of this process and of its children."""
    return {"process_mib": _pss(os.getpid()), "workers_mib": sum(_pss(int(entry.name)) for entry in _children())}


def _pss(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def main() -> None:
    """Measure and print a line of JSON for each part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for photos and pack; kept for the next time")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--net", default="torchvision:resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bf16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--only", choices=("packing", "reading", "decoding", "steps"))
    parser.add_argument("--json", type=Path, help="file to append the result to")
    args = parser.parse_args()
    result: dict[str, Any] = {"packing": make_pack(args)}
    print(json.dumps({"packing": result["packing"]}), flush=True)
    for name, measure in (("reading", measure_reading), ("decoding", measure_decoding), ("steps", measure_steps)):
        if args.only in (None, name):
            result[name] = measure(args)
            print(json.dumps({name: result[name]}), flush=True)
    settings = {name: str(value) for name, value in vars(args).items() if name not in ("folder", "json")}
    about = {"date": datetime.now(UTC).date().isoformat(), "commit": commit(), "cores": args.workers}
    line = {**about, "versions": versions(torch.device(args.device)), "settings": settings, **result}
    if args.json is not None:
        with args.json.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
