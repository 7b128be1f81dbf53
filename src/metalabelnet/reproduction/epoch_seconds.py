"""Measured seconds per epoch of each method, from which the number of epochs within a time budget follows.

They are stored in a file beside the result lines. A method is measured once; then its number of epochs is fixed, and an
interrupted experiment resumes with the same runs. All methods are measured on one device.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.atomic_write import write_atomically
from metalabelnet.engine.cuda import device_name
from metalabelnet.errors import InputError
from metalabelnet.input_files.json_text import parse_json
from metalabelnet.train import RunFolder, train
from metalabelnet.train.json_files import has_type
from metalabelnet.train.prepare import select_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metalabelnet.train.result import Progress
    from metalabelnet.train.settings import Run

FILE_NAME = "epoch-seconds.json"
MEASURED_EPOCHS, MEASURED_WARMUP = 5, 2  # the first epoch of each phase compiles and is not counted
MIN_EPOCH_SECONDS, MAX_EPOCH_SECONDS = 1e-6, 1e9


def epochs_within(minutes: float, seconds_per_epoch: float) -> int:
    """Return the number of epochs that fit into the budget, at least 2.

    Examples
    --------
    >>> from metalabelnet.reproduction.epoch_seconds import epochs_within
    >>> epochs_within(10, 3.6)
    166
    """
    return max(2, int(60 * minutes / seconds_per_epoch))


def read_epoch_seconds(folder: Path) -> dict[str, float]:
    """Return the measured seconds per epoch of each method.

    Raises
    ------
    InputError
        If the file is damaged.
    """
    return {method: entry["seconds"] for method, entry in _read(folder).items()}


def measure_missing(
    folder: Path, runs: Mapping[str, Run], log: Callable[[str], None], stop: Callable[[], bool] | None = None
) -> None:
    """Measure the methods of these runs that have no stored time, and store each when it is measured."""
    for method, run in runs.items():
        entries = _read(folder)
        if method in entries:
            continue
        device = device_name(select_device(run))
        for other, entry in entries.items():
            if (entry["device"], entry["dtype"]) != (device, run.dtype):
                raise InputError(
                    f"{folder / FILE_NAME}: {other} was measured on {entry['device']} in {entry['dtype']}, and "
                    f"{method} would be on {device} in {run.dtype}: use that device, or another folder with --results"
                )
        seconds = measure(run, stop)
        store_epoch_seconds(folder, method, run, seconds)
        log(f"{method}: {seconds:.3g} s per epoch on {device}")


def store_epoch_seconds(folder: Path, method: str, run: Run, seconds: float) -> None:
    """Add the measured seconds per epoch of a method to the file in this folder."""
    entry = {"seconds": seconds, "device": device_name(select_device(run)), "dtype": run.dtype}
    folder.mkdir(parents=True, exist_ok=True)
    entries = _read(folder) | {method: entry}
    write_atomically(folder / FILE_NAME, (json.dumps(entries, indent=1, sort_keys=True) + "\n").encode())


def measure(
    run: Run, stop: Callable[[], bool] | None = None, on_progress: Callable[[Progress], None] | None = None
) -> float:
    """Return the mean seconds per epoch of a run, from a short version of it; each phase counts by its share."""
    with tempfile.TemporaryDirectory() as folder:
        train(short_run(run), folder=Path(folder) / "run", stop=stop, on_progress=on_progress)
        ends = [0.0, *(float(line["seconds"]) for line in RunFolder(Path(folder) / "run").metrics())]
    durations = [end - start for start, end in itertools.pairwise(ends)]
    warmup = statistics.median(durations[1:MEASURED_WARMUP])
    later = statistics.median(durations[MEASURED_WARMUP + 1 :])
    share = run.warmup / run.epochs
    stages = len(durations) / MEASURED_EPOCHS  # some methods train several times the epochs of their run
    return round(stages * (share * warmup + (1 - share) * later), 6)


def short_run(run: Run) -> Run:
    """Return the same run with a few epochs, in which both phases occur."""
    return dataclasses.replace(run, epochs=MEASURED_EPOCHS, warmup=MEASURED_WARMUP, lr_milestones=(), snapshots=0)


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    file = folder / FILE_NAME
    if not file.is_file():
        return {}
    try:
        entries = parse_json(file.read_bytes())
    except (OSError, ValueError):
        entries = None
    if not has_type(entries, dict[str, dict[str, Any]]) or not all(map(_is_entry, entries.values())):
        raise InputError(f"{file} is damaged: restore it, or delete it to measure again")
    return dict(entries)


def _is_entry(entry: dict[str, Any]) -> bool:
    types = {"seconds": float, "device": str, "dtype": str}
    return (
        all(name in entry and has_type(entry[name], kind) for name, kind in types.items())
        and MIN_EPOCH_SECONDS <= entry["seconds"] <= MAX_EPOCH_SECONDS
    )
