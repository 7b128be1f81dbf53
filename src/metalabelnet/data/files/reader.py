"""Reads a folder of images or a table into a data set of training, clean and test rows."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.benchmarks.download import ProgressCallback, data_folder
from metalabelnet.data.disk_tensor import GIB, MIB, DiskTensor, sample_memory_bytes
from metalabelnet.data.encoders import (
    EmbeddingEncoder,
    Encoder,
    ImageEncoder,
    TableEncoder,
    TextEncoder,
    encode_all,
    images,
)
from metalabelnet.data.encoders.embeddings import make_embedding_encoder
from metalabelnet.data.files import clean_set, duplicates, listing
from metalabelnet.data.files.list_data import list_test, list_train
from metalabelnet.data.files.table_file import is_image_folder
from metalabelnet.data.parts import CLEAN, LEFT_OUT, TEST, TRAIN
from metalabelnet.data.rows import UNLABELED, DataSet, make_rows
from metalabelnet.errors import InputError
from metalabelnet.input_files.image_files import describe_error, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from metalabelnet.data.files.clean_set import CleanSample
    from metalabelnet.data.files.list_data import ReadOptions
    from metalabelnet.data.files.listing import Columns, Listing

HEADERS_PER_PROGRESS_CALL = 64


class _NoCleanSetError(InputError):
    """There is no clean set, whatever the columns are taken for."""


def read(
    path: Path, options: ReadOptions, folder: Path | None = None, on_samples: ProgressCallback | None = None
) -> DataSet:
    """Read the data set in a folder or a table.

    Parameters
    ----------
    path : Path
        The folder or table.
    options : ReadOptions
        How to read it.
    folder : Path or None
        Where to put samples that do not fit in memory. Default: `data_folder()`.
    on_samples : callable or None
        Called with (what, samples done, samples in all).

    Returns
    -------
    DataSet
        Training rows, and clean and test rows if the options name some.
    """
    notes: list[str] = []
    train, columns = list_train(path, options, notes, on_samples)
    _check_other_files(options)
    try:
        return _read(path, options, folder, on_samples, notes, train, columns)
    except _NoCleanSetError:
        raise
    except InputError as error:
        if is_image_folder(path) or (options.label is not None and (options.image or options.text or options.features)):
            raise
        raise InputError(f"{error} (columns as detected: {columns.describe()})") from error


def _check_other_files(options: ReadOptions) -> None:
    """Raise InputError if the clean set or the test set does not exist."""
    for option, file in (("--clean", options.clean_file), ("--test", options.test)):
        if file is not None and not Path(file).exists():
            raise InputError(f"{option} {file}: no such file or folder; correct the path")


def _read(
    path: Path,
    options: ReadOptions,
    folder: Path | None,
    on_samples: ProgressCallback | None,
    notes: list[str],
    train: Listing,
    columns: Columns,
) -> DataSet:
    clean = clean_set.find_clean_samples(
        train, columns, None if options.clean_file is None else Path(options.clean_file)
    )
    if not clean and not any(train.true_labels):
        column_options = (
            ", or name the column that marks clean rows (--clean-column) or has the true labels that --clean N draws "
            "from (--true-label)"
        )
        raise _NoCleanSetError(
            f"{path}: there is no clean set; give a file of clean labels with --clean FILE"
            f"{'' if is_image_folder(path) else column_options}; `metalabelnet review {path}` helps to build one"
        )
    test = None if options.test is None else list_test(Path(options.test), options, columns, train, on_samples)
    samples = combine(train, clean, test)
    train_positions = (samples.part == TRAIN).nonzero()[:, 0].tolist()
    if not train_positions:
        raise InputError(f"{path}: all rows are clean, which leaves no training rows; mark fewer")
    parts = ["training", *(["clean"] if clean else []), *(["test"] if test else [])]
    on_headers, on_encoded = (
        None if on_samples is None else functools.partial(on_samples, text)
        for text in (f"reading headers of {path} (training)", f"reading {path} ({', '.join(parts)})")
    )
    items, ids = ([values[k] for k in train_positions] for values in (samples.items, samples.ids))
    _check_encoder_options(columns, options)
    encoder = fit_encoder(items, ids, columns, options, notes, on_headers, folder)
    x, encoded, failures = encode_all(
        encoder,
        samples.items,
        samples.ids,
        memory_bytes=sample_memory_bytes(options.memory_limit, options.gpu_free_bytes, options.concurrent_runs),
        folder=data_folder(folder),
        skip_errors=options.on_error == "skip",
        on_samples=on_encoded,
    )
    notes += encoder.notes()
    if failures:
        notes.append(f"{len(failures)} of {len(samples.items)} samples left out: {listing.shorten_list(failures)}")
    if isinstance(x, DiskTensor):
        size = f"{x.nbytes / GIB:.1f} GiB" if x.nbytes >= GIB else f"{x.nbytes / MIB:.1f} MiB"
        notes.append(f"{size} of samples exceed the memory limit: they are read from disk during training")
    index = torch.tensor(encoded, dtype=torch.long)
    given, true, part = samples.given[index], samples.true[index], samples.part[index]
    row_ids = tuple(samples.ids[k] for k in encoded)
    rows = make_rows(x, given, true=true, classes=samples.classes, what=str(path), ids=row_ids, index=index)
    if train.annotations is not None:
        numbers = {name: k for k, name in enumerate(samples.classes)}
        annotations = train.annotations.to_numbers(numbers, len(samples.items)).take(index.numpy())
        rows = dataclasses.replace(rows, annotations=annotations)
    if clean:
        count, inside = int((part == CLEAN).sum()), int((index[part == CLEAN] < len(train.items)).sum())
        notes.append(
            f"{count} clean samples" + (f", {inside} of them removed from the training rows" if inside else "")
        )
    if excluded := int((samples.part == LEFT_OUT).sum()):
        notes.append(
            f"{excluded} samples are marked as clean but have no label in {options.clean_file}: they are neither clean "
            "nor trained on"
        )
    has_train = (part == TRAIN).any()
    part = remove_duplicates(duplicates.digests(rows.x), row_ids, part, notes, table=columns.kind == "table")
    if has_train and not (part == TRAIN).any():
        raise InputError(f"{path}: every training sample is identical to a clean one, which leaves no training rows")
    return DataSet(
        name=path.stem,
        train=rows.take((part == TRAIN).nonzero()[:, 0]),
        clean=rows.take((part == CLEAN).nonzero()[:, 0]) if clean else None,
        test=rows.take((part == TEST).nonzero()[:, 0]) if test else None,
        encoder_config=encoder.to_json(),
        cells_digest=_cells_digest(encoder, samples.items),
        notes=tuple(notes),
        total_samples=len(train.items),
    )


def _cells_digest(encoder: Encoder, rows: Sequence[Any]) -> str:
    """Return a digest of what samples were encoded from: the cells of all rows, or files; "" for pixels."""
    if isinstance(encoder, EmbeddingEncoder):
        return encoder.encoded_digest
    if encoder.kind == "image":
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def remove_duplicates(
    digests: Sequence[bytes], ids: Sequence[str], part: Tensor, notes: list[str], *, table: bool
) -> Tensor:
    """Return the part of each sample, with duplicates of clean samples left out of training.

    Duplicates in the test part are reported. Identical table rows may be different samples: they stay.
    """
    identical = duplicates.is_among(digests, duplicates.select(digests, part == CLEAN)) & (part == TRAIN)
    if identical.any():
        names = [ids[k] for k in identical.nonzero()[:, 0].tolist()]
        action = "stay" if table else "are left out"
        notes.append(
            f"{len(names)} training samples are identical to clean ones and {action}: {listing.shorten_list(names)}"
        )
    part = part if table else torch.where(identical, LEFT_OUT, part)
    used = duplicates.select(digests, (part == TRAIN) | (part == CLEAN))
    in_test = (duplicates.is_among(digests, used) & (part == TEST)).nonzero()[:, 0].tolist()
    notes += duplicates.duplicates_note([ids[k] for k in in_test], int((part == TEST).sum()), table=table)
    return part


@dataclass(frozen=True, kw_only=True)
class AllSamples:
    """The samples of all parts, one after the other, with numbers for labels and parts."""

    items: list[Any]
    ids: list[str]
    given: Tensor
    true: Tensor
    part: Tensor
    classes: tuple[str, ...]


def combine(train: Listing, clean: list[CleanSample], test: Listing | None) -> AllSamples:
    """Concatenate the samples of the data, the clean samples outside of it, and the test samples.

    The label of a row that a column marks as clean is its clean label, so that its given label is the majority vote of
    its annotators, or unknown; a row with a label in the clean set's file has both. A marked row that the file excludes
    is left out.
    """
    inside = [sample for sample in clean if sample.position is not None]
    outside = [sample for sample in clean if sample.position is None]
    n, m = len(train.items), len(train.items) + len(outside)
    items = [*train.items, *(sample.item for sample in outside), *(test.items if test else [])]
    classes = listing.class_names(train, [sample.label for sample in clean], test)
    number = {name: k for k, name in enumerate(classes)} | {"": UNLABELED}
    given, true = torch.full((len(items),), UNLABELED), torch.full((len(items),), UNLABELED)
    votes = [""] * n if train.annotations is None else train.annotations.majority_vote(n)
    given[:n] = torch.tensor(
        [
            number[vote if is_clean else label]
            for label, vote, is_clean in zip(train.labels, votes, train.is_clean, strict=True)
        ]
    )
    true[:n] = torch.tensor([number[label] for label in train.true_labels])
    part = torch.full((len(items),), TRAIN)
    part[:n][torch.tensor(train.is_clean, dtype=torch.bool)] = LEFT_OUT
    part[n:m], part[m:] = CLEAN, TEST
    for position, sample in [*((sample.position, sample) for sample in inside), *enumerate(outside, n)]:
        true[position], part[position] = number[sample.label], CLEAN
    true[m:] = torch.tensor([number[label] for label in test.labels] if test else [])
    ids = [*train.ids, *(sample.id for sample in outside), *(test.ids if test else [])]
    return AllSamples(items=items, ids=ids, given=given, true=true, part=part, classes=classes)


def _check_encoder_options(columns: Columns, options: ReadOptions) -> None:
    """Raise InputError for an option of another kind of samples."""
    text_features = None if options.text_features == "auto" else options.text_features
    for option, value, kind in (
        ("image-size", options.image_size, "image"),
        ("text-features", text_features, "text"),
    ):
        if value is not None and options.encoder is not None:
            raise InputError(
                f"--{option} {value} has no effect with --encoder {options.encoder}; leave one of them out"
            )
        if value is not None and columns.kind != kind:
            raise InputError(f"--{option} {value} is for {kind}s, and these samples have none; leave it out")


def fit_encoder(
    items: list[Any],
    ids: list[str],
    columns: Columns,
    options: ReadOptions,
    notes: list[str],
    on_headers: Callable[[int, int], None] | None,
    folder: Path | None = None,
) -> Encoder:
    """Return the encoder, fitted to the training samples, or the pretrained one of the options."""
    if options.encoder is not None:
        column = columns.samples[0] if columns.samples else None
        return make_embedding_encoder(columns.kind, options.encoder, column, folder, options.device)
    if columns.kind == "table":
        encoder = TableEncoder.fit(columns.samples, items)
        configs = encoder.column_configs
        for form in dict.fromkeys(config["number_format"] for config in configs if "number_format" in config):
            names = [config["name"] for config in configs if config.get("number_format") == form]
            notes.append(f"numbers are written like {form} in {listing.shorten_list(names)}")
        return encoder
    if columns.kind == "text":
        features = (
            ("both" if options.sparse_text else "word") if options.text_features == "auto" else options.text_features
        )
        analyzers = ("word", "char") if features == "both" else (features,)
        return TextEncoder.fit(columns.samples[0], items, analyzers=analyzers, sparse=options.sparse_text)
    headers = []
    results = images.map_in_threads(read_header, items)
    for done, (name, result) in enumerate(zip(ids, results, strict=True), start=1):
        if on_headers is not None and (done % HEADERS_PER_PROGRESS_CALL == 0 or done == len(ids)):
            on_headers(done, len(ids))
        if not isinstance(result, Exception):
            headers.append(result)
        elif options.on_error != "skip":
            raise InputError(f"{name} {describe_error(result)}; repair it, or skip such samples with --on-error skip")
    if not headers:
        raise InputError(f"none of the {len(items)} images can be read: repair them; --on-error stop names the first")
    shape = images.choose_shape(headers, options.image_size, external_net=options.external_net)
    color = "gray" if shape[0] == 1 else "color"
    hint = "" if options.image_size else " (--image-size to change)"
    notes.append(f"images are resized to {shape[2]}×{shape[1]}, {color}{hint}")
    return ImageEncoder(shape, columns.samples[0] if columns.samples else None)
