"""Table rows as vectors: standardized numbers, one-hot categories, indicators of missing values."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.cells import COMMA, PLAIN, POINT, has_too_many_values, is_missing, number_format, parse_number
from metalabelnet.data.encoders.encoder import Encoder
from metalabelnet.data.rows import MAX_ABS_VALUE
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

MAX_ONE_HOT_VALUES = 100  # of a category; rarer values are encoded as zeros, like unseen ones


class TableEncoder(Encoder):
    """Encodes numeric and categorical columns.

    A number becomes (value − mean) / standard deviation, and 0, the mean, if it is missing. If training rows have
    missing values, the column gets an indicator. A category becomes one column per value; an unseen value is all zeros.
    A column with too many distinct texts for a category is numeric if nearly all of its cells are numbers; its other
    cells are errors of their rows.

    Parameters
    ----------
    column_configs : list of dict
        Per column its `name`, and either the `values` of a category, or `mean`, `deviation`, `missing_indicator`
        (whether it has one) and `number_format` (if it is not 1234.5).
    """

    kind = "table"

    def __init__(self, column_configs: list[dict[str, Any]]) -> None:
        self.column_configs = column_configs
        self.columns = [config["name"] for config in column_configs]
        self.shape = (sum(_width(config) for config in column_configs),)

    @classmethod
    def fit(cls, names: Sequence[str], rows: Sequence[Sequence[str]]) -> TableEncoder:
        """Fit means, deviations and categories to these rows."""
        return cls([_fit_column(name, [row[k] for row in rows]) for k, name in enumerate(names)])

    def encode(self, items: Sequence[Sequence[str]]) -> Iterator[Tensor | str]:
        """Yield the vector of each row."""
        for row in items:
            try:
                values = [
                    value
                    for config, cell in zip(self.column_configs, row, strict=True)
                    for value in _encode_cell(config, cell)
                ]
            except InputError as error:
                yield str(error)
            else:
                yield torch.tensor(values, dtype=self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the columns with their statistics."""
        return {"kind": self.kind, "columns": self.column_configs}

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> TableEncoder:
        """Restore the encoder."""
        column_configs = list(config["columns"])
        for column in column_configs:
            _check_config(column)
        return cls(column_configs)


def _fit_column(name: str, cells: Sequence[str]) -> dict[str, Any]:
    present = [cell for cell in cells if not is_missing(cell)]
    if not present:
        raise InputError(f"column {name!r} is empty in all training rows; leave it out with --features")
    form = number_format(present, strict=not has_too_many_values(present))
    if form is None:
        if has_too_many_values(present):
            raise InputError(
                f"column {name!r} has {len(set(present))} different texts in {len(present)} rows, too many for a "
                f"category; leave it out with --features, or read it with --text {name}"
            )
        common = Counter(present).most_common(MAX_ONE_HOT_VALUES)
        return {"name": name, "values": sorted(value for value, _ in common)}
    numbers = [value for cell in present if (value := parse_number(cell, form)) is not None]
    values = torch.tensor(numbers, dtype=torch.float64)
    if not torch.isfinite(values).all():
        raise InputError(f"column {name!r} has an infinite value; fill it in or leave the column out with --features")
    mean, deviation = float(values.mean()), float(values.std(correction=0))
    if not math.isfinite(deviation):
        raise InputError(
            f"column {name!r} has numbers up to {float(values.abs().max()):g}, too large to standardize; repair them, "
            "or leave the column out with --features"
        )
    config = {"name": name, "mean": mean, "deviation": deviation or 1.0, "missing_indicator": len(present) < len(cells)}
    return config if form == PLAIN else config | {"number_format": form}


def _check_config(config: dict[str, Any]) -> None:
    """Raise ValueError if the configuration of a column, read from a file, cannot be used."""
    if not isinstance(config["name"], str):
        raise TypeError(f"the name of a column is {config['name']!r}, not a text")
    if "values" in config:
        if not isinstance(config["values"], list) or not all(isinstance(value, str) for value in config["values"]):
            raise ValueError("the values of a category are not a list of texts")
        return
    if not (math.isfinite(config["mean"]) and math.isfinite(config["deviation"]) and config["deviation"] > 0):
        raise ValueError("a deviation is not positive, or a mean is not finite")
    if not isinstance(config["missing_indicator"], bool):
        raise TypeError("missing_indicator is neither true nor false")
    if config.get("number_format", PLAIN) not in (PLAIN, POINT, COMMA):
        raise ValueError(f"the number format {config['number_format']!r} is unknown")


def _encode_cell(config: dict[str, Any], cell: str) -> list[float]:
    missing = is_missing(cell)
    if "values" in config:
        return [float(not missing and cell == value) for value in config["values"]]
    value = config["mean"] if missing else parse_number(cell, config.get("number_format", PLAIN))
    if value is None or not math.isfinite(value):
        raise InputError(f"has {cell[:40]!r} in the numeric column {config['name']!r}")
    scaled = (value - config["mean"]) / config["deviation"]
    if abs(scaled) > MAX_ABS_VALUE:
        raise InputError(
            f"has {cell[:40]!r} in the column {config['name']!r}, too far from its mean {config['mean']:g}"
        )
    return [scaled, *([float(missing)] if config["missing_indicator"] else [])]


def _width(config: dict[str, Any]) -> int:
    return len(config["values"]) if "values" in config else 1 + bool(config["missing_indicator"])
