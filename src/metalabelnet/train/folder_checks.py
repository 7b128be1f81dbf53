"""Checks before a run is trained in a folder: it is outside of the data, and its settings are those of the run."""

from __future__ import annotations

import dataclasses
import json
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
