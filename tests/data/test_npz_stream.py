"""Samples of an .npz file a few at a time: the same as all at once, in little memory."""

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
    "column by column": np.asfortranarray(TABLE),
    "grey": random.integers(0, 255, (3000, 5, 7), dtype=np.uint8),
    "channels last": random.integers(0, 255, (3000, 5, 7, 3), dtype=np.uint8),
    "channels first": random.integers(0, 255, (3000, 3, 5, 7), dtype=np.uint8),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kind", ARRAYS)
def test_it_is_what_is_read_at_once(kind: str, save: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    save(file, x_train=ARRAYS[kind], y_train=np.zeros(3000, int))
    count, shape, pieces = npz.stream_samples(file, CLASSES)
    whole, parts = npz.read(file, classes=CLASSES).train.x, list(pieces)
    assert len(parts) == 3
    assert (count, shape) == (3000, tuple(whole.shape[1:]))
    assert torch.equal(torch.cat(parts), whole[:])
    assert parts[0].dtype == whole.dtype


def test_memory_holds_a_few_rows(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, x_train=np.zeros((1000, 128, 128, 3), np.uint8))  # 47 MiB
    tracemalloc.start()
    count, _, pieces = npz.stream_samples(file, CLASSES)
    assert sum(len(piece) for piece in pieces) == count == 1000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


def refused(file: Path) -> str:
    with pytest.raises(InputError) as error:
        list(npz.stream_samples(file, CLASSES)[2])
    return str(error.value)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    x = TABLE.copy()
    x[2500, 1] = np.nan
    np.savez(file, x_train=x)
    assert "x_train: row 2500 has a value that is NaN or infinite" in refused(file)
    x[2500, 1] = -1e38
    np.savez(file, x_train=x)
    assert "x_train: row 2500 has -1e+38, and a network reads numbers up to 2e+18" in refused(file)
    np.savez(file, y_train=x)
    assert "has no x_train, only y_train" in refused(file)
    np.savez(file, x_train=np.array([{}, {}], object))
    assert "not of Python objects" in refused(file)
    np.savez(file, x_train=np.zeros((5, 2, 2, 2, 2), np.uint8))
    assert "neither a table of numbers" in refused(file)
    np.savez(file, x_train=np.zeros((0, 4)))
    assert "is empty" in refused(file)
    file.write_bytes(b"no archive")
    assert "is not a whole .npz file" in refused(file)


def test_damage_in_the_middle_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, x_train=TABLE)
    content = bytearray(file.read_bytes())
    content[50_000] ^= 255
    file.write_bytes(content)
    assert "x_train cannot be read" in refused(file)
