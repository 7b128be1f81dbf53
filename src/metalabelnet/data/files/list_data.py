"""Lists the samples, labels and clean set of a folder of images or a table, without reading any sample."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.data.cells import is_identifier, is_missing
from metalabelnet.data.files import annotation_file, clean_set, listing, table_file
from metalabelnet.data.packed.index import is_pack
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.files.clean_set import CleanSample
    from metalabelnet.data.files.listing import Columns, Listing
    from metalabelnet.run_options import RunOptions


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for reading a folder of images or a table. Columns that are None are detected and reported.

    Attributes
    ----------
    image, text, features : str or None
        Column of image paths; column of texts; feature columns, separated by commas. At most one of the three.
    label, id : str or None
        Columns of given labels and of ids.
    clean_column : str or None
        Column that marks the rows of the clean set.
    true_label : str or None
        Column of true labels, where known.
    clean_file : str or None
        Table or folder of the clean set.
    annotations : str or None
        Table of labels by several annotators.
    test : str or None
        Table or folder of test samples.
    image_size : int or None
        Side in pixels of the square that images are resized to.
    on_error : str
        `stop` or `skip`: what to do with samples that cannot be read.
    memory_limit : float or None
        GiB of memory for samples; larger data stays on disk. Default: half of the free memory.
    encoder : str or None
        Pretrained encoder of images or texts (`metalabelnet.data.embeddings`). Default: pixels; TF-IDF of texts.
    text_features : str
        Terms of TF-IDF: `word`, `char`, `both`, or `auto` (`both` if sparse, else `word`).
    sparse_text : bool
        Whether TF-IDF vectors are kept in a sparse matrix, with many more terms.
    external_net : bool
        Whether the network is one of timm or torchvision, or an encoder, which take larger images.
    gpu_free_bytes : int or None
        Free memory of the GPU that samples are moved to; None: samples stay on the CPU.
    concurrent_runs : int
        The number of runs that hold the samples at the same time.
    adds_noise : bool
        Whether label noise is added later. If so, the labels of an .npz file count as true labels.
    split : str
        `general` or `paper`: the clean and test parts of data sets that have several.
    workers : int or None
        The number of processes that decode packed images; 0: none. Default: its share of the cores, at
        most 16.
    """

    image: str | None = None
    text: str | None = None
    features: str | None = None
    label: str | None = None
    id: str | None = None
    clean_column: str | None = None
    true_label: str | None = None
    clean_file: str | None = None
    annotations: str | None = None
    test: str | None = None
    image_size: int | None = None
    on_error: str = "stop"
    memory_limit: float | None = None
    encoder: str | None = None
    text_features: str = "auto"
    sparse_text: bool = False
    external_net: bool = False
    gpu_free_bytes: int | None = None
    concurrent_runs: int = 1
    adds_noise: bool = False
    split: str = "general"
    workers: int | None = None

    @property
    def device(self) -> torch.device:
        """Where an encoder computes: on the GPU if samples are moved to one."""
        import torch  # here, because listing samples needs no PyTorch

        return torch.device("cpu" if self.gpu_free_bytes is None else "cuda")

    @classmethod
    def of_run(cls, run: RunOptions) -> ReadOptions:
        """Return how the data of a run is read."""
        names = {f.name for f in dataclasses.fields(run)}
        fields = {f.name: getattr(run, f.name) for f in dataclasses.fields(cls) if f.name in names}
        external_net = run.net.startswith(("timm:", "torchvision:")) or run.encoder is not None
        return cls(**fields, external_net=external_net, adds_noise=run.noise != "none")


def is_folder_or_table(path: Path) -> bool:
    """Whether the path is a folder of images, or the name of a table."""
    return (path.is_dir() and not is_pack(path)) or table_file.is_table_file(path)


@dataclass(frozen=True, kw_only=True)
class ListedData:
    """The contents of a folder or a table, before samples are read.

    Attributes
    ----------
    rows : Listing
        All samples with their labels.
    columns : Columns
        The roles of the columns of a table.
    clean : list of CleanSample
        The clean set.
    missing_ids : list of str
        Ids of clean samples that do not exist (any more).
    """

    rows: Listing
    columns: Columns
    clean: list[CleanSample]
    missing_ids: list[str]


def list_data(path: Path, options: ReadOptions, on_samples: ProgressCallback | None = None) -> ListedData:
    """List the samples of a folder or a table without reading them. It may have no clean set."""
    rows, columns = list_train(path, options, [], on_samples)
    missing_ids: list[str] = []
    file = None if options.clean_file is None else Path(options.clean_file)
    clean = clean_set.find_clean_samples(rows, columns, file, missing_ids)
    return ListedData(rows=rows, columns=columns, clean=clean, missing_ids=missing_ids)


