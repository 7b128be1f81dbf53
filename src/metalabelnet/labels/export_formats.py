"""Exporters of a label table (labels.csv) to other tools.

cleanlab      CSV with the columns of `CleanLearning.get_label_issues()`, which `CleanLearning.fit` accepts as
              `label_issues`. Classes are integers. Samples without a given label are left out, because cleanlab does
              not support them.
label-studio  JSON of pre-annotated tasks for Import: images as local files of Label Studio, texts and table rows as
              text. The labeling setup must name its `Choices` "label" and its `Image` (or `Text`) "sample":
              <View><Image name="sample" value="$image"/><Choices name="label" toName="sample">…</Choices></View>
fiftyone      labels.json of a `FiftyOneImageClassificationDataset`. An image is identified by its path within the data
              folder without the file extension, or by its absolute path.

References
----------
cleanlab: https://docs.cleanlab.ai
Label Studio: https://labelstud.io/guide/predictions
FiftyOne: https://docs.voxel51.com/user_guide/import_datasets.html
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from metalabelnet.data.files.spreadsheet import escape_formula
from metalabelnet.errors import InputError
from metalabelnet.input_files.image_files import is_image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Row = dict[str, str]

LABEL_STUDIO_FILE_URL = "/data/local-files/?d="  # of a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT


def read_label_table(text: str) -> list[Row]:
    r"""Parse the text of labels.csv.

    Parameters
    ----------
    text : str
        Content of labels.csv, as `LabelTable.to_csv` writes it.

    Returns
    -------
    list of dict
        One dict per sample, from column name to cell.

    Examples
    --------
    >>> from metalabelnet.labels.export_formats import read_label_table
    >>> read_label_table("index,given\n0,cat\n")
    [{'index': '0', 'given': 'cat'}]
    """
    return list(csv.DictReader(io.StringIO(text)))


def select_rows(rows: list[Row], *, suspects: bool, top: int | None) -> list[Row]:
    """Select the rows to export, most suspicious first.

    Parameters
    ----------
    rows : list of dict
        Rows of `read_label_table`.
    suspects : bool
        Select the suspects only.
    top : int or None
        Select at most this many rows.

    Returns
    -------
    list of dict
        The selected rows by decreasing suspicion; without `suspects` and `top`, all rows in their own order.

    Raises
    ------
    InputError
        If `top` is less than 1, or the table has no column `suspicion`.
    """
    if not suspects and top is None:
        return rows
    if top is not None and top < 1:
        raise InputError(f"top {top} is too small: the minimum is 1")
    if rows and "suspicion" not in rows[0]:
        raise InputError("the label table has no column suspicion: copy the run folder again, or train again")
    selected = [row for row in rows if row["given"] and (row["suspect"] == "1" or not suspects)]
    return sorted(selected, key=lambda row: -float(row["suspicion"]))[:top]


def to_csv(rows: list[Row], columns: Sequence[str], _classes: Sequence[str]) -> str:
    """Return the table as CSV.

    Parameters
    ----------
    rows : list of dict
        Rows of `read_label_table`.
    columns : sequence of str
        Columns to write.

    Returns
    -------
    str
        CSV.
    """
    return _csv(columns, ([row[name] for name in columns] for row in rows))


def to_cleanlab(rows: list[Row], _columns: Sequence[str], classes: Sequence[str]) -> str:
    """Return cleanlab's columns as CSV, after the index and id of the sample.

    Parameters
    ----------
    rows : list of dict
        Rows of `read_label_table`.
    classes : sequence of str
        Class names; their order gives the integers.

    Returns
    -------
    str
        CSV with `index, id, is_label_issue, label_quality, given_label, predicted_label`.
    """
    class_index = {name: k for k, name in enumerate(classes)}
    columns = ["index", "id", "is_label_issue", "label_quality", "given_label", "predicted_label"]
    return _csv(
        columns,
        (
            [
                row["index"],
                row["id"],
                row["suspect"] == "1",
                f"{1 - float(row['suspicion']):.6f}",
                class_index[row["given"]],
                class_index[row["label"]],
            ]
            for row in rows
            if row["given"]
        ),
    )


def to_label_studio(rows: list[Row], _columns: Sequence[str], _classes: Sequence[str]) -> str:
    """Return Label Studio tasks as JSON: the corrected label as prediction, the given label in the task data.

    Parameters
    ----------
    rows : list of dict
        Rows of `read_label_table`. A column `file` (path of an image) or `sample` (text) is shown if there is one.

    Returns
    -------
    str
        JSON list with one task per sample.
    """
    return _json([_task(row) for row in rows])


def _task(row: Row) -> dict[str, Any]:
    path = row["id"] if not row.get("sample") and is_image(PurePath(row["id"])) else ""
    if path := row.get("file", path):  # an empty cell: the location of the file is unknown
        content = {"image": f"{LABEL_STUDIO_FILE_URL}{quote(path.removeprefix('/'))}"}
    else:
        content = {"text": row.get("sample") or row["id"]}
    choice = {
        "id": f"label-{row['index']}",
        "from_name": "label",
        "to_name": "sample",
        "type": "choices",
        "value": {"choices": [row["label"]]},
    }
    return {
        "data": {**content, "id": row["id"], "index": int(row["index"]), **_given_label(row)},
        "predictions": [{"model_version": "metalabelnet", "score": float(row["confidence"]), "result": [choice]}],
    }


def to_fiftyone(rows: list[Row], _columns: Sequence[str], classes: Sequence[str]) -> str:
    """Return FiftyOne's labels.json: the corrected label as classification, the given label among its attributes.

    Parameters
    ----------
    rows : list of dict
        Rows of `read_label_table`. A column `file` gives the path of the image, otherwise `id`.
    classes : sequence of str
        Class names.

    Returns
    -------
    str
        JSON object with `classes` and `labels`.

    Raises
    ------
    InputError
        If two images differ in their file extension only.
    """
    names = [_uuid(row.get("file") or row["id"]) for row in rows]
    if len({*names}) < len(names):
        duplicate = next(name for k, name in enumerate(names) if name in names[:k])
        raise InputError(
            f"two samples have the name {duplicate!r} in FiftyOne, which ignores file extensions: rename one of them"
        )
    labels = {
        name: {"label": row["label"], "confidence": float(row["confidence"]), "attributes": _given_label(row)}
        for name, row in zip(names, rows, strict=True)
    }
    return _json({"classes": list(classes), "labels": labels})


FORMATS: dict[str, Callable[[list[Row], Sequence[str], Sequence[str]], str]] = {
    "csv": to_csv,
    "cleanlab": to_cleanlab,
    "label-studio": to_label_studio,
    "fiftyone": to_fiftyone,
}


CSV_FORMATS = ("csv", "cleanlab")


def escape_formulas(text: str) -> str:
    r"""Return CSV with an apostrophe before every cell that a spreadsheet program would evaluate as a formula.

    Parameters
    ----------
    text : str
        CSV.

    Returns
    -------
    str
        CSV. Numbers are as before.

    Examples
    --------
    >>> from metalabelnet.labels.export_formats import escape_formulas
    >>> escape_formulas("id,given\n=1+1,-1\n")
    "id,given\n'=1+1,-1\n"
    """
    columns, *rows = ([escape_formula(cell) for cell in row] for row in csv.reader(io.StringIO(text, newline="")))
    return _csv(columns, rows)


def _given_label(row: Row) -> dict[str, Any]:
    """Return the given label with its suspicion."""
    suspicion = float(row["suspicion"]) if row["suspicion"] else None
    return {"given": row["given"] or None, "suspicion": suspicion, "suspect": row["suspect"] == "1"}


def _uuid(name: str) -> str:
    path = PurePath(name)
    return path.with_suffix("").as_posix() if is_image(path) and not path.is_absolute() else name


def _csv(columns: Sequence[str], rows: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
