"""Reads a pack into a data set whose images stay on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.data.benchmarks.image_lists import ImageSize
from metalabelnet.data.encoders import ImageEncoder
from metalabelnet.data.encoders.images import EXTERNAL_NET_SIDE
from metalabelnet.data.packed.index import INDEX, PIXELS
from metalabelnet.data.packed.packed_tensor import Pack, PackedTensor, default_workers
from metalabelnet.data.parts import CLEAN, SECOND_TEST, TEST, TRAIN
from metalabelnet.data.rows import DataSet, make_rows
from metalabelnet.errors import InputError
from metalabelnet.input_files.image_files import check_installed

if TYPE_CHECKING:
    from pathlib import Path

    from metalabelnet.data.files.list_data import ReadOptions
    from metalabelnet.data.rows import Rows


def read(folder: Path, options: ReadOptions, name: str | None = None) -> DataSet:
    """Return the data set in a pack.

    Parameters
    ----------
    folder : Path
        The pack.
    options : ReadOptions
        Split, image size and number of workers.
    name : str or None
        The named data set that it must be.

    Returns
    -------
    DataSet
        Training, clean and test rows. Their images are read when they are used.
    """
    workers = options.workers
    if workers is None and options.concurrent_runs > 1:
        workers = default_workers(options.concurrent_runs)  # each run has processes of its own
    pack = Pack(folder, workers)
    index, table = pack.index, pack.table
    if name not in (None, index.name):
        raise InputError(
            f"{folder} is a pack of {index.name}, not of {name}: give the folder of {name} with --data-dir"
        )
    if index.split not in (None, options.split):
        raise InputError(
            f"{folder} was packed for the split {index.split}, not {options.split}: use --split {index.split}, or pack "
            f"the images again with --split {options.split}"
        )
    encoder = _make_encoder(folder, pack, options)
    if index.store != PIXELS:
        check_installed()
    part = torch.from_numpy(table["part"])
    rows = make_rows(
        PackedTensor(pack, encoder.shape, encoder.resize, torch.arange(len(part))),
        torch.from_numpy(table["given"]),
        true=torch.from_numpy(table["true"]),
        classes=index.classes,
        what=str(folder),
        ids=tuple(pack.ids),
        index=torch.from_numpy(table["index"]),
    )

    def take(number: int) -> Rows | None:
        chosen = (part == number).nonzero()[:, 0]
        return rows.take(chosen) if len(chosen) else None

    train = take(TRAIN)
    assert train is not None  # checked when the table was read
    size = f"{encoder.shape[2]}×{encoder.shape[1]}"
    return DataSet(
        name=index.name,
        train=train,
        clean=take(CLEAN),
        test=take(TEST),
        second_test=take(SECOND_TEST),
        encoder_config=encoder.to_json(),
        notes=(*index.notes, f"{folder}: {len(part):,} packed images, {size}, are read during training"),
        total_samples=index.total_samples,
        is_split=index.split is not None,
    )


def _make_encoder(folder: Path, pack: Pack, options: ReadOptions) -> ImageEncoder:
    """Return how images are decoded: as they were packed, or in the size that was asked for."""
    try:
        packed = ImageEncoder.from_json(pack.index.encoder)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / INDEX} is damaged ({error}): restore it, or pack the images again") from error
    channels, height, width = packed.shape
    side = options.image_size
    if side is None and options.external_net and packed.resize is None:
        side = EXTERNAL_NET_SIDE
    shape = (3 if options.external_net else channels, side or height, side or width)
    if shape == packed.shape:
        return packed
    if pack.index.store == PIXELS:
        raise InputError(
            f"{folder} has decoded images of {channels} channels and {width}×{height} pixels, and {shape[0]} channels "
            f"and {shape[2]}×{shape[1]} pixels are needed: use --image-size {width}, or pack the images again without "
            "--decode"
        )
    if packed.resize is None:
        return ImageEncoder(shape, None)
    scaled = ImageSize(resize=packed.resize, crop=height).scaled_to(shape[1])
    return ImageEncoder(shape, None, resize=scaled.resize)
