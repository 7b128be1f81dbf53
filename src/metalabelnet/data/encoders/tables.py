"""Tables: numbers standardised, categories as ones and zeros, gaps filled and marked."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.encoders.encoder import Inputs
from metalabelnet.data.files.number_format import PLAIN, form_of, number
from metalabelnet.data.rows import LARGEST
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
FEW = 20  # different texts may be a category, however few rows there are
MOST_VALUES = 100  # of a category; rarer ones are all zeros, like a value that was never seen


class Table(Inputs):
    """Columns of numbers and of categories.

    A number becomes (value − mean) / deviation, and 0, the mean, where it is missing; where training rows have gaps a
    further column says so. A category becomes a column for each of its values, all 0 for one never seen. A column
    that has too many different texts for a category and is nearly all numbers is one of numbers; what is no number
    there is mistyped, and an error of its row.
    """

    kind = "table"

    def __init__(self, parts: list[dict[str, Any]]) -> None:
        self.parts = parts
        self.columns = [part["name"] for part in parts]
        self.shape = (sum(_width(part) for part in parts),)

    @classmethod
    def fit(cls, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Learn means, deviations and categories from these rows."""
        return cls([_fit(name, [row[k] for row in rows]) for k, name in enumerate(names)])

    def encode(self, items: Sequence[Sequence[str]]) -> Iterator[Tensor | str]:
        """Each row's numbers."""
        for row in items:
            try:
                values = [v for part, cell in zip(self.parts, row, strict=True) for v in _encode(part, cell)]
            except InputError as error:
                yield str(error)
            else:
                yield torch.tensor(values, dtype=self.dtype)

    def to_json(self) -> dict[str, Any]:
        """The columns with their statistics."""
        return {"kind": self.kind, "columns": self.parts}

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Table:
        """The same columns and statistics."""
        parts = list(about["columns"])
        if not all("values" in part or part["deviation"] > 0 for part in parts):
            raise ValueError("a deviation is not positive")
        return cls(parts)


def is_missing(cell: str) -> bool:
    """Whether a cell says nothing."""
    return cell.strip().lower() in MISSING


def is_name(cells: Sequence[str]) -> bool:
    """Whether a column holds names or texts, a different one in most rows, from which nothing can be learned."""
    said = [cell for cell in cells if not is_missing(cell)]
    return _too_many(said) and form_of(said, strict=False) is None


def _too_many(said: Sequence[str]) -> bool:
    """Whether these are too many different texts for a category."""
    return len(set(said)) > max(FEW, len(said) / 2)


def _fit(name: str, cells: Sequence[str]) -> dict[str, Any]:
    said = [cell for cell in cells if not is_missing(cell)]
    if not said:
        raise InputError(f"column {name!r} is empty in all training rows; leave it out with --features")
    form = form_of(said, strict=not _too_many(said))
    if form is None:
        if _too_many(said):
            raise InputError(
                f"column {name!r} has {len(set(said))} different texts in {len(said)} rows, too many for a category; "
                f"leave it out with --features, or read it with --text {name}"
            )
        common = Counter(said).most_common(MOST_VALUES)
        return {"name": name, "values": sorted(value for value, _ in common)}
    found = [value for cell in said if (value := number(cell, form)) is not None]
    values = torch.tensor(found, dtype=torch.float64)
    if not torch.isfinite(values).all():
        raise InputError(f"column {name!r} has an infinite value; fill it in or leave the column out with --features")
    mean, deviation = float(values.mean()), float(values.std(correction=0))
    if not math.isfinite(deviation):
        raise InputError(
            f"column {name!r} has numbers up to {float(values.abs().max()):g}, too large to be standardised; repair "
            "them or leave the column out with --features"
        )
    part = {"name": name, "mean": mean, "deviation": deviation or 1.0, "gaps": len(said) < len(cells)}
    return part if form == PLAIN else part | {"form": form}


def _encode(part: dict[str, Any], cell: str) -> list[float]:
    missing = is_missing(cell)
    if "values" in part:
        return [float(not missing and cell == value) for value in part["values"]]
    value = part["mean"] if missing else number(cell, part.get("form", PLAIN))
    if value is None or not math.isfinite(value):
        raise InputError(f"has {cell[:40]!r} in the column {part['name']!r} of numbers")
    scaled = (value - part["mean"]) / part["deviation"]
    if abs(scaled) > LARGEST:
        raise InputError(f"has {cell[:40]!r} in the column {part['name']!r}, too far from its mean {part['mean']:g}")
    return [scaled, *([float(missing)] if part["gaps"] else [])]


def _width(part: dict[str, Any]) -> int:
    return len(part["values"]) if "values" in part else 1 + bool(part["gaps"])
