"""A folder whose files are written atomically and, once it is finished, checked against their digests when read.

`digests.json` has the SHA-256 of every other file. A folder may come from a stranger: links are rejected, and a file
that has changed is not read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from metalabelnet.atomic_write import write_chunks_atomically
from metalabelnet.errors import InputError
from metalabelnet.input_files.regular_files import open_regular_file
from metalabelnet.train import json_files
from metalabelnet.train.folder_lock import check_no_link

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy.typing as npt

DIGEST_CHUNK_BYTES = 1 << 20


class DigestedFolder:
    """Read and write files of a folder, whatever their content is.

    Attributes
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: dict[str, str] = {}  # digests of the files that this object has written

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "summary.json").exists()

    def open(self, name: str) -> BinaryIO:
        """Open a file of the run for reading.

        Raises
        ------
        InputError
            If it is not a regular file, or differs from what the finished run wrote.
        FileNotFoundError
            If the run has no such file.
        """
        path = self.path / name
        check_no_link(path)
        file = open_regular_file(path)
        try:
            self._check_digest(name, file)
        except BaseException:
            file.close()
            raise
        return file

    def _check_digest(self, name: str, file: BinaryIO) -> None:
        """Raise InputError if an open file is not what the finished run wrote."""
        expected = self._digests().get(name)
        if expected is None:
            return
        digest = hashlib.sha256()
        while chunk := file.read(DIGEST_CHUNK_BYTES):
            digest.update(chunk)
        file.seek(0)
        if digest.hexdigest() != expected:
            raise InputError(
                f"{self.path / name} has changed since the run wrote it: restore it from a copy of the run folder, or "
                f"delete {self.path / 'digests.json'} to use it as it is"
            )

    def read(self, name: str) -> bytes:
        """Return the content of a file of the run. The errors are those of `open`."""
        with self.open(name) as file:
            return file.read()

    def has(self, name: str) -> bool:
        """Return whether the folder has an entry of that name."""
        return os.path.lexists(self.path / name)

    def _digests(self) -> dict[str, str]:
        """Return the digest of each file of a finished run; none where the user has deleted the file of digests."""
        file = self.path / "digests.json"
        if not (self.finished and self.has(file.name)):
            return {}
        check_no_link(file)
        with open_regular_file(file) as opened:
            digests = json_files.parse_object(file, opened.read(), {})
        json_files.check_fields(file, digests, dict.fromkeys(digests, str))
        return {**digests, **self._written}

    def write_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write an .npy file."""
        import numpy as np

        array, header = np.ascontiguousarray(array), io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
        self._write_chunks(name, (header.getvalue(), array.data))

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write an indented JSON file."""
        self.write(name, to_json(content))

    def write(self, name: str, text: str | Iterator[str]) -> None:
        """Write a text file atomically: a text, or chunks of one that are made one at a time."""
        self._write_chunks(name, (text.encode(),) if isinstance(text, str) else map(str.encode, text))

    def write_once(self, name: str, text: str) -> None:
        """Write a text file, unless an earlier process has written the same."""
        if self.has(name) and self.read(name) == text.encode():
            self._written[name] = hashlib.sha256(text.encode()).hexdigest()
        else:
            self.write(name, text)

    def _write_chunks(self, name: str, chunks: Iterable[bytes | memoryview], *, sync: bool = True) -> None:
        digest = hashlib.sha256()

        def hash_chunks() -> Iterator[bytes | memoryview]:
            for chunk in chunks:
                digest.update(chunk)
                yield chunk

        write_chunks_atomically(self.path / name, hash_chunks(), sync=sync)
        self._written[name] = digest.hexdigest()

    def _write_digests_and_summary(self, summary: dict[str, Any]) -> None:
        """Write digests.json, then summary.json, with which the folder is finished."""
        text = to_json(summary)
        digests = {**self._written, "summary.json": hashlib.sha256(text.encode()).hexdigest()}
        digests.pop("digests.json", None)
        self.write_json("digests.json", dict(sorted(digests.items())))
        self.write("summary.json", text)


def to_json(content: dict[str, Any]) -> str:
    """Return the text of an indented JSON file."""
    return json.dumps(content, indent=2) + "\n"
