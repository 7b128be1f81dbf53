"""Write the embeddings of a data set into an `.npz` file, which is read like any other (`data/files/npz.py`).

A training row keeps its given label and its id, so that the clean set of the data fits the file, too. Rows of a clean
part that the data has apart from its training rows become x_clean.
"""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.atomic_write import write_atomically
from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.data.datasets import DATASETS, load
from metalabelnet.data.disk_tensor import sample_memory_bytes
from metalabelnet.data.encoders import encode_all
from metalabelnet.data.files.list_data import is_folder_or_table, list_test, list_train
from metalabelnet.data.files.reader import combine, fit_encoder
from metalabelnet.data.parts import TEST, TRAIN
from metalabelnet.data.rows import UNLABELED, DataSet, make_rows
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.data.files.list_data import ReadOptions
    from metalabelnet.data.rows import Rows


def embed_data(
    name: str, path: Path, options: ReadOptions, folder: Path | None, on_samples: Callable[[str, int, int], None] | None
) -> DataSet:
    """Return the embeddings of a data set, given by name or path, by the encoder of the options.

    Unlike `data.load`, a folder or table needs no clean set.
    """
    if name in DATASETS or not is_folder_or_table(path):
        return load(name, folder, read_options=options, on_samples=on_samples)
    notes: list[str] = []
    train, columns = list_train(path, options, notes, on_samples)
    test = None if options.test is None else list_test(Path(options.test), options, columns, train, on_samples)
    samples = combine(train, [], test)
    encoder = fit_encoder(samples.items, samples.ids, columns, options, notes, None, folder)
    x, encoded, failures = encode_all(
        encoder,
        samples.items,
        samples.ids,
        memory_bytes=sample_memory_bytes(None, None, 1),
        folder=data_folder(folder),
        skip_errors=options.on_error == "skip",
        on_samples=None if on_samples is None else functools.partial(on_samples, f"embedding {path}"),
    )
    notes += [*encoder.notes(), *failures]
    index = torch.tensor(encoded, dtype=torch.long)
    given, true, part = samples.given[index], samples.true[index], samples.part[index]
    ids = tuple(samples.ids[k] for k in encoded)
    rows = make_rows(x, given, true=true, classes=samples.classes, what=str(path), ids=ids, index=index)
    return DataSet(
        name=path.stem,
        train=rows.take((part == TRAIN).nonzero()[:, 0]),
        test=None if test is None else rows.take((part == TEST).nonzero()[:, 0]),
        notes=tuple(notes),
    )


def check_feature_file_name(file: Path) -> None:
    """Raise InputError if the name is not that of a file of features, before anything is computed for it."""
    if file.suffix.lower() != ".npz":
        raise InputError(f"{file}: the name of a file of features ends with .npz; give one such as {file.stem}.npz")


def write_features(data: DataSet, file: Path) -> None:
    """Write the rows of all parts; an existing file is replaced."""
    check_feature_file_name(file)
    train = data.train
    arrays: dict[str, Any] = {
        "x_train": _samples(train),
        "y_train": train.given.numpy(),
        "ids": np.array(train.ids),
        "classes": np.array(data.classes),
    }
    if (train.true != UNLABELED).any() and not torch.equal(train.true, train.given):
        arrays["true_train"] = train.true.numpy()
    for part, rows in (("test", data.test), ("clean", data.clean)):
        if rows is not None:
            arrays |= {f"x_{part}": _samples(rows), f"y_{part}": rows.true.numpy()}
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomically(file, content.getbuffer())


def _samples(rows: Rows) -> Any:
    x = rows.x if isinstance(rows.x, torch.Tensor) else rows.x[torch.arange(len(rows))]
    return x.numpy()
