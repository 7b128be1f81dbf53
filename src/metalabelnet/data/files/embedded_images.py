"""Images in the cells of a table, written to files once, so that they are read like other image files.

The files are in `embedded-images` of the data folder ($METALABELNET_DATA, else ~/.cache/metalabelnet), in a subfolder
for each column of a file of a given path, size and time of change. They can be deleted: they are written again when
they are needed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from metalabelnet.atomic_write import write_atomically
from metalabelnet.data.benchmarks.download import data_folder

FOLDER = "embedded-images"
SUFFIX_BY_START = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG\r\n": ".png",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"RIFF": ".webp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
DEFAULT_SUFFIX = ".png"  # of a content that the decoder will not accept


def is_embedded(cell: str) -> bool:
    """Whether the cell is the path of an image that was in the table itself."""
    return Path(cell).is_relative_to(data_folder().absolute() / FOLDER)


def sample_id(cell: str, row: int) -> str:
    """Return the id of an image by its cell: the path in the table, or the row number of an image in the table."""
    return str(row) if is_embedded(cell) else cell


class EmbeddedImages:
    """The images in a column of a file."""

    def __init__(self, file: Path, column: str) -> None:
        status = file.stat()
        key = f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{column}"
        name = hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=16).hexdigest()
        self.folder = data_folder() / FOLDER / name
        self.has_images: bool | None = None  # whether a column of bytes has images, by its first value

    def cell_of_struct(self, value: dict[str, Any] | None, row: int) -> str:
        """Return the path of the image in {"bytes": …, "path": …}; without bytes, the path in it."""
        if value is None:
            return ""
        return str(value["path"] or "") if value["bytes"] is None else self._write(value["bytes"], row)

    def cell_of_bytes(self, value: bytes | None, row: int) -> str:
        """Return the path of the image in a cell of bytes; in a column of other bytes, the bytes as text."""
        if value is None:
            return ""
        if self.has_images is None:
            self.has_images = _suffix(value) is not None
        return self._write(value, row) if self.has_images else str(value)

    def _write(self, content: bytes, row: int) -> str:
        path = self.folder / f"{row}{_suffix(content) or DEFAULT_SUFFIX}"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content, sync=False)
        return str(path.absolute())


def _suffix(content: bytes) -> str | None:
    return next((suffix for start, suffix in SUFFIX_BY_START.items() if content.startswith(start)), None)
