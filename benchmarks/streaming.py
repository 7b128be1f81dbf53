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
import dataclasses
import hashlib
import importlib.util
import io
import itertools
import json
import mmap
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
import types
from contextlib import closing
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
from metalabelnet.data.rows import Rows
from metalabelnet.data.streamed_tensor import StreamedTensor
from metalabelnet.engine import tf32_and_cudnn_benchmark
from metalabelnet.input_files.decode_worker import read_stored
from metalabelnet.train.loop import TrainingLoop
from metalabelnet.train.settings import make_run
from metalabelnet.train.versions import commit, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray
    from torch import Tensor

    from metalabelnet.data.batches import Batch, Batches

CLASSES = 14
WIDTH, HEIGHT, QUALITY = 640, 480, 85  # of a photo; its file has about 90 kB
WARMUP_STEPS = 25  # before steps are timed: compilation, and the first batches
PARTS = ("packing", "reading", "decoding", "steps")
_SAFETENSORS_TYPES = {"int64": "I64", "uint8": "U8"}
MIN_SECONDS = 3.0  # of a measurement of reading or decoding


def make_photo(number: int) -> bytes:
    """Return a JPEG file like a photo: a smooth scene with fine grain."""
    from PIL import Image

    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    scene = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.int16)
    grain = random.integers(-14, 15, (HEIGHT, WIDTH, 1), dtype=np.int16)
    content = io.BytesIO()
    Image.fromarray((scene + grain).clip(0, 255).astype(np.uint8)).save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


def write_photos(job: tuple[Path, range]) -> None:
    """Write a photo to several files, which differ in a comment: no two files have the same bytes."""
    folder, numbers = job
    missing = {number: folder / f"class {number % CLASSES:02d}" / f"{number:07d}.jpg" for number in numbers}
    missing = {number: file for number, file in missing.items() if not file.exists()}
    photo = make_photo(numbers[0]) if missing else b""
    for number, file in missing.items():
        comment = f"{number:07d}".encode()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(photo[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + photo[2:])


def make_pack(args: argparse.Namespace) -> dict[str, Any]:
    """Write the photos and the pack, unless they are there, and return how long packing took."""
    photos, folder = args.folder / "photos", args.folder / "packed"
    begin, scenes = time.monotonic(), min(args.scenes, args.images)
    jobs = [(photos, range(scene, args.images, scenes)) for scene in range(scenes)]
    with multiprocessing.get_context("fork").Pool(args.workers) as pool:
        list(pool.imap_unordered(write_photos, jobs, chunksize=8))
    writing = time.monotonic() - begin
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
    return {
        "images": args.images,
        "distinct scenes": scenes,
        "bytes_per_image": size / args.images,
        "packing_per_second": rate,
        "seconds_of_writing_photos": writing,
    }


def use_safetensors_stand_in() -> None:
    """Make a module that reads and writes the index of a pack where safetensors is not installed: same format."""

    def save(table: dict[str, NDArray[Any]]) -> bytes:
        header, offset = {}, 0
        for name, values in table.items():
            ends = [offset, offset + values.nbytes]
            header[name] = {"dtype": _SAFETENSORS_TYPES[values.dtype.name], "shape": values.shape, "data_offsets": ends}
            offset = ends[1]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in table.values())

    def load(content: bytes) -> dict[str, NDArray[Any]]:
        start = 8 + int.from_bytes(content[:8], "little")
        names = {value: name for name, value in _SAFETENSORS_TYPES.items()}
        return {
            name: np.frombuffer(bytearray(content[start + begin : start + end]), names[entry["dtype"]]).reshape(
                entry["shape"]
            )
            for name, entry in json.loads(content[8:start]).items()
            for begin, end in [entry["data_offsets"]]
        }

    package, functions = types.ModuleType("safetensors"), types.ModuleType("safetensors.numpy")
    vars(package)["SafetensorError"] = ValueError
    vars(functions).update(save=save, load=load)
    sys.modules |= {"safetensors": package, "safetensors.numpy": functions}


class Packing:
    """Another process that writes the photos and the pack."""

    def __init__(self, args: argparse.Namespace) -> None:
        names = ("folder", "images", "scenes", "workers", "size")
        settings = [text for name in names for text in (f"--{name}", str(getattr(args, name)))]
        command = [sys.executable, __file__, "--only", "packing", *settings]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.nice(10))

    def wait(self) -> dict[str, Any]:
        """Return what it printed."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"packing ended with exit code {self._process.returncode}")
        result: dict[str, Any] = json.loads(output.splitlines()[-1])["packing"]
        return result

    def end(self) -> None:
        """End the process, if it has not ended."""
        self._process.kill()
        self._process.wait()


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


def _children(parent: int) -> list[Path]:
    """Return the folders of the child processes in /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(entry)
        except OSError:  # it has ended
            continue
    return found


