"""Label other data with the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from metalabelnet.data import load
from metalabelnet.data.encoders.embeddings import EmbeddingEncoder, embed_images
from metalabelnet.data.files.list_data import is_folder_or_table
from metalabelnet.data.files.listing import shorten_list
from metalabelnet.errors import InputError
from metalabelnet.inference.load import calibrated_probabilities, load_method
from metalabelnet.inference.predict import NEEDS_TABLE
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.metrics import predict_logits
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from metalabelnet.data import Rows


def relabel(folder: Path, data: str, data_dir: Path | None = None) -> LabelTable:
    """Return the label table of another data set's training rows.

    Parameters
    ----------
    folder : Path
        Folder of a finished run.
    data : str
        Name of a data set, or path of an .npz file.
    data_dir : Path, optional
        Folder with the files of a named data set.

    Returns
    -------
    LabelTable
        Labels by the calibrated classifier. New samples have no snapshots.

    Raises
    ------
    InputError
        If the data does not fit the run.
    """
    files = RunFolder(folder)
    metadata = files.metadata()
    if is_folder_or_table(Path(data)):
        raise InputError(f"{data} is a folder or a table: use metalabelnet predict {folder} {data}")
    encoder = files.encoder()
    if encoder is not None and encoder.kind in NEEDS_TABLE:
        raise InputError(f"{data}: {NEEDS_TABLE[encoder.kind]}; use metalabelnet predict {folder} TABLE")
    classes = tuple(metadata["classes"])
    loaded = load(data, data_dir, classes=classes, noisy=True)
    if loaded.train.is_image and isinstance(encoder, EmbeddingEncoder):
        loaded = embed_images(loaded, encoder.name, folder=data_dir, device=torch.device("cpu"))
    rows = loaded.train
    if rows.classes != classes:
        raise InputError(
            f"{data} has the classes {shorten_list(rows.classes)}, but {folder} has {shorten_list(classes)}: give data "
            "with the same classes"
        )
    return relabel_rows(files, rows)


def relabel_rows(files: RunFolder, rows: Rows) -> LabelTable:
    """Return the label table of these rows by the calibrated classifier of a run."""
    shape, expected = tuple(rows.x.shape[1:]), tuple(files.metadata()["shape"])
    if shape != expected:
        raise InputError(f"samples of shape {shape} do not fit {files.path}: it needs {expected}")
    method = load_method(files, rows)
    rows = method.task.train
    p = calibrated_probabilities(files, predict_logits(method, rows.x))
    return LabelTable(rows=rows, probabilities=p, soft_labels=method.soft_labels())
