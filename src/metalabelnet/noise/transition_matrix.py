"""Noise from a transition matrix: row i contains the probabilities of the given labels of class i."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.noise.from_file import load_lines, load_npy, to_number

if TYPE_CHECKING:
    from pathlib import Path


def matrix_noise(true: Tensor, matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Return labels drawn from the matrix row of each true class.

    The draws are independent, so the number of wrong labels varies.
    """
    given = true.clone()
    for label, probabilities in enumerate(matrix):
        members = (true == label).nonzero()[:, 0]
        if len(members):
            given[members] = torch.multinomial(probabilities, len(members), replacement=True, generator=generator)
    return given


def read_matrix(path: Path, classes: int) -> Tensor:
    """Return a (classes, classes) matrix from .npy, or from .csv/.txt with numbers separated by commas or blanks."""
    if path.suffix.lower() == ".npy":
        array = load_npy(path, "noise matrix")
        if array.dtype.kind not in "iuf":
            raise InputError(f"noise matrix {path}: numbers are needed, not {array.dtype}")
    else:
        lines = [(i, line) for i, line in load_lines(path, "noise matrix") if line]
        rows = [[to_number(cell, path, i) for cell in line.replace(",", " ").split()] for i, line in lines]
        for (i, _), row in zip(lines, rows, strict=True):
            if len(row) != classes:
                raise InputError(f"{path}, line {i}: {len(row)} numbers, but there are {classes} classes")
        array = np.array(rows)
    if array.shape != (classes, classes):
        raise InputError(f"noise matrix {path}: shape {array.shape}, but {classes} classes need ({classes}, {classes})")
    matrix = torch.from_numpy(array.astype(np.float64))
    for i, row in enumerate(matrix):
        if not ((row >= 0) & (row <= 1)).all():
            raise InputError(f"noise matrix {path}: row {i + 1} has an entry outside [0, 1]: {row.tolist()}")
        if abs(float(row.sum()) - 1) > 1e-6:
            raise InputError(
                f"noise matrix {path}: row {i + 1} sums to {float(row.sum()):.8g}, not 1; row i contains the "
                f"probabilities of the given labels of class i"
            )
    return matrix