def _descendants(parent: int) -> list[Path]:
    """Return the folders of the child processes and of theirs."""
    children = _children(parent)
    return [*children, *(entry for child in children for entry in _descendants(int(child.name)))]


def _cpu_seconds_of_children() -> float:
    fields = [(entry / "stat").read_text().rpartition(")")[2].split() for entry in _children(os.getpid())]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


class ImagesOnDevice(StreamedTensor):
    """Images on the device, from where batches take them in the way in which others are read from the pack."""

    def __init__(self, images: Tensor) -> None:
        super().__init__(tuple(images.shape[1:]), images.dtype, torch.arange(len(images)))
        self.images, self.device = images, images.device

    def read(self, which: slice | Tensor) -> Tensor:
        return self._positions[which]

    def to_device(self, rows: Tensor) -> Tensor:
        return self.images[rows.to(self.device, non_blocking=True)]

    def _fill(self, rows: Tensor, where: Tensor) -> None:
        raise NotImplementedError  # `read` does not call it


def rows_on_device(args: argparse.Namespace) -> Rows:
    """Return random images on the device."""
    count = args.rows_on_device
    images = torch.randint(0, 256, (count, 3, args.size, args.size), dtype=torch.uint8, device=args.device)
    labels, ids = torch.arange(count) % CLASSES, tuple(map(str, range(count)))
    classes = tuple(f"class {k:02d}" for k in range(CLASSES))
    x = ImagesOnDevice(images)
    return Rows(x=x, given=labels, true=labels, index=torch.arange(count), classes=classes, ids=ids).to(args.device)


class Steps:
    """Training steps of phase 2, all of them by one compiled step."""

    def __init__(self, args: argparse.Namespace, rows: Rows) -> None:
        fields = {"net": args.net, "batch_size": args.batch, "epochs": 1, "warmup": 0, "lr": 1e-3, "augment": "flip"}
        fields |= {"device": args.device, "dtype": args.dtype, "image_size": args.size, "workers": args.workers}
        run = make_run("clothing1m", recipe="paper", method="metalabelnet", **fields)
        problem = Problem(train=rows, clean=rows, validation=rows, test=rows.take(torch.arange(0)), noise_rate=0.0)
        self.args, self.loop = args, TrainingLoop(run, problem, None, None)
        self.loop.method.begin_epoch(0)

    def first(self) -> float:
        """Return the seconds of the first step, which is compiled."""
        start = time.monotonic()
        with closing(self.loop.step_inputs(0)) as inputs, tf32_and_cudnn_benchmark():
            self.loop.engine.step(next(inputs))
            _wait(self.args.device)
        return time.monotonic() - start

    def measure(self, batches: Batches) -> dict[str, Any]:
        """Return the milliseconds of a step, and how many CPU cores this process and its children keep busy."""
        args, count = self.args, self.args.steps // self.args.repeats
        inputs = endless(batches)
        times, own, children = [], [], []
        with closing(inputs), tf32_and_cudnn_benchmark():
            for repeat in range(args.repeats + 1):
                steps = WARMUP_STEPS if repeat == 0 else count
                before = time.process_time(), _cpu_seconds_of_children()
                start = time.monotonic()
                for _ in range(steps):
                    self.loop.engine.step(next(inputs))
                _wait(args.device)
                seconds = time.monotonic() - start
                times.append(1000 * seconds / steps)
                own.append((time.process_time() - before[0]) / seconds)
                children.append((_cpu_seconds_of_children() - before[1]) / seconds)
        return {
            "ms": statistics.median(times[1:]),
            "ms of each repeat": times[1:],
            "cores busy, process": statistics.mean(own[1:]),
            "cores busy, workers": statistics.mean(children[1:]),
        }


def endless(batches: Batches) -> Generator[Batch, None, None]:
    """Yield the batches of one epoch after the other."""
    for epoch in itertools.count():
        with closing(batches.epoch(epoch, labeled_only=False)) as inputs:
            yield from inputs


def measure_supply(args: argparse.Namespace, batches: Batches) -> dict[str, float]:
    """Return how fast batches reach the device if no step waits for them."""
    with closing(endless(batches)) as inputs:
        for _ in range(WARMUP_STEPS):
            next(inputs)
        before, start, done = time.process_time(), time.monotonic(), 0
        while time.monotonic() - start < 2 * MIN_SECONDS:
            next(inputs)
            done += 1
        _wait(args.device)
        seconds, cpu = time.monotonic() - start, time.process_time() - before
    images = 2 * args.batch * done  # of the training rows and of the clean rows
    return {"images_per_second": images / seconds, "microseconds_of_process_per_image": 1e6 * cpu / images}