def _report_listed(path: Path, on_samples: ProgressCallback | None) -> Callable[[int], None] | None:
    """Return the callback for the number of samples listed so far; their total is unknown."""
    return None if on_samples is None else lambda count: on_samples(f"listing {path}", count, 0)


def list_train(
    path: Path, options: ReadOptions, notes: list[str], on_samples: ProgressCallback | None = None
) -> tuple[Listing, Columns]:
    """List the training samples, and find the roles of a table's columns; `notes` receives messages about them."""
    on_listed = _report_listed(path, on_samples)
    if table_file.is_image_folder(path):
        for name in ("image", "text", "features", "label", "id", "clean_column", "true_label"):
            if getattr(options, name):
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} names a column of a table, and {path} is a folder; leave it out")
        files = listing.all_files(path, on_listed)
        if others := listing.count_other_files(files):
            counts = [f"{count} {suffix}" for suffix, count in others.most_common()]
            notes.append(f"{others.total()} files in {path} are not images ({listing.shorten_list(counts)}): left out")
        rows, columns = listing.from_files(path, files), listing.Columns()
        _add_annotations(rows, columns, options, notes)
        return rows, columns
    if sum(name is not None for name in (options.image, options.text, options.features)) > 1:
        raise InputError("a sample is an image, a text or a row of features: give one of --image, --text, --features")
    features = None
    if options.features is not None:
        features = list(dict.fromkeys(name.strip() for name in options.features.split(",") if name.strip()))
    if features == []:
        raise InputError(f"--features {options.features!r} names no column; give names separated by commas")
    requested = listing.Columns(
        kind="image" if options.image is not None else "text" if options.text is not None else "table",
        samples=tuple(name for name in (options.image, options.text) if name is not None),
        label=options.label,
        id=options.id,
        clean_column=options.clean_column,
        true_label=options.true_label,
    )
    columns = listing.find_columns(path, requested, features, needs_label=options.annotations is None)
    rows = listing.from_table(path, columns, on_listed=on_listed)
    if columns.kind == "table" and features is None:  # guessed from the first rows; now checked on all rows
        useless = [k for k in range(len(columns.samples)) if _is_useless([row[k] for row in rows.items])]
        columns, rows = listing.drop_columns(columns, rows, useless)
    notes.append(f"{path}: {columns.describe()}")
    if (repeated := len(rows.ids) - len({*rows.ids})) > 0:
        notes.append(f"{repeated} of {len(rows.ids)} samples have the same {columns.id or 'path'} as another one")
    _add_annotations(rows, columns, options, notes)
    return rows, columns


def _add_annotations(rows: Listing, columns: Columns, options: ReadOptions, notes: list[str]) -> None:
    """Read the annotations of the options; samples without a given label get the majority vote."""
    if options.annotations is None:
        return
    rows.annotations = annotation_file.list_annotations(Path(options.annotations), rows, columns)
    votes = rows.annotations.majority_vote(len(rows.items))
    unlabeled = rows.labels.count("")
    rows.labels = [label or vote for label, vote in zip(rows.labels, votes, strict=True)]
    notes.append(annotation_file.describe(rows.annotations, unlabeled - rows.labels.count("")))


def _is_useless(cells: Sequence[str]) -> bool:
    return is_identifier(cells) or all(map(is_missing, cells))


def list_test(
    path: Path, options: ReadOptions, columns: Columns, train: Listing, on_samples: ProgressCallback | None
) -> Listing:
    """List the test samples, in the columns of the training samples."""
    on_listed = _report_listed(path, on_samples)
    if table_file.is_image_folder(path):
        _check_kind(path, "image", columns.kind)
        rows = listing.from_folder(path, on_listed)
    elif path.exists() and not table_file.is_table_file(path):
        raise InputError(f"{path}: a test set is a folder of images, or a table ({', '.join(table_file.SUFFIXES)})")
    else:
        label = columns.label or options.label
        requested = listing.Columns(kind=columns.kind, samples=columns.samples, label=label)
        test_columns = listing.find_columns(path, requested, None)
        _check_kind(path, test_columns.kind, columns.kind)
        rows = listing.from_table(path, test_columns, train, on_listed)
    if "" in rows.labels:
        name = rows.ids[rows.labels.index("")]
        raise InputError(f"{path}: {name} has no label, but every test sample needs its true label")
    return rows


def _check_kind(path: Path, kind: str, train_kind: str) -> None:
    """Raise InputError if test samples are of another kind than training samples."""
    plural = {"image": "images", "text": "texts", "table": "rows of features"}
    if kind != train_kind:
        raise InputError(
            f"--test {path}: contains {plural[kind]}, but the training data contains {plural[train_kind]}; give the "
            "same kind"
        )
