"""The run folder: all files of a run.

run.json           settings, classes, sample shape, data digest, what was executed, package versions, commit
metrics.jsonl      one JSON object per epoch
summary.json       the result; written last, so a folder that has it is finished
model.safetensors  weights of the selected epoch
calibration.json   temperature of the model, and provenance of the corrected labels
labels.csv         given label, corrected label, confidence, suspicion and probabilities of each training sample
labels.npy         probabilities of all classes, if there are too many for labels.csv
soft_labels.npy    soft labels of the method, if there are too many classes for labels.csv
confusion.json     nonzero cells of the confusion matrix, on the test rows or else the validation rows
encoder.json       configuration of the encoder that turned samples into tensors, for folders and tables
checkpoint/        state to resume from and a lock; removed when the run is finished
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


class RunBusyError(InputError):
    """Another process is training in the run folder."""


class RunFolder:
    """Read and write the files of one run.

    Parameters
    ----------
    path : Path
        The folder. It need not exist.

    Attributes
    ----------
    path : Path
        The folder.
    checkpoint : Path
        File of the checkpoint.

    Examples
    --------
    >>> from pathlib import Path
    >>> from metalabelnet.train import RunFolder
    >>> RunFolder(Path("runs/none")).finished
    False
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint" / "state.pt"

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "summary.json").exists()

    def check(self, run: Run, *, resume: bool) -> None:
        """Raise InputError if the run cannot be trained in this folder. Nothing is written.

        Parameters
        ----------
        run : Run
            The run to train.
        resume : bool
            Whether an unfinished run in the folder may be resumed. Its settings must equal those of `run`.
        """
        existing = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if existing.is_dir() and not os.access(existing, os.W_OK):
            raise InputError(f"{existing} is not writable: choose another folder with --out")
        if not existing.is_dir():
            raise InputError(f"{existing} is a file: choose another folder with --out")
        _check_outside_data(self.path, run)
        if existing != self.path:
            return
        if not any(self.path.iterdir()):
            return
        if not (self.path / "run.json").exists():
            if any(not entry.name.startswith(".run.json") for entry in self.path.iterdir()):
                raise InputError(f"{self.path} is not empty and has no run.json: choose another folder with --out")
            return
        if not resume:
            raise InputError(
                f"{self.path} already holds a run: resume it with --resume, or choose another folder with --out"
            )
        stored, new = _all_settings(self.run(), self.metadata()["method_settings"]), _all_settings(run)
        for name, value in new.items():
            if value != stored.get(name):
                raise InputError(
                    f"{self.path} was started with {name} = {stored.get(name)!r}, not {value!r}: "
                    "resume with the settings of the run, or choose another folder with --out"
                )

    def check_data(self, digest: str) -> None:
        """Raise InputError if the data differs from the data the run was started with.

        Folders of earlier versions have no digest and are accepted.
        """
        if (self.path / "run.json").exists() and self.metadata().get("data_digest", digest) != digest:
            raise InputError(
                f"{self.path}: the data has changed since the run was started: restore it, or train a new run with "
                "another --out"
            )

    def create(self, run: Run, *, encoder_config: dict[str, Any] | None = None, **facts: Any) -> None:
        """Create the folder with run.json and encoder.json, unless it holds a run already.

        Parameters
        ----------
        run : Run
            The settings.
        encoder_config : dict, optional
            Content of encoder.json.
        **facts
            Further entries of run.json.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "run.json").exists():
            metadata = {
                "run": dataclasses.asdict(run),
                "method_settings": dataclasses.asdict(run.method_settings()),
                **facts,
                "versions": versions(),
                "commit": commit(),
            }
            if encoder_config is not None:
                self.write("encoder.json", json.dumps(encoder_config, ensure_ascii=False) + "\n")
            self.write_json("run.json", metadata)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold a lock against other processes that train in this folder. It is released when this process ends.

        Raises
        ------
        RunBusyError
            If another process holds the lock.
        """
        try:
            import fcntl
        except ImportError:  # not POSIX: no lock
            yield
            return
        self.checkpoint.parent.mkdir(exist_ok=True)
        with (self.checkpoint.parent / "lock").open("w") as lock_file:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunBusyError(
                    f"{self.path}: another process is training in this folder: wait until it ends, or stop it"
                ) from None
            except OSError:  # a file system without locks
                pass
            yield

    def run(self, **changes: Any) -> Run:
        """Return the settings of the run.

        Parameters
        ----------
        **changes
            Fields to change. If `data` changes, its format is detected again.
        """
        fields = self.metadata()["run"]
        if "data" in changes:
            changes = {"data_format": "auto", **changes}
        try:
            return Run(**{**fields, "lr_milestones": tuple(fields["lr_milestones"]), **changes})
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{self.path / 'run.json'} was written by another version ({error}): train again, or use that version"
            ) from error

    def metadata(self) -> dict[str, Any]:
        """Return the content of run.json."""
        file = self.path / "run.json"
        if not file.is_file():
            raise InputError(
                f"{self.path} is not a run folder: it has no run.json; give a folder that train or compare has created"
            )
        return _parse_object(file, file.read_bytes(), _METADATA_KEYS)

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        if not self.finished:
            self.metadata()  # raises InputError if this is not a run folder
            raise InputError(f"{self.path} has no summary.json: the run is not finished; resume it with --resume")
        file = self.path / "summary.json"
        return _parse_object(file, file.read_bytes(), _SUMMARY_KEYS)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each epoch so far."""
        file = self.path / "metrics.jsonl"
        return (
            [_parse_object(file, line, _METRICS_KEYS) for line in file.read_bytes().splitlines()]
            if file.exists()
            else []
        )

    def write_metrics(self, history: list[dict[str, Any]], *, sync: bool = True) -> None:
        """Write metrics.jsonl as a whole: after a resume it must not have epochs past the checkpoint."""
        text = "".join(json.dumps(line) + "\n" for line in history)
        checkpoint.write_atomically(self.path / "metrics.jsonl", text.encode(), sync=sync)

    def write_model(self, tensors: dict[str, Tensor]) -> None:
        """Write model.safetensors."""
        checkpoint.write_atomically(
            self.path / "model.safetensors", to_bytes({k: t.contiguous().cpu() for k, t in tensors.items()})
        )

    def write_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an .npy file."""
        buffer = io.BytesIO()
        np.save(buffer, array)
        checkpoint.write_atomically(self.path / name, buffer.getvalue())

    def weights(self, device: torch.device) -> dict[str, Tensor]:
        """Return the weights of the selected epoch by name."""
        file = self.path / "model.safetensors"
        if not file.exists():
            raise InputError(f"{self.path} has no model.safetensors: the run is not finished; resume it with --resume")
        try:
            return load_file(file, device=str(device))
        except (SafetensorError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{file} is not a metalabelnet model ({reason}): copy the run folder again, or train again"
            ) from error

    def encoder_config(self) -> dict[str, Any] | None:
        """Return the content of encoder.json; None if the samples were tensors already."""
        file = self.path / "encoder.json"
        try:
            config: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        except ValueError as error:
            raise InputError(f"{file} cannot be read: {error}") from error
        return config

    def temperature(self) -> float:
        """Return the temperature that the logits are divided by for calibrated probabilities; 1 for old runs."""
        file = self.path / "calibration.json"
        if not file.is_file():  # written by an earlier version
            return 1.0
        try:
            temperature = float(json.loads(file.read_text())["temperature"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file} is not a calibration file of a run ({error!r}): copy the run folder again, or train again"
            ) from error
        if not (math.isfinite(temperature) and temperature > 0):
            raise InputError(f"{file}: temperature {temperature} is not a positive number")
        return temperature

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write an indented JSON file."""
        self.write(name, json.dumps(content, indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        checkpoint.write_atomically(self.path / name, text.encode())

    def write_executed(self, executed: dict[str, Any]) -> None:
        """Add to run.json how steps were executed (see `Engine.executed`); fallbacks before a resume stay listed."""
        metadata = self.metadata()
        earlier = metadata.get("executed", {}).get("fallbacks", [])
        fallbacks = [*earlier, *(reason for reason in executed["fallbacks"] if reason not in earlier)]
        self.write_json("run.json", metadata | {"executed": executed | {"fallbacks": fallbacks}})

    def clean_up(self) -> None:
        """Remove the checkpoint of a finished run."""
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)


_METADATA_KEYS = {"run", "method_settings", "classes", "shape", "own_net"}
_SUMMARY_KEYS = {"method", "dataset", "noise", "seed", "epochs", "selected_epoch", "clean_accuracy", "test_accuracy"}
_SUMMARY_KEYS |= {"test_accuracy_last", "macro_f1", "ece", "samples", "seconds"}
_METRICS_KEYS = {"epoch", "loss", "clean_accuracy", "test_accuracy"}


def _parse_object(file: Path, content: bytes, keys: set[str]) -> dict[str, Any]:
    """Return the JSON object in a file of a run; it must have at least these keys."""
    try:
        parsed: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise InputError(f"{file} cannot be read ({error}): copy the run folder again, or train again") from error
    if not isinstance(parsed, dict) or not parsed.keys() >= keys:
        raise InputError(f"{file} is not a file of a metalabelnet run: train again in another folder")
    return parsed


def _check_outside_data(folder: Path, run: Run) -> None:
    """Raise InputError for a run folder inside a folder of images, where it would be read as a class."""
    for data in (run.data if run.is_folder_or_table else None, run.clean_file, run.test):
        if data is None or not Path(data).is_dir():
            continue
        if folder.resolve().is_relative_to(Path(data).resolve()) and any(Path(data).iterdir()):
            raise InputError(
                f"{folder} is inside {data}, whose subfolders are classes: choose a folder outside with --out"
            )


def _all_settings(run: Run, method_settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return all settings by name as JSON values, with those of the method under METHOD.NAME.

    method_settings  complete settings of the method as stored; a default that has changed since is a difference
    """
    if method_settings is None:
        method_settings = dataclasses.asdict(run.method_settings())
    settings = dataclasses.asdict(run) | {f"{run.method}.{name}": value for name, value in method_settings.items()}
    if run.is_folder_or_table:
        settings["data"] = str(Path(run.data))  # a trailing slash makes no difference
    normalized: dict[str, Any] = json.loads(json.dumps(settings))
    return normalized


def versions() -> dict[str, str]:
    """Return the versions and the device that results depend on."""
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
    """Return the commit of the git checkout that this package runs from, with `-dirty` for local changes; else None.

    Computed once per process, because imported code does not change.
    """
    package = Path(__file__).parent
    git = shutil.which("git")
    if git is None or not any((folder / ".git").exists() for folder in package.parents):
        return None
    try:
        command = [git, "-C", str(package), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