def measure_steps(args: argparse.Namespace, report: Callable[[str, Any], None], packing: Packing) -> None:
    """Compile the step while the images are packed; then measure it with images on the device and from the pack."""
    steps = Steps(args, rows_on_device(args))
    report("first step, compiled beside packing, seconds", steps.first())
    report("executed", steps.loop.engine.executed())
    report("packing", packing.wait())
    on_device = steps.measure(steps.loop.batches)
    report("on the device", on_device)
    data = load(str(args.folder / "packed"), read_options=ReadOptions(workers=args.workers, image_size=args.size))
    assert data.clean is not None
    batches = dataclasses.replace(
        steps.loop.batches, train=data.train.to(args.device), clean=data.clean.to(args.device)
    )
    from_pack = steps.measure(batches)
    report("from the pack", from_pack | memory_mib(data.train.x))
    report("ratio", from_pack["ms"] / on_device["ms"])
    if "decoding" in args.only:
        report("decoding", measure_decoding(args))
    report("supply without steps", measure_supply(args, batches))
    report("from the pack, again", steps.measure(batches) | memory_mib(data.train.x))
    report("on the device, again", steps.measure(steps.loop.batches))


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def memory_mib(x: Any) -> dict[str, float]:
    """Return the proportional set size of this process, of those that decode and of those that compile."""
    decoding = {process.pid for process in x.pack.pool()._processes}  # noqa: SLF001
    others = {int(entry.name) for entry in _descendants(os.getpid())} - decoding
    sizes = {"process": _pss(os.getpid()), "decoding": sum(map(_pss, decoding)), "compiling": sum(map(_pss, others))}
    status = Path("/proc/self/status").read_text().splitlines()
    peak = int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) / 1024
    pinned: dict[str, float] = {}
    if torch.cuda.is_available() and hasattr(torch.cuda, "host_memory_stats"):
        statistics_of_host = torch.cuda.host_memory_stats()
        pinned = {
            f"pinned {name}": statistics_of_host.get(f"allocated_bytes.{name}", 0) / 2**20
            for name in ("current", "peak")
        }
    return {f"{name} MiB": size for name, size in {**sizes, "process, resident, peak": peak, **pinned}.items()}


def _pss(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


class Report:
    """The result so far: printed, and written to a file after each measurement."""

    def __init__(self, args: argparse.Namespace) -> None:
        settings = {name: str(value) for name, value in vars(args).items() if name not in ("folder", "json")}
        self.line = {"date": datetime.now(UTC).date().isoformat(), "commit": commit(), "cores": args.workers}
        self.line |= {"versions": versions(torch.device(args.device)), "settings": settings}
        self._file, self._start = args.json, time.monotonic()
        self._earlier = args.json.read_text() if args.json is not None and args.json.exists() else ""

    def __call__(self, name: str, value: Any) -> None:
        self.line[name] = value
        print(json.dumps({name: value, "at": round(time.monotonic() - self._start)}), flush=True)
        if self._file is not None:
            self._file.write_text(f"{self._earlier}{json.dumps(self.line)}\n")


def parse_arguments() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for photos and pack; kept for the next time")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--scenes", type=int, default=10_000, help="photos that differ in more than a comment")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--net", default="torchvision:resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows-on-device", type=int, default=8192)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bf16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=int, default=0, help="stop after this time; 0: no limit")
    parser.add_argument("--json", type=Path, help="file to append the result to")
    return parser.parse_args()


def main() -> None:
    """Measure and print a line of JSON for each part."""
    args = parse_arguments()
    if importlib.util.find_spec("PIL") is None:
        raise SystemExit("Pillow is missing: photos can be neither written nor decoded")
    if importlib.util.find_spec("safetensors") is None:
        print("safetensors is missing: the index of the pack is written by a stand-in of this script", flush=True)
        use_safetensors_stand_in()
    report = Report(args)
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"stopped after {args.seconds} seconds; run it again to go on"))
    signal.alarm(args.seconds)
    if "steps" in args.only:
        packing = Packing(args)
        try:
            measure_steps(args, report, packing)
        finally:
            packing.end()
    else:
        report("packing", make_pack(args))
    if "reading" in args.only:
        report("reading", measure_reading(args))
    if "decoding" in args.only and "steps" not in args.only:
        report("decoding", measure_decoding(args))


if __name__ == "__main__":
    main()
