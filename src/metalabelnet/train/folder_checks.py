"""Checks before a run is trained in a folder: it is writable, outside of the data, and has the run's settings."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from metalabelnet.train.settings import Run


def check_outside_data(folder: Path, run: Run) -> None:
    """Raise InputError for a run folder inside a folder of images, where it would be read as a class."""
    for data in (run.data if run.is_folder_or_table else None, run.clean_file, run.test):
        if data is None or not Path(data).is_dir():
            continue
        if folder.resolve().is_relative_to(Path(data).resolve()) and any(Path(data).iterdir()):
            raise InputError(
                f"{folder} is inside {data}, whose subfolders are classes: choose a folder outside with --out"
            )


def check_output_folder(folder: Path, option: str = "--out") -> None:
    """Raise InputError if the folder, or one of that name, cannot be written to.

    A file system without storage, such as /proc, may claim to be writable: there a folder is made and removed.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"{existing} is a file: choose another folder with {option}")
    if not os.access(existing, os.W_OK):
        raise InputError(f"{existing} is not writable: choose another folder with {option}")
    if existing == folder or not hasattr(os, "statvfs") or os.statvfs(existing).f_blocks > 0:
        return
    try:
        Path(tempfile.mkdtemp(prefix=".metalabelnet-", dir=existing)).rmdir()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{folder} cannot be created ({reason}): choose another folder with {option}") from error


def all_settings(run: Run, method_settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return all settings by name as JSON values, with those of the method under METHOD.NAME.

    method_settings  complete settings of the method as stored; a default that has changed since is a difference
    """
    if method_settings is None:
        method_settings = dataclasses.asdict(run.method_settings())
    settings = dataclasses.asdict(run) | {f"{run.method}.{name}": value for name, value in method_settings.items()}
    if run.is_folder_or_table:
        settings["data"] = str(Path(run.data))  # a trailing slash makes no difference
    del settings["workers"]  # does not change the result
    normalized: dict[str, Any] = json.loads(json.dumps(settings))
    return normalized
