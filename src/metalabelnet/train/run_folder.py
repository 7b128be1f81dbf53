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
digests.json       SHA-256 of every other file; files are checked against it when they are read
checkpoint/        state to resume from, the state before it, and a lock; removed when the run is finished

A folder may come from a stranger: links are rejected, and all content is checked before it is used.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import platform
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

import metalabelnet
from metalabelnet.atomic_write import is_temporary_file, remove_temporary_files, write_atomically
from metalabelnet.engine.cuda import device_name
from metalabelnet.errors import InputError
from metalabelnet.input_files.regular_files import open_regular_file
from metalabelnet.train import json_files
from metalabelnet.train.settings import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from torch import Tensor


FILES = frozenset(
    (
        *("run.json", "metrics.jsonl", "summary.json", "model.safetensors", "calibration.json", "labels.csv"),
        *("labels.npy", "soft_labels.npy", "confusion.json", "encoder.json", "digests.json"),
    )
)
DIGEST_CHUNK_BYTES = 1 << 20
CHECKPOINT_FILES = frozenset(("state.pt", "previous.pt", "lock"))


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
        self._written: dict[str, str] = {}  # digests of the files that this object has written

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
        self.check_links()
        if not (self.path / "run.json").exists():
            if not all(self._is_left_by_a_start(entry) for entry in self.path.iterdir()):
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

    def check_links(self) -> None:
        """Raise InputError if a file of the run, or the folder of its checkpoint, is a symbolic link.

        Such a link would lead reads and writes out of the folder. The folder itself may be a link.
        """
        folder = self.checkpoint.parent
        paths = [*(self.path / name for name in sorted(FILES)), folder]
        if not folder.is_symlink():
            paths += [folder / name for name in sorted(CHECKPOINT_FILES)]
        for path in paths:
            _check_no_link(path)

    def _is_left_by_a_start(self, entry: Path) -> bool:
        """Return whether a process that was killed before it wrote run.json has left this entry of the folder."""
        if entry == self.checkpoint.parent and entry.is_dir():
            return all(child.name == "lock" for child in entry.iterdir())
        return is_temporary_file(entry, FILES)

    def check_data(self, digest: str) -> None:
        """Raise InputError if the data differs from the data the run was started with.

        Folders of earlier versions have no digest and are accepted.
        """
        if (self.path / "run.json").exists() and self.metadata().get("data_digest", digest) != digest:
            raise InputError(
                f"{self.path}: the data has changed since the run was started: restore it, or train a new run with "
                "another --out"
            )

    def create(
        self,
        run: Run,
        *,
        encoder_config: dict[str, Any] | None = None,
        device: torch.device | None = None,
        **facts: Any,
    ) -> None:
        """Create the folder with run.json and encoder.json, or check that the run it holds has the same facts.

        Parameters
        ----------
        run : Run
            The settings.
        encoder_config : dict, optional
            Content of encoder.json.
        device : torch.device, optional
            The device that trains, as in `versions`.
        **facts
            Further entries of run.json.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "run.json").exists():
            stored, new = self.metadata(), json.loads(json.dumps(facts))
            for name in facts:
                if stored.get(name, new[name]) != new[name]:
                    raise InputError(
                        f"{self.path / 'run.json'}: {name} is {str(stored[name])[:80]}, but that of the run is "
                        f"{str(new[name])[:80]}: copy the run folder again, or choose another folder with --out"
                    )
        else:
            metadata = {
                "run": dataclasses.asdict(run),
                "method_settings": dataclasses.asdict(run.method_settings()),
                **facts,
                "versions": versions(device),
                "commit": commit(),
            }
            self.write_json("run.json", metadata)
        if encoder_config is not None:  # also on resume: a process may have been killed before it wrote the file
            self.write("encoder.json", json.dumps(encoder_config, ensure_ascii=False) + "\n")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder and hold a lock against other processes that train in it, until this process ends.

        Temporary files that killed processes have left are removed.

        Raises
        ------
        RunBusyError
            If another process holds the lock.
        """
        folder = self.checkpoint.parent
        self.path.mkdir(parents=True, exist_ok=True)
        _check_no_link(folder)
        folder.mkdir(exist_ok=True)
        with _lock_file(folder / "lock", self.path):
            remove_temporary_files(self.path, FILES)
            remove_temporary_files(folder, CHECKPOINT_FILES)
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
            raise self._other_version(str(error)) from error

    def _other_version(self, reason: str) -> InputError:
        file = self.path / "run.json"
        return InputError(f"{file} was written by another version ({reason}): train again, or use that version")

    def open(self, name: str) -> BinaryIO:
        """Open a file of the run for reading.

        Raises
        ------
        InputError
            If it is not a regular file, or differs from what the finished run wrote.
        FileNotFoundError
            If the run has no such file.
        """
        path = self.path / name
        _check_no_link(path)
        file = open_regular_file(path)
        try:
            self._check_digest(name, file)
        except BaseException:
            file.close()
            raise
        return file

    def _check_digest(self, name: str, file: BinaryIO) -> None:
        """Raise InputError if an open file is not what the finished run wrote."""
        expected = self._digests().get(name)
        if expected is None:
            return
        digest = hashlib.sha256()
        while chunk := file.read(DIGEST_CHUNK_BYTES):
            digest.update(chunk)
        file.seek(0)
        if digest.hexdigest() != expected:
            raise InputError(
                f"{self.path / name} has changed since the run wrote it: restore it from a copy of the run folder, or "
                f"delete {self.path / 'digests.json'} to use it as it is"
            )

    def read(self, name: str) -> bytes:
        """Return the content of a file of the run. The errors are those of `open`."""
        with self.open(name) as file:
            return file.read()

    def has(self, name: str) -> bool:
        """Return whether the folder has an entry of that name."""
        return os.path.lexists(self.path / name)

    def _digests(self) -> dict[str, str]:
        """Return the digest of each file of a finished run; runs of earlier versions have none."""
        file = self.path / "digests.json"
        if not (self.finished and self.has(file.name)):
            return {}
        _check_no_link(file)
        with open_regular_file(file) as opened:
            digests = json_files.parse_object(file, opened.read(), {})
        json_files.check_fields(file, digests, dict.fromkeys(digests, str))
        return {**digests, **self._written}

    def metadata(self) -> dict[str, Any]:
        """Return the content of run.json."""
        file = self.path / "run.json"
        if not self.has(file.name):
            raise InputError(
                f"{self.path} is not a run folder: it has no run.json; give a folder that train or compare has created"
            )
        metadata = json_files.parse_object(
            file, self.read(file.name), json_files.METADATA, json_files.OPTIONAL_METADATA
        )
        json_files.check_fields(file, metadata.get("executed", {}), {}, json_files.EXECUTED)
        types = get_type_hints(Run)
        if missing := [name for name in ("data", "method", "net", "noise", "seed") if name not in metadata["run"]]:
            raise self._other_version(f"{missing[0]!r} is missing")
        json_files.check_fields(file, metadata["run"], {}, types)
        return metadata

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        if not self.finished:
            self.metadata()  # raises InputError if this is not a run folder
            raise InputError(f"{self.path} has no summary.json: the run is not finished; resume it with --resume")
        file = self.path / "summary.json"
        summary = json_files.parse_object(file, self.read(file.name), json_files.SUMMARY, json_files.OPTIONAL_SUMMARY)
        json_files.check_fields(file, summary["samples"], json_files.SAMPLES)
        return summary

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each epoch so far."""
        file = self.path / "metrics.jsonl"
        lines = self.read(file.name).splitlines() if self.has(file.name) else []
        return [json_files.parse_object(file, line, json_files.METRICS, json_files.OPTIONAL_METRICS) for line in lines]

    def weights(self, device: torch.device) -> dict[str, Tensor]:
        """Return the weights of the selected epoch by name."""
        file = self.path / "model.safetensors"
        if not self.has(file.name):
            raise InputError(f"{self.path} has no model.safetensors: the run is not finished; resume it with --resume")
        try:
            return {name: tensor.to(device) for name, tensor in from_bytes(self.read(file.name)).items()}
        except SafetensorError as error:
            reason = " ".join(str(error).split())[:80]
            raise InputError(
                f"{file} is not a metalabelnet model ({reason}): copy the run folder again, or train again"
            ) from error

    def encoder_config(self) -> dict[str, Any] | None:
        """Return the content of encoder.json; None if the samples were tensors already."""
        file = self.path / "encoder.json"
        if not self.has(file.name):
            return None
        return json_files.parse_object(file, self.read(file.name), json_files.ENCODER)

    def temperature(self) -> float:
        """Return the temperature that the logits are divided by for calibrated probabilities; 1 for old runs."""
        file = self.path / "calibration.json"
        if not self.has(file.name):  # written by an earlier version
            return 1.0
        temperature = json_files.parse_object(file, self.read(file.name), json_files.CALIBRATION)["temperature"]
        if not (math.isfinite(temperature) and temperature > 0):
            raise InputError(f"{file}: temperature {temperature} is not a positive number")
        return float(temperature)

    def confusion(self) -> dict[str, Any] | None:
        """Return the content of confusion.json; None if the run has none."""
        file = self.path / "confusion.json"
        if not self.has(file.name):
            return None
        return json_files.parse_object(file, self.read(file.name), json_files.CONFUSION)

    def write_metrics(self, history: list[dict[str, Any]], *, sync: bool = True) -> None:
        """Write metrics.jsonl as a whole: after a resume it must not have epochs past the checkpoint."""
        self._write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in history).encode(), sync=sync)

    def write_model(self, tensors: dict[str, Tensor]) -> None:
        """Write model.safetensors."""
        self._write("model.safetensors", to_bytes({k: t.contiguous().cpu() for k, t in tensors.items()}))

    def write_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an .npy file."""
        buffer = io.BytesIO()
        np.save(buffer, array)
        self._write(name, buffer.getbuffer())

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write an indented JSON file."""
        self.write(name, to_json(content))

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        self._write(name, text.encode())

    def _write(self, name: str, content: bytes | memoryview, *, sync: bool = True) -> None:
        write_atomically(self.path / name, content, sync=sync)
        self._written[name] = hashlib.sha256(content).hexdigest()

    def write_executed(self, executed: dict[str, Any]) -> None:
        """Add to run.json how steps were executed (see `Engine.executed`); fallbacks before a resume stay listed."""
        metadata = self.metadata()
        earlier = metadata.get("executed", {}).get("fallbacks", [])
        fallbacks = [*earlier, *(reason for reason in executed["fallbacks"] if reason not in earlier)]
        self.write_json("run.json", metadata | {"executed": executed | {"fallbacks": fallbacks}})

    def finish(self, summary: dict[str, Any]) -> None:
        """Write digests.json, then summary.json, with which the run is finished; then remove the checkpoint."""
        text = to_json(summary)
        digests = {**self._written, "summary.json": hashlib.sha256(text.encode()).hexdigest()}
        digests.pop("digests.json", None)
        self.write_json("digests.json", dict(sorted(digests.items())))
        self.write("summary.json", text)
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)


def to_json(content: dict[str, Any]) -> str:
    """Return the text of an indented JSON file."""
    return json.dumps(content, indent=2) + "\n"


def _check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link, and a run folder must not have any: replace it by what it points to"
        )


@contextmanager
def _lock_file(file: Path, folder: Path) -> Iterator[None]:
    """Hold a lock on a file, which is created if needed and never changed."""
    try:
        import fcntl
    except ImportError:  # not POSIX: no lock
        yield
        return
    _check_no_link(file)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusyError(
                f"{folder}: another process is training in this folder: wait until it ends, or stop it"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


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


def versions(device: torch.device | None = None) -> dict[str, str]:
    """Return the versions and the name of the device that results depend on; by default a GPU if there is one."""
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        "metalabelnet": metalabelnet.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
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
