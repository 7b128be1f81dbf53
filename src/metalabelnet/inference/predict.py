"""Predict new samples with the model of a finished run. Samples are read and encoded in chunks."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.disk_tensor import chunk_size
from metalabelnet.data.encoders import EmbeddingEncoder, ImageEncoder
from metalabelnet.data.files import listing, npz, table_file
from metalabelnet.data.files.embedded_images import sample_id
from metalabelnet.errors import InputError, as_path
from metalabelnet.inference.load import calibrated_probabilities, load_method
from metalabelnet.input_files.image_files import SUFFIXES, is_image
from metalabelnet.labels.label_table import probability_cells, probability_columns
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from metalabelnet.data.encoders import Encoder

NamedSample = tuple[str, Any]  # the id of a sample, and its tensor or what it is read from
# Why a run with this kind of encoder does not accept arrays: their columns may have another meaning.
NEEDS_TABLE = {
    "table": "this run was trained on a table, whose columns are identified by name and standardized",
    "text": "this run was trained on texts, which have to be encoded",
}


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """How new samples are read.

    Parameters
    ----------
    image, text, id : str, optional
        Columns of a table, if they differ from those of the training data.
    on_error : {"stop", "skip"}, default "stop"
        What to do when a sample cannot be read.
    """

    image: str | None = None
    text: str | None = None
    id: str | None = None
    on_error: str = "stop"


class Predictor:
    """The model of a finished run with its encoder.

    Parameters
    ----------
    folder : Path or str
        Folder of a finished run.
    net : str, optional
        MODULE:FUNCTION of the user's network, if the run was trained with one. Its code is executed.
    device : str, default "auto"
        PyTorch device.

    Attributes
    ----------
    classes : tuple of str
        Class names.
    shape : tuple of int
        Shape of an encoded sample.

    Raises
    ------
    InputError
        If the folder is not a finished run, or its network cannot be rebuilt.

    Examples
    --------
    >>> import tempfile
    >>> from metalabelnet.inference.predict import Predictor
    >>> from metalabelnet.train import make_run, train
    >>> run = make_run("digits", method="clean-only", epochs=1, limit=100, device="cpu")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = train(run, folder=f"{folder}/run")
    ...     p = Predictor(f"{folder}/run").probabilities(result.labels.rows.x[:3])
    >>> p.shape
    torch.Size([3, 10])

    Samples in files and folders: ``rows = list(predictor.predict(["new-images"]))``.
    """

    def __init__(self, folder: Path | str, *, net: str | None = None, device: str = "auto") -> None:
        self.files = RunFolder(folder)
        self.files.summary()  # raises InputError if the run is not finished
        metadata = self.files.metadata()
        self.classes, self.shape = tuple(metadata["classes"]), tuple(metadata["shape"])
        self.encoder = self.files.encoder()
        if self.encoder is None and len(self.shape) == 3:
            self.encoder = ImageEncoder(self.shape, None)
        if self.encoder is not None and self.encoder.shape != self.shape:
            raise InputError(
                f"{folder}: encoder.json has samples of shape {self.encoder.shape}, but the model needs {self.shape}: "
                "copy the run folder again"
            )
        self.method = load_method(self.files, net=net, device=device)
        if isinstance(self.encoder, EmbeddingEncoder):
            self.encoder.device = self.method.task.train.x.device

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the calibrated probabilities of encoded samples.

        Parameters
        ----------
        x : Tensor
            (N, *shape) encoded samples.

        Returns
        -------
        Tensor
            (N, classes), on the CPU.
        """
        logits = self.method.logits(x.to(self.method.task.train.x.device))
        return calibrated_probabilities(self.files, logits).cpu()

    def columns(self) -> list[str]:
        """Return the names of the columns of `predict`."""
        return ["id", "label", "confidence", *probability_columns(self.classes)]

    def predict(
        self,
        sources: Sequence[Path | str],
        options: PredictOptions = PredictOptions(),  # noqa: B008 (frozen)
        on_samples: Callable[[int, int], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
        on_listed: Callable[[int], None] | None = None,
    ) -> Iterator[list[str]]:
        """Predict every sample in files and folders. All sources are checked before the first sample is read.

        Parameters
        ----------
        sources : sequence of Path or str
            Images, folders of images, tables or .npz files.
        options : PredictOptions, optional
            How samples are read.
        on_samples : callable, optional
            Called with the number of samples done and the total (0: unknown).
        on_failure : callable, optional
            Called with a message for each sample that is skipped.
        on_listed : callable, optional
            Called with the number of files found so far, while a folder is listed.

        Yields
        ------
        list of str
            A row of `columns`: id, label, confidence and probabilities.

        Raises
        ------
        InputError
            If a source does not fit the run, or a sample cannot be read and `options.on_error` is "stop".
        """
        if isinstance(sources, str | os.PathLike):
            raise InputError(f"sources={str(sources)!r}: give a list of paths")
        paths = [as_path("sources", source) for source in sources]
        self._check_options(paths, options)
        total, samples = self._find_all(paths, options, on_listed)
        done = 0
        if on_samples is not None:
            on_samples(0, total)
        for chunk in _split_into_chunks(samples, chunk_size(self.shape)):
            ids, x = self._encode(chunk, options, on_failure)
            if ids:
                yield from map(self._format_row, ids, self.probabilities(x))
            done += len(chunk)
            if on_samples is not None:
                on_samples(done, total)
        if not done:
            raise InputError(f"{', '.join(map(str, paths))}: no samples found; give a file or folder that has samples")

    def _encode(
        self, chunk: list[NamedSample], options: PredictOptions, on_failure: Callable[[str], None] | None
    ) -> tuple[list[str], Tensor]:
        """Return ids and tensors of the samples that can be read."""
        if self.encoder is None or isinstance(chunk[0][1], torch.Tensor):
            return [name for name, _ in chunk], torch.stack([x for _, x in chunk])
        describe = self.encoder.describe_sample
        ids, encoded = [], []
        for (name, _), result in zip(chunk, self.encoder.encode([item for _, item in chunk]), strict=True):
            if not isinstance(result, str):
                ids.append(name)
                encoded.append(result)
            elif options.on_error != "skip":
                raise InputError(f"{describe(name)} {result}; repair it, or skip such samples with --on-error skip")
            elif on_failure is not None:
                on_failure(f"{describe(name)} {result}")
        return ids, torch.stack(encoded) if encoded else torch.empty(0)

    def _format_row(self, name: str, p: Tensor) -> list[str]:
        values = p.double().numpy()
        best = int(values.argmax())
        return [name, self.classes[best], f"{values[best]:.6f}", *probability_cells(self.classes, values)]

    def _check_options(self, sources: Sequence[Path], options: PredictOptions) -> None:
        """Raise InputError if an option would have no effect."""
        kind = "array" if self.encoder is None else self.encoder.kind
        for option, column in (("image", options.image), ("text", options.text), ("id", options.id)):
            if column is None:
                continue
            if option not in ("id", kind):
                raise InputError(
                    f"--{option} {column}: this run was trained on {kind}s, not on {option}s; leave it out"
                )
            if not any(
                table_file.is_table_file(source) and not table_file.is_image_folder(source) for source in sources
            ):
                raise InputError(
                    f"--{option} {column} names a column of a table, and no input is a table; leave it out"
                )

    def _find_all(
        self, sources: Sequence[Path], options: PredictOptions, on_listed: Callable[[int], None] | None
    ) -> tuple[int, Iterable[NamedSample]]:
        """Return the number of samples (0: unknown) and the samples. Ids start with the source if there are several."""
        parts = [self._find(source, options, on_listed) for source in sources]
        if len(parts) == 1:
            return parts[0]
        totals = [total for total, _ in parts]
        samples = (
            (source.as_posix() if source.name == name else f"{source.as_posix()}/{name}", item)
            for source, (_, part) in zip(sources, parts, strict=True)
            for name, item in part
        )
        return sum(totals) if all(totals) else 0, samples

    def _find(
        self, source: Path, options: PredictOptions, on_listed: Callable[[int], None] | None
    ) -> tuple[int, Iterable[NamedSample]]:
        """Return the number of samples of a file or folder (0: unknown), and the samples."""
        kind = None if self.encoder is None else self.encoder.kind
        if not source.exists():
            raise InputError(f"{source} does not exist: give a file or folder of samples")
        if source.suffix.lower() == ".npz":
            return self._find_arrays(source, kind)
        if kind == "image" and table_file.is_image_folder(source):
            files = listing.image_files(source, on_listed)
            if not files:
                raise InputError(f"{source}: no images found (*{', *'.join(SUFFIXES)})")
            return len(files), ((file.relative_to(source).as_posix(), file) for file in files)
        if kind == "image" and is_image(source):
            return 1, [(source.name, source)]
        if table_file.is_table_file(source) and self.encoder is not None:
            return 0, self._find_rows(source, options, self.encoder)
        what = {"image": "an image, a folder of images or a table of paths", None: "an .npz file"}
        raise InputError(f"{source} cannot be predicted with this run: give {what.get(kind, 'a table')}")

    def _find_arrays(self, source: Path, kind: str | None) -> tuple[int, Iterable[NamedSample]]:
        if kind in NEEDS_TABLE:
            raise InputError(f"{source}: {NEEDS_TABLE[kind]}; give a table ({', '.join(table_file.SUFFIXES)})")
        count, shape, chunks = npz.stream_samples(source, self.classes)
        if isinstance(self.encoder, EmbeddingEncoder) and len(shape) == 3:  # images, which `_encode` embeds
            return count, ((str(k), x.numpy()) for k, x in enumerate(itertools.chain.from_iterable(chunks)))
        if shape != self.shape:
            raise InputError(f"{source}: samples have shape {shape}, but the model needs {self.shape}")
        return count, ((str(k), x) for k, x in enumerate(itertools.chain.from_iterable(chunks)))

    def _find_rows(self, source: Path, options: PredictOptions, encoder: Encoder) -> Iterator[NamedSample]:
        names = table_file.column_names(source)
        columns = encoder.columns
        if options.image or options.text:
            columns = [str(options.image or options.text)]
        elif not columns:  # the run was trained on a folder of images
            detected = listing.find_columns(source, listing.Columns(), None, needs_label=False)
            if detected.kind != "image":
                raise InputError(
                    f"{source}: no column of image paths detected: choose one with --image from "
                    f"{listing.shorten_list(names)}"
                )
            columns = list(detected.samples)
        others = [name for name in names if name not in set(columns)]
        id_column = options.id or listing.id_column(others)
        all_columns = [*columns, *([id_column] if id_column is not None else [])]
        table_file.column_positions(all_columns, names, source)  # raises InputError for a missing column
        return self._read_rows(source, all_columns, len(columns), encoder)

    @staticmethod
    def _read_rows(source: Path, columns: list[str], width: int, encoder: Encoder) -> Iterator[NamedSample]:
        """Iterate over the rows of a table: `width` columns of the sample, then perhaps a column of ids."""
        for number, cells in enumerate(table_file.iterate_rows(source, columns)):
            item = source.parent / cells[0] if encoder.kind == "image" else cells[:width]
            default_id = sample_id(cells[0], number) if encoder.kind == "image" else str(number)
            yield (cells[-1] if len(columns) > width else default_id), item


def _split_into_chunks(samples: Iterable[NamedSample], size: int) -> Iterator[list[NamedSample]]:
    """Split samples into chunks of at most `size`, each all tensors or all samples to be read."""
    for _, group in itertools.groupby(samples, key=lambda sample: isinstance(sample[1], torch.Tensor)):
        while chunk := list(itertools.islice(group, size)):
            yield chunk
