"""Streaming an .npz file gives the same samples as reading it whole, in little memory."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metalabelnet.data.files import npz
from metalabelnet.errors import InputError

CLASSES = ("a", "b")
random = np.random.default_rng(0)
TABLE = random.normal(size=(3000, 4))
ARRAYS = {
    "float64": TABLE,
    "int16": (100 * TABLE).astype(np.int16),
    "big-endian": TABLE.astype(">f4"),
    "fortran order": np.asfortranarray(TABLE),
    "gray": random.integers(0, 255, (3000, 5, 7), dtype=np.uint8),
    "channels last": random.integers(0, 255, (3000, 5, 7, 3), dtype=np.uint8),
    "channels first": random.integers(0, 255, (3000, 3, 5, 7), dtype=np.uint8),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kind", ARRAYS)
def test_stream_equals_whole_file(kind: str, save: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    save(file, x_train=ARRAYS[kind], y_train=np.zeros(3000, int))
    count, shape, stream = npz.stream_samples(file, CLASSES)
    whole, parts = npz.read(file, classes=CLASSES).train.x, list(stream)
    assert len(parts) == 3
    assert (count, shape) == (3000, tuple(whole.shape[1:]))
    assert torch.equal(torch.cat(parts), whole[:])
    assert parts[0].dtype == whole.dtype


def test_memory_use_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, x_train=np.zeros((1000, 128, 128, 3), np.uint8))  # 47 MiB
    tracemalloc.start()
    count, _, stream = npz.stream_samples(file, CLASSES)
    assert sum(len(part) for part in stream) == count == 1000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


def error_message(file: Path) -> str:
    with pytest.raises(InputError) as error:
        list(npz.stream_samples(file, CLASSES)[2])
    return str(error.value)


def test_error_messages(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    x = TABLE.copy()
    x[2500, 1] = np.nan
    np.savez(file, x_train=x)
    assert "x_train: row 2500 has a value that is NaN or infinite" in error_message(file)
    x[2500, 1] = -1e38
    np.savez(file, x_train=x)
    assert "x_train: row 2500 has the value -1e+38; values up to 2e+18 are allowed" in error_message(file)
    np.savez(file, y_train=x)
    assert "x_train is missing; the file has y_train" in error_message(file)
    np.savez(file, x_train=np.array([{}, {}], object))
    assert "not of Python objects" in error_message(file)
    np.savez(file, x_train=np.zeros((5, 2, 2, 2, 2), np.uint8))
    assert "neither a table of numbers" in error_message(file)
    np.savez(file, x_train=np.zeros((0, 4)))
    assert "is empty" in error_message(file)
    file.write_bytes(b"no archive")
    assert "not a complete .npz file" in error_message(file)


def test_damaged_file(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, x_train=TABLE)
    content = bytearray(file.read_bytes())
    content[50_000] ^= 255
    file.write_bytes(content)
    assert "x_train cannot be read" in error_message(file)
