"""The samples of data that is arrays: data sets by name, packed images and `.npz` files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.review.sample_display import SampleDisplay, display_arrays
from metalabelnet.run_options import DATASET_DEFAULTS
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metalabelnet.run_options import RunOptions
    from metalabelnet.train.settings import Run


@dataclass(frozen=True, kw_only=True)
class ArraySamples:
    """Fields of a `ReviewSource`, and the number of clean samples that are not among the training samples."""

    classes: tuple[str, ...]
    display: SampleDisplay
    ids: Sequence[str]
    given: Sequence[int]
    splits: Mapping[int, str]
    clean_labels: Mapping[int, int]
    annotations: Sequence[tuple[int, str, str]]
    separate_clean: int


def load_samples(name: str, run: Run | None) -> ArraySamples:
    """Load the samples and split them as in the run."""
    from metalabelnet.data import load
    from metalabelnet.data.splits import SPLITS

    data_dir = Path(run.data_dir) if run is not None and run.data_dir else None
    read_options = None if run is None else dataclasses.replace(run.read_options(), encoder=None)  # pixels are shown
    data = load(name, data_dir, read_options=read_options)
    splits: dict[int, str] = {}
    clean_labels: dict[int, int] = {}
    if run is not None:
        split = SPLITS[run.split](data, run.clean_size, generator(run.seed, "split"))
        test = {} if data.test is not None else dict.fromkeys(split.test.index.tolist(), "test")
        if data.clean_labels is not None:
            clean_labels = {k: label for k, label in enumerate(data.clean_labels.tolist()) if label >= 0}
        elif data.clean is None and run.split == "general":  # taken from the training rows
            clean_labels = dict(zip(split.clean.index.tolist(), split.clean.true.tolist(), strict=True))
        splits = dict.fromkeys(clean_labels, "clean") | test
    train = data.train
    return ArraySamples(
        classes=data.classes,
        display=display_arrays(train.x),
        ids=train.ids,
        given=train.given.tolist(),
        splits=splits,
        clean_labels=clean_labels,
        annotations=() if train.annotations is None else train.annotations.entries(train.classes),
        separate_clean=0 if data.clean is None else len(data.clean),
    )


def read_npz_without_splits(
    name: str, run: RunOptions | None, drawn_clean: Mapping[int, int] | None = None
) -> ArraySamples | None:
    """Read the samples of an `.npz` file without PyTorch, which takes longer to import than 100,000 labels to write.

    `drawn_clean` has the classes of the clean rows that the run has drawn from the training rows, by position. None if
    it has drawn some and did not store them, or the file has mistakes: `load_samples` draws again and reports them.
    """
    path = Path(name)
    if name in DATASET_DEFAULTS or path.suffix.lower() != ".npz" or not path.is_file():
        return None
    if run is not None and (run.clean_file is not None or run.annotations is not None):
        return None
    from metalabelnet.data.files.npz_arrays import read_arrays

    arrays = read_arrays(path)
    x, given, clean = arrays.samples["x_train"], arrays.labels["y_train"], arrays.labels.get("y_clean")
    if len(given) != len(x) or given.max() >= len(arrays.classes):
        return None
    clean_labels: Mapping[int, int] = {}
    if run is not None and run.split == "general" and clean is None:
        if not drawn_clean or max(drawn_clean) >= len(x) or max(drawn_clean.values()) >= len(arrays.classes):
            return None
        clean_labels = drawn_clean
    return ArraySamples(
        classes=arrays.classes,
        display=display_arrays(x),
        ids=arrays.ids or tuple(map(str, range(len(x)))),
        given=given.tolist(),
        splits=dict.fromkeys(clean_labels, "clean"),
        clean_labels=clean_labels,
        annotations=(),
        separate_clean=0 if clean is None else len(clean),
    )
