"""Sample content for annotation tools (FiftyOne, Label Studio): image files, texts, and table rows as text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError
from metalabelnet.report import finished_run, sample_content
from metalabelnet.train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = dict[str, str]

IDS_ONLY = "tasks contain sample ids only."


def add_sample_content(run: Path, rows: Sequence[Row], tool: str) -> tuple[list[Row], list[str]]:
    """Add the columns `file` or `sample` that a tool needs to rows of the label table of a run.

    FiftyOne uses image paths relative to the data folder. Label Studio serves local files by their path relative to the
    parent of that folder, because it does not serve its document root itself.

    Parameters
    ----------
    run : Path
        Folder of a finished run.
    rows : sequence of dict
        Rows of labels.csv.
    tool : str
        "fiftyone" or "label-studio".

    Returns
    -------
    list of dict
        The rows with the added column.
    list of str
        Messages for the user.
    """
    files = RunFolder(run)
    encoder, data = files.encoder(), Path(str(files.metadata()["run"]["data"]))
    if encoder is None:
        return list(rows), []
    if encoder.kind == "image":
        paths, reason = _image_paths(run, data, rows) if encoder.columns else ({}, _folder_problem(data, tool))
        files_by_index = {int(row["index"]): row["id"] for row in rows} | paths
        if tool == "fiftyone" or reason:
            with_file = [{**row, "file": "" if reason else files_by_index[int(row["index"])]} for row in rows]
            return with_file, _messages(reason)
        folder = Path(os.path.abspath(data.parent if encoder.columns else data))  # noqa: PTH100
        relative = {index: _relative_path(folder.parent, folder / path) for index, path in files_by_index.items()}
        note = (
            "Label Studio reads the images as local files: "
            "start it with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
            f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={folder.parent}, "
            f"and add {folder} as local storage"
        )
        return [{**row, "file": relative[int(row["index"])]} for row in rows], [note]
    if tool == "label-studio":
        texts, reason = _sample_texts(run, rows)
        return [{**row, "sample": texts.get(int(row["index"]), "")} for row in rows], _messages(reason)
    return list(rows), []


def _messages(reason: str) -> list[str]:
    return [f"{IDS_ONLY} {reason}"] if reason else []


def _folder_problem(folder: Path, tool: str) -> str:
    """A message if Label Studio needs the image folder and it does not exist; else empty."""
    if tool == "fiftyone" or folder.is_dir():
        return ""
    return f"The image folder {folder} does not exist (relative to the current folder)."


def _relative_path(root: Path, file: Path) -> str:
    """The path relative to the root, or the absolute path if it is outside."""
    full = Path(os.path.normpath(file))
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else full.as_posix()


def _image_paths(run: Path, table: Path, rows: Sequence[Row]) -> tuple[dict[int, str], str]:
    """The image paths in the table of a run, by index; they can differ from the ids."""
    try:
        _, _, found = sample_content.table_cells_of(finished_run.read_run(run), table, _as_suspects(rows))
    except (InputError, OSError) as error:
        return {}, f"The paths of the images cannot be read: {error}."
    return {index: path for index, (path,) in found}, ""


def _sample_texts(run: Path, rows: Sequence[Row]) -> tuple[dict[int, str], str]:
    contents, reason = sample_content.read_contents(finished_run.read_run(run), _as_suspects(rows))
    texts = {
        index: ", ".join(f"{name}: {cell}" for name, cell in sample.cells) if sample.text is None else sample.text
        for index, sample in contents.items()
    }
    return texts, reason


def _as_suspects(rows: Sequence[Row]) -> list[finished_run.Suspect]:
    return [
        finished_run.Suspect(
            index=int(row["index"]),
            id=row["id"],
            given=row["given"],
            label=row["label"],
            confidence=float(row["confidence"]),
            suspicion=float(row["suspicion"] or 0),
            true=row["true"],
        )
        for row in rows
    ]
