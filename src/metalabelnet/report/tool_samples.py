"""What samples are to tools that show them to a person: files of images, texts, and rows of a table as text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError
from metalabelnet.report import samples, source
from metalabelnet.train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = dict[str, str]

IDS_ALONE = "tasks hold ids alone."


def of_rows(run: Path, rows: Sequence[Row], tool: str) -> tuple[list[Row], list[str]]:
    """Rows of a run's label table with what the tool needs of each sample, `file` or `sample`; and what is to be said.

    FiftyOne knows images by their path within the data's folder. Label Studio is asked for a local file, by its path
    within the folder above that: it does not give away all that lies below its root.
    """
    files = RunFolder(run)
    inputs, data = files.inputs() or {}, Path(str(files.about()["run"]["data"]))
    kind = inputs.get("kind")
    if kind == "image":
        paths, why = _paths(run, data, rows) if inputs.get("column") else ({}, _missing(data, tool))
        known = {int(row["index"]): row["id"] for row in rows} | paths
        if tool == "fiftyone" or why:
            return [{**row, "file": "" if why else known[int(row["index"])]} for row in rows], _told(why)
        folder = Path(os.path.abspath(data.parent if inputs.get("column") else data))  # noqa: PTH100
        below = {index: _below(folder.parent, folder / path) for index, path in known.items()}
        note = (
            f"images are local files to Label Studio: start it with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
            f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={folder.parent}, and add {folder} as local storage"
        )
        return [{**row, "file": below[int(row["index"])]} for row in rows], [note]
    if kind in ("text", "table") and tool == "label-studio":
        words, why = _words(run, rows)
        return [{**row, "sample": words.get(int(row["index"]), "")} for row in rows], _told(why)
    return list(rows), []


def _told(why: str) -> list[str]:
    return [f"{IDS_ALONE} {why}"] if why else []


def _missing(folder: Path, tool: str) -> str:
    """A sentence where Label Studio cannot be told of a folder, because it is not seen from here."""
    if tool == "fiftyone" or folder.is_dir():
        return ""
    return f"Their folder cannot be named: {folder} is not there, seen from the folder this was called in."


def _below(root: Path, file: Path) -> str:
    """The path seen from the root; that from the file system's root where it lies elsewhere."""
    full = Path(os.path.normpath(file))
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else full.as_posix()


def _paths(run: Path, table: Path, rows: Sequence[Row]) -> tuple[dict[int, str], str]:
    """The paths of images in a table, which may have other names for them."""
    try:
        _, _, found = samples.rows_of(source.read(run), table, _wanted(rows))
    except (InputError, OSError) as error:
        return {}, f"The paths of the images cannot be read: {error}."
    return {index: path for index, (path,) in found}, ""


def _words(run: Path, rows: Sequence[Row]) -> tuple[dict[int, str], str]:
    found, why = samples.find(source.read(run), _wanted(rows))
    words = {
        index: ", ".join(f"{name}: {cell}" for name, cell in sample.cells) if sample.text is None else sample.text
        for index, sample in found.items()
    }
    return words, why


def _wanted(rows: Sequence[Row]) -> list[source.Suspect]:
    return [
        source.Suspect(
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
