"""Reads arrays in numpy's .npy format, whose header is checked before memory is allocated.

A header may claim any shape. `numpy.load` allocates what it claims; here the claim must fit the bytes that follow it.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_HEADER_BYTES = 10_000  # numpy's own limit, which it checks after reading the header
MAX_AXES = 32
MAX_AXIS_LENGTH = 2**48
ZIP_MAGIC = b"PK\x03\x04"
_CHUNK_BYTES = 1 << 20
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}  # of the header's length, by version; 3.0 is for names of fields
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, kw_only=True)
class ArrayHeader:
    """Shape, order and type of an array."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Return the size of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO, size: int) -> ArrayHeader:
    """Read the header of an array.

    Parameters
    ----------
    file : BinaryIO
        The file, at the start of the array.
    size : int
        The bytes of header and values.

    Returns
    -------
    ArrayHeader
        The header. The file is at the first value.

    Raises
    ------
    ValueError
        If this is not an array of numbers or strings, or it claims more values than there are. The message is one line.
    """
    magic = read_exactly(file, 8)
    version = (magic[6], magic[7])
    if magic[:4] == ZIP_MAGIC:
        raise ValueError("this is an archive of arrays; a single array is needed")
    if magic[:6] != np.lib.format.MAGIC_PREFIX or version not in _LENGTH_BYTES:
        raise ValueError("it does not start like an array of numpy")
    length_field = read_exactly(file, _LENGTH_BYTES[version])
    length = int.from_bytes(length_field, "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"an array header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are allowed")
    content = io.BytesIO(length_field + read_exactly(file, length))
    try:
        shape, fortran_order, dtype = _HEADER_READERS[version](content)
    except Exception as error:  # it is parsed as a Python expression: a foreign header may raise anything
        raise ValueError(f"its array header is damaged ({type(error).__name__})") from error
    header = ArrayHeader(shape=shape, fortran_order=fortran_order, dtype=dtype)
    _check(header, size - len(magic) - len(length_field) - length)
    return header


def read_array(file: BinaryIO, size: int) -> NDArray[Any]:
    """Read an array of `size` bytes, header included. Raises ValueError as `read_header`, and MemoryError."""
    header = read_header(file, size)
    content = np.empty(header.nbytes, np.uint8)
    for start in range(0, len(content), _CHUNK_BYTES):
        part = read_exactly(file, min(_CHUNK_BYTES, len(content) - start))
        content[start : start + len(part)] = np.frombuffer(part, np.uint8)
    return content.view(header.dtype).reshape(header.shape, order="F" if header.fortran_order else "C")


def _check(header: ArrayHeader, available: int) -> None:
    shape, dtype = header.shape, header.dtype
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")  # they are pickles, which may contain code
    if dtype.names is not None or dtype.subdtype is not None:
        raise ValueError("an array of records, not of numbers or strings")
    if dtype.itemsize == 0:
        raise ValueError(f"an array of type {dtype}, which has values of no bytes")
    if len(shape) > MAX_AXES:
        raise ValueError(f"an array of {len(shape)} axes; at most {MAX_AXES} are allowed")
    if not all(0 <= length <= MAX_AXIS_LENGTH for length in shape):
        raise ValueError(f"an array of the shape {str(shape)[:100]}, which is impossible")
    if header.nbytes > available:
        raise ValueError(f"the array needs {header.nbytes:,} bytes, but has {available:,}")


def read_exactly(file: BinaryIO, count: int) -> bytes:
    """Return the next `count` bytes; raise ValueError if there are fewer."""
    content = file.read(count)
    if len(content) < count:
        raise ValueError("it ends in the middle of an array")
    return content
