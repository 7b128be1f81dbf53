"""What a finished run says about new samples, however many there are: they are read, encoded and forgotten."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.core.calibration import at_temperature
from metalabelnet.data.disk_tensor import chunk_size
from metalabelnet.data.encoders import images
from metalabelnet.data.encoders.kinds import Images, from_json
from metalabelnet.data.files import listing, npz_stream, table_file
from metalabelnet.errors import InputError
from metalabelnet.inference.load import load_method
from metalabelnet.labels.label_table import probability_cells, probability_columns
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from metalabelnet.data.encoders.encoder import Inputs

Named = tuple[str, Any]  # a sample's name, and what it is read from
# Why a run of this kind takes no bare numbers: they may have the right width, and mean something else.
NAMED_COLUMNS = {
    "table": "this run was trained on a table, whose columns are found by name and standardised",
    "text": "this run was trained on texts, which are encoded word by word",
}


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How new samples are to be read: other columns than those the run was trained on, and what an error does."""

    image: str | None = None
    text: str | None = None
    id: str | None = None
    on_error: str = "stop"


class Predictor:
    """The model of a run, with what makes samples into numbers."""

    def __init__(self, folder: Path, *, net: str | None = None, device: str = "auto") -> None:
        self.files = RunFolder(folder)
        self.files.summary()  # refuses what is not a finished run
        about, inputs = self.files.about(), self.files.inputs()
        self.classes, self.shape = tuple(about["classes"]), tuple(about["shape"])
        self.inputs: Inputs | None = None
        if inputs is not None:
            self.inputs = from_json(inputs, folder / "inputs.json")
        elif len(self.shape) == 3:
            self.inputs = Images(self.shape, None)
        if self.inputs is not None and self.inputs.shape != self.shape:
            raise InputError(
                f"{folder}: inputs.json gives samples of shape {self.inputs.shape}, the model takes {self.shape}"
            )
        self.method = load_method(self.files, net=net, device=device)

    def probabilities(self, x: Tensor) -> Tensor:
        """The calibrated probability of each class for samples as they are encoded."""
        logits = self.method.logits(x.to(self.method.task.train.x.device))
        return at_temperature(logits, self.files.temperature()).cpu()

    def header(self) -> list[str]:
        """The columns of a table of predictions."""
        return ["id", "label", "confidence", *probability_columns(self.classes)]

    def rows(
        self,
        sources: Sequence[Path],
        reader: Reader,
        on_samples: Callable[[int, int], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> Iterator[list[str]]:
        """A row for each sample in these files and folders, which are all looked for before the first is read.

        `on_samples` hears how many are done, of how many (0: unknown).
        """
        total, found = self._find_all(sources, reader)
        done = 0
        if on_samples is not None:
            on_samples(0, total)
        for some in _in_chunks(found, chunk_size(self.shape)):
            names, x = self._encode(some, reader, on_failure)
            if names:
                yield from map(self._row, names, self.probabilities(x))
            done += len(some)
            if on_samples is not None:
                on_samples(done, total)
        if not done:
            raise InputError(f"{', '.join(map(str, sources))}: has no samples; give a file or folder that has some")

    def _encode(
        self, some: list[Named], reader: Reader, on_failure: Callable[[str], None] | None
    ) -> tuple[list[str], Tensor]:
        if self.inputs is None or isinstance(some[0][1], torch.Tensor):
            return [name for name, _ in some], torch.stack([x for _, x in some])
        named = self.inputs.named
        names, good = [], []
        for (name, _), result in zip(some, self.inputs.encode([item for _, item in some]), strict=True):
            if not isinstance(result, str):
                names.append(name)
                good.append(result)
            elif reader.on_error != "skip":
                raise InputError(f"{named(name)} {result}; repair it, or leave such samples out with --on-error skip")
            elif on_failure is not None:
                on_failure(f"{named(name)} {result}")
        return names, torch.stack(good) if good else torch.empty(0)

    def _row(self, name: str, p: Tensor) -> list[str]:
        values = p.double().numpy()
        best = int(values.argmax())
        return [name, self.classes[best], f"{values[best]:.6f}", *probability_cells(self.classes, values)]

    def _find_all(self, sources: Sequence[Path], reader: Reader) -> tuple[int, Iterable[Named]]:
        """The samples of all sources. Those of several may have one name: there each has its source in front."""
        parts = [self._find(source, reader) for source in sources]
        if len(parts) == 1:
            return parts[0]
        totals = [total for total, _ in parts]
        named = (
            (source.as_posix() if source.name == name else f"{source.as_posix()}/{name}", item)
            for source, (_, found) in zip(sources, parts, strict=True)
            for name, item in found
        )
        return sum(totals) if all(totals) else 0, named

    def _find(self, source: Path, reader: Reader) -> tuple[int, Iterable[Named]]:
        """The samples of a file or folder, and how many there are where that is known."""
        kind = None if self.inputs is None else self.inputs.kind
        if not source.exists():
            raise InputError(f"{source} does not exist: give a file or folder of samples")
        if source.suffix.lower() == ".npz":
            return self._find_numbers(source, kind)
        if kind == "image" and source.is_dir():
            files = listing.image_files(source)
            if not files:
                raise InputError(f"{source}: has no images (*{', *'.join(images.SUFFIXES)})")
            return len(files), ((file.relative_to(source).as_posix(), file) for file in files)
        if kind == "image" and images.is_image(source):
            return 1, [(source.name, source)]
        if table_file.is_sheet(source) and self.inputs is not None:
            for kinds, column in (("image", reader.image), ("text", reader.text)):
                if column is not None and kind != kinds:
                    raise InputError(
                        f"--{kinds} {column}: this run was trained on {kind}s, not on {kinds}s; leave it out"
                    )
            return 0, self._find_rows(source, reader, self.inputs)
        what = {"image": "an image, a folder of images, a table of paths", None: "an .npz file"}
        raise InputError(f"{source}: this run is asked about {what.get(kind, 'a table')}")

    def _find_numbers(self, source: Path, kind: str | None) -> tuple[int, Iterable[Named]]:
        if kind in NAMED_COLUMNS:
            raise InputError(f"{source}: {NAMED_COLUMNS[kind]}; give a table ({', '.join(table_file.SUFFIXES)})")
        count, shape, pieces = npz_stream.pieces(source, self.classes)
        if shape != self.shape:
            raise InputError(f"{source}: samples of shape {shape} do not fit, the model takes {self.shape}")
        return count, ((str(k), x) for k, x in enumerate(itertools.chain.from_iterable(pieces)))

    def _find_rows(self, source: Path, reader: Reader, inputs: Inputs) -> Iterator[Named]:
        names = table_file.header(source)
        columns = inputs.columns
        if reader.image or reader.text:
            columns = [str(reader.image or reader.text)]
        elif not columns:  # the run was trained on a folder of images
            found = listing.find_columns(source, listing.Columns(), None, needs_label=False)
            if found.kind != "image":
                raise InputError(f"{source}: which column has the paths of images: {listing.some(names)}? give --image")
            columns = list(found.samples)
        taken = set(columns)
        id_column = reader.id or listing.id_column([name for name in names if name not in taken])
        wanted = [*columns, *([id_column] if id_column is not None else [])]
        table_file.find(wanted, names, source)
        return self._cells(source, wanted, len(columns), inputs)

    @staticmethod
    def _cells(source: Path, wanted: list[str], width: int, inputs: Inputs) -> Iterator[Named]:
        for number, cells in enumerate(table_file.rows(source, wanted)):
            item = source.parent / cells[0] if inputs.kind == "image" else cells[:width]
            own = cells[0] if inputs.kind == "image" else str(number)
            yield (cells[-1] if len(wanted) > width else own), item


def _in_chunks(found: Iterable[Named], size: int) -> Iterator[list[Named]]:
    """So many at a time, those that are numbers already apart from those that are to be read."""
    for _, alike in itertools.groupby(found, key=lambda one: isinstance(one[1], torch.Tensor)):
        while some := list(itertools.islice(alike, size)):
            yield some
