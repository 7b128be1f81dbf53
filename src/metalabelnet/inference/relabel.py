"""Labels for data a run has never seen, by the model it left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.core.calibration import at_temperature
from metalabelnet.data import load
from metalabelnet.data.files.listing import some
from metalabelnet.data.files.reader import is_own
from metalabelnet.errors import InputError
from metalabelnet.inference.load import load_method
from metalabelnet.inference.predict import NAMED_COLUMNS
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.metrics import logits_of
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from metalabelnet.data import Rows


def relabel(folder: Path, data: str, data_dir: Path | None = None) -> LabelTable:
    """The label table of another data set's training rows."""
    files = RunFolder(folder)
    about = files.about()
    if is_own(Path(data)):
        raise InputError(f"a folder or a table goes to another command: metalabelnet predict {folder} {data}")
    kind = (files.inputs() or {}).get("kind")
    if kind in NAMED_COLUMNS:
        raise InputError(f"{data}: {NAMED_COLUMNS[kind]}; give a table to metalabelnet predict {folder} TABLE")
    classes = tuple(about["classes"])
    rows = load(data, data_dir, classes=classes, noisy=True).train
    if rows.classes != classes:
        raise InputError(f"{data} has the classes {some(rows.classes)}, but {folder} knows {some(classes)}")
    return label_rows(files, rows)


def label_rows(files: RunFolder, rows: Rows) -> LabelTable:
    """The label table of these rows: new ones have no history, so that it is the calibrated classifier's."""
    shape, expected = tuple(rows.x.shape[1:]), tuple(files.about()["shape"])
    if shape != expected:
        raise InputError(f"samples of shape {shape} do not fit {files.path}, which takes {expected}")
    method = load_method(files, rows)
    rows = method.task.train
    p = at_temperature(logits_of(method, rows.x), files.temperature())
    return LabelTable(rows=rows, probabilities=p, soft_labels=method.soft_labels())
