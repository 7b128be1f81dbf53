"""A label table in the forms other tools read.

cleanlab      CSV with the columns of `CleanLearning.get_label_issues()`, which `CleanLearning.fit` takes as
              `label_issues`. Classes are numbers there, as they are in cleanlab; samples without a label, which it does
              not know, are left out.
label-studio  JSON of pre-annotated tasks, for Import: images as Label Studio's local files, texts and rows of a table
              as text. The labeling setup that goes with it names its `Choices` "label" and its `Image` (or `Text`)
              "sample":
              <View><Image name="sample" value="$image"/><Choices name="label" toName="sample">…</Choices></View>
fiftyone      labels.json of a `FiftyOneImageClassificationDataset`: images are known by their path within the data
              folder without its ending, or by their absolute path.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from metalabelnet.data.encoders.images import is_image
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Row = dict[str, str]

LOCAL_FILE = "/data/local-files/?d="  # the address of a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT


def read_table(text: str) -> list[Row]:
    """The rows of labels.csv, by column."""
    return list(csv.DictReader(io.StringIO(text)))


def choose(rows: list[Row], *, suspects: bool, top: int | None) -> list[Row]:
    """The most suspicious rows first: the suspects, the first `top`, or both. With neither: all rows as they are."""
    if not suspects and top is None:
        return rows
    if top is not None and top < 1:
        raise InputError(f"top {top} is too small: the least is 1")
    if rows and "suspicion" not in rows[0]:
        raise InputError(
            "the label table has no column suspicion: the run was made by an earlier version; run it again"
        )
    chosen = [row for row in rows if row["given"] and (row["suspect"] == "1" or not suspects)]
    return sorted(chosen, key=lambda row: -float(row["suspicion"]))[:top]


def to_csv(rows: list[Row], columns: Sequence[str], _classes: Sequence[str]) -> str:
    """The table as it is."""
    return _csv(columns, ([row[name] for name in columns] for row in rows))


def to_cleanlab(rows: list[Row], _columns: Sequence[str], classes: Sequence[str]) -> str:
    """The columns of cleanlab, with the sample's number and name in front."""
    number = {name: k for k, name in enumerate(classes)}
    columns = ["index", "id", "is_label_issue", "label_quality", "given_label", "predicted_label"]
    return _csv(
        columns,
        (
            [
                row["index"],
                row["id"],
                row["suspect"] == "1",
                f"{1 - float(row['suspicion']):.6f}",
                number[row["given"]],
                number[row["label"]],
            ]
            for row in rows
            if row["given"]
        ),
    )


def to_label_studio(rows: list[Row], _columns: Sequence[str], _classes: Sequence[str]) -> str:
    """A task for each sample, its label as a prediction; what it was given stands in the data, to be shown."""
    return _json([_task(row) for row in rows])


def _task(row: Row) -> dict[str, Any]:
    path = row["id"] if not row.get("sample") and is_image(PurePath(row["id"])) else ""
    if path := row.get("file", path):  # an empty one: where the file lies is not known
        shown = {"image": f"{LOCAL_FILE}{quote(path.removeprefix('/'))}"}
    else:
        shown = {"text": row.get("sample") or row["id"]}
    choice = {
        "id": f"label-{row['index']}",
        "from_name": "label",
        "to_name": "sample",
        "type": "choices",
        "value": {"choices": [row["label"]]},
    }
    return {
        "data": {**shown, "id": row["id"], "index": int(row["index"]), **_about(row)},
        "predictions": [{"model_version": "metalabelnet", "score": float(row["confidence"]), "result": [choice]}],
    }


def to_fiftyone(rows: list[Row], _columns: Sequence[str], classes: Sequence[str]) -> str:
    """A classification for each sample, with what it was given among its attributes."""
    names = [_uuid(row.get("file") or row["id"]) for row in rows]
    if len({*names}) < len(names):
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise InputError(f"two samples are {twice!r} to FiftyOne, which leaves endings away: rename one of the files")
    labels = {
        name: {"label": row["label"], "confidence": float(row["confidence"]), "attributes": _about(row)}
        for name, row in zip(names, rows, strict=True)
    }
    return _json({"classes": list(classes), "labels": labels})


FORMATS: dict[str, Callable[[list[Row], Sequence[str], Sequence[str]], str]] = {
    "csv": to_csv,
    "cleanlab": to_cleanlab,
    "label-studio": to_label_studio,
    "fiftyone": to_fiftyone,
}


def _about(row: Row) -> dict[str, Any]:
    """What is known of the given label."""
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
