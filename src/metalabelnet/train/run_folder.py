"""A run is a folder: what was asked, how it went, what came out.

run.json           every setting, what stands for the data, the versions, the commit
metrics.jsonl      a line an epoch
summary.json       the result; written last, so a folder that has it is finished
model.safetensors  the networks of the selected epoch
calibration.json   the temperature of the model's probabilities, and what the label table was made of
labels.csv         a row for each training sample
labels.npy         all its probabilities, where there are too many classes for columns (and soft_labels.npy)
confusion.json     how many samples of each class are taken for which, on the test or the held-out clean rows
inputs.json        how samples were made into numbers, for a person's own data
checkpoint/        while it runs
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import math
import os
import platform
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

import metalabelnet
from metalabelnet.errors import InputError
from metalabelnet.train import checkpoint
from metalabelnet.train.settings import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from torch import Tensor


class Busy(InputError):  # noqa: N818
    """Another process is at work on the run."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint" / "state.pt"

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "summary.json").exists()

    def check(self, run: Run, *, resume: bool) -> None:
        """Refuse a folder that holds something else, without touching anything."""
        there = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if there.is_dir() and not os.access(there, os.W_OK):
            raise InputError(f"{there} cannot be written to: choose another folder with --out")
        if not there.is_dir():
            raise InputError(f"{there} is a file: a run needs a folder of its own")
        _check_outside(self.path, run)
        if there != self.path:
            return
        if not any(self.path.iterdir()):
            return
        if not (self.path / "run.json").exists():
            if any(not entry.name.startswith(".run.json") for entry in self.path.iterdir()):
                raise InputError(f"{self.path} is not empty and holds no run: choose another folder with --out")
            return
        if not resume:
            raise InputError(f"{self.path} holds a run already: add --resume to go on with it, or choose another --out")
        begun, about = dataclasses.asdict(self.run()), self.about()  # refuses what another version has written
        before, now = _everything(begun, about["method_settings"]), _everything(*_settings(run))
        before = json.loads(json.dumps(before))
        for name, value in json.loads(json.dumps(now)).items():
            if value != before.get(name):
                raise InputError(
                    f"{self.path} was started with {name} = {before.get(name)!r}, not {value!r}: "
                    "resume with the settings it has, or choose another --out"
                )

    def check_data(self, digest: str) -> None:
        """Refuse to go on with other data than the run was started with; a folder of an earlier version cannot tell."""
        if (self.path / "run.json").exists() and self.about().get("data_digest", digest) != digest:
            raise InputError(
                f"{self.path}: the data has changed since the run was started: bring it back as it was, "
                "or train anew with another --out"
            )

    def create(self, run: Run, *, inputs: dict[str, Any] | None = None, **facts: Any) -> None:
        """Make the folder and write down what is about to be done, with facts found on the way."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "run.json").exists():
            fields, settings = _settings(run)
            about = {"run": fields, "method_settings": settings, **facts, "versions": versions(), "commit": commit()}
            if inputs is not None:
                self.write("inputs.json", json.dumps(inputs, ensure_ascii=False) + "\n")
            self.write_json("run.json", about)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training in this folder, until this one is done or gone, in whatever way."""
        try:
            import fcntl
        except ImportError:  # not POSIX: whoever starts a run twice is on their own
            yield
            return
        self.checkpoint.parent.mkdir(exist_ok=True)
        with (self.checkpoint.parent / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"{self.path}: another process is at work on it; wait for it, or stop it") from None
            except OSError:  # a file system without locks
                pass
            yield

    def run(self, **changes: Any) -> Run:
        """The settings this folder was started with, with fields changed as given."""
        fields = self.about()["run"]
        try:
            return Run(**{**fields, "lr_milestones": tuple(fields["lr_milestones"]), **changes})
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{self.path / 'run.json'} was written by another version ({error}): train again, or use that version"
            ) from error

    def about(self) -> dict[str, Any]:
        """What run.json says."""
        file = self.path / "run.json"
        if not file.is_file():
            raise InputError(
                f"{self.path} is not a run: there is no run.json in it; name a folder that train or compare has made"
            )
        return _said(file, file.read_bytes(), _WRITTEN)

    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        if not self.finished:
            self.about()  # refuses what is no run at all
            raise InputError(f"{self.path} has no summary.json: the run is not finished; go on with it by --resume")
        file = self.path / "summary.json"
        return _said(file, file.read_bytes(), _SUMMED_UP)

    def metrics(self) -> list[dict[str, Any]]:
        """One line an epoch, as far as the run has come."""
        file = self.path / "metrics.jsonl"
        return [_said(file, line, _MEASURED) for line in file.read_bytes().splitlines()] if file.exists() else []

    def write_metrics(self, history: list[dict[str, Any]], *, sync: bool = True) -> None:
        """Write all lines anew: after a resume the file holds what the checkpoint knows, and no more."""
        text = "".join(json.dumps(line) + "\n" for line in history)
        checkpoint.write_atomically(self.path / "metrics.jsonl", text.encode(), sync=sync)

    def write_model(self, tensors: dict[str, Tensor]) -> None:
        """Write the networks of the selected epoch."""
        checkpoint.write_atomically(
            self.path / "model.safetensors", to_bytes({k: t.contiguous().cpu() for k, t in tensors.items()})
        )

    def write_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write a file of numbers, for what does not fit into a table."""
        buffer = io.BytesIO()
        np.save(buffer, array)
        checkpoint.write_atomically(self.path / name, buffer.getvalue())

    def model(self, device: torch.device) -> dict[str, Tensor]:
        """Read the networks of the selected epoch."""
        file = self.path / "model.safetensors"
        if not file.exists():
            raise InputError(
                f"{self.path} has no model.safetensors: the run is not finished; go on with it by --resume"
            )
        try:
            return load_file(file, device=str(device))
        except (SafetensorError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{file} is not a model of this program ({reason}): copy it again, or train again"
            ) from error

    def inputs(self) -> dict[str, Any] | None:
        """How samples were made into numbers, where they were not numbers already."""
        file = self.path / "inputs.json"
        try:
            about: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        except ValueError as error:
            raise InputError(f"{file} cannot be read: {error}") from error
        return about

    def temperature(self) -> float:
        """What the model's logits are divided by, so that its probabilities mean what they say."""
        file = self.path / "calibration.json"
        if not file.is_file():  # a run of an earlier version
            return 1.0
        try:
            temperature = float(json.loads(file.read_text())["temperature"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is not what a run of this program writes: {error!r}") from error
        if not (math.isfinite(temperature) and temperature > 0):
            raise InputError(f"{file}: temperature {temperature} is not a positive number")
        return temperature

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a small file for people and programs."""
        self.write(name, json.dumps(content, indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a text file, whole or not at all."""
        checkpoint.write_atomically(self.path / name, text.encode())

    def clean_up(self) -> None:
        """Remove what is of no use once the summary stands."""
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)


_WRITTEN = {"run", "method_settings", "classes", "shape", "own_net"}
_SUMMED_UP = {"method", "dataset", "noise", "seed", "epochs", "selected_epoch", "clean_accuracy", "test_accuracy"}
_SUMMED_UP |= {"test_accuracy_last", "macro_f1", "ece", "samples", "seconds"}
_MEASURED = {"epoch", "loss", "clean_accuracy", "test_accuracy"}


def _said(file: Path, content: bytes, names: set[str]) -> dict[str, Any]:
    """What a file of a run says under these names at least."""
    try:
        said: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise InputError(f"{file} cannot be read ({error}): copy the run folder again, or train again") from error
    if not isinstance(said, dict) or not said.keys() >= names:
        raise InputError(f"{file} is not what a run of this program writes: train again in another folder")
    return said


def _check_outside(folder: Path, run: Run) -> None:
    """Refuse a folder among the pictures that are read, where it would be one of their classes.

    Where nothing is there to read, the reader says so.
    """
    for data in (run.data if run.own_data else None, run.clean_file, run.test):
        if data is None or not Path(data).is_dir():
            continue
        if folder.resolve().is_relative_to(Path(data).resolve()) and any(Path(data).iterdir()):
            raise InputError(f"{folder} lies within {data}, whose folders are classes: choose one outside with --out")


def _settings(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a run, and those of its method with their defaults filled in."""
    return dataclasses.asdict(run), dataclasses.asdict(run.method_settings())


def _everything(run: dict[str, Any], method_settings: dict[str, Any]) -> dict[str, Any]:
    """All settings by name; what was left to a default that has changed since is a difference too."""
    return run | {f"{run['method']}.{name}": value for name, value in method_settings.items()}


def versions() -> dict[str, str]:
    """What the numbers depend on beside the settings."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "metalabelnet": metalabelnet.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device,
    }


@functools.cache
def commit() -> str | None:
    """The commit of the checkout this package runs from, if it does; marked where files were changed.

    Asked for once: what is imported does not change.
    """
    here = Path(__file__).parent
    git = shutil.which("git")
    if git is None or not any((folder / ".git").exists() for folder in here.parents):
        return None
    try:
        asked = [git, "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
