"""The paper's numbers (Algan and Ulusoy 2021), by table, row and column. Accuracies are in percent.

Rows have the names of our methods where they exist, otherwise the paper's. Columns of the CIFAR-10 table have the names
of our noises. The paper's figures come without numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PaperNumber:
    """One cell of a table: the mean and, where given, the standard deviation over the paper's runs; or a failure."""

    table: str
    row: str
    column: str
    mean: float | None
    std: float | None = None

    @property
    def failed(self) -> bool:
        """Whether the paper reports "fail"."""
        return self.mean is None

    def __str__(self) -> str:
        if self.mean is None:
            return "fail"
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


CELLS = tuple(f"{kind}:{rate}" for kind in ("uniform", "feature") for rate in (0.2, 0.4, 0.6, 0.8))

# The CIFAR-10 table: a mean and a standard deviation over 4 runs in the order of CELLS.
_CIFAR10 = {
    "cross-entropy": "82.55 0.80 76.31 0.75 65.94 0.44 38.19 0.81 81.75 0.39 71.86 0.69 69.78 0.71 23.18 0.55",
    "sce": "81.36 2.27 78.94 2.22 72.20 2.24 51.47 1.58 74.45 2.97 63.71 0.58 fail - fail -",
    "gce": "84.98 0.30 81.65 0.30 74.59 0.46 42.53 0.24 81.43 0.45 72.35 0.51 66.60 0.43 fail -",
    "bootstrap": "82.76 0.36 76.66 0.72 66.33 0.30 38.35 1.83 81.59 0.61 72.18 0.86 69.50 0.29 23.05 0.64",
    "forward": "83.24 0.37 79.69 0.49 71.41 0.80 31.53 2.75 77.17 0.86 69.46 0.68 36.98 0.73 fail -",
    "joint-optimization": "83.64 0.50 78.69 0.62 68.83 0.22 39.59 0.77 81.83 0.51 74.06 0.57 71.74 0.63 44.81 0.93",
    "pencil": "83.86 0.47 79.01 0.62 71.53 0.39 46.07 0.75 81.82 0.41 75.18 0.50 69.10 0.24 fail -",
    "co-teaching": "85.82 0.22 80.11 0.41 70.02 0.50 39.83 2.62 81.07 0.25 72.73 0.61 68.08 0.42 18.77 0.07",
    "mlnt": "83.32 0.45 77.59 0.85 67.44 0.45 38.83 1.76 82.07 0.76 73.90 0.34 69.16 1.13 22.85 0.45",
    "meta-weight-net": "83.59 0.54 80.22 0.16 71.22 0.81 45.81 1.78 81.36 0.54 72.52 0.51 67.59 0.43 22.10 0.69",
    "mslg": "83.03 0.44 78.28 1.03 71.30 1.54 52.43 1.26 82.22 0.57 77.62 0.98 73.08 1.58 57.30 7.40",
    "metalabelnet": "83.35 0.17 79.03 0.26 70.60 0.86 50.02 0.44 83.00 0.41 80.42 0.51 78.42 0.36 76.57 0.33",
}

# Tables without standard deviations: columns, then rows.
_OTHER_TABLES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "clothing1m-table": (
        ("accuracy",),
        {
            "MLC": "71.10",
            "joint-optimization": "72.23",
            "MetaCleaner": "72.50",
            "SafeGuarded": "73.07",
            "mlnt": "73.47",
            "pencil": "73.49",
            "meta-weight-net": "73.72",
            "NoiseRank": "73.77",
            "Anchor points": "74.18",
            "CleanNet": "74.69",
            "mslg": "76.02",
            "metalabelnet": "78.20",
        },
    ),
    "food101n-table": (
        ("accuracy",),
        {
            "joint-optimization": "76.12",
            "meta-weight-net": "76.12",
            "bootstrap": "78.03",
            "pencil": "78.26",
            "co-teaching": "78.95",
            "metalabelnet": "80.46",
        },
    ),
    "webvision-table": (
        ("top 1", "top 5"),
        {
            "forward": "61.12 82.68",
            "Decoupling": "62.54 84.74",
            "D2L": "62.68 84.00",
            "MentorNet": "63.00 81.40",
            "co-teaching": "64.58 85.20",
            "Iterative-CV": "65.24 85.34",
            "metalabelnet": "67.10 87.48",
        },
    ),
    "clothing1m-clean-size": (
        ("500", "1000", "2000", "4000", "8000", "12000", "14000"),
        {"metalabelnet": "76.13 77.71 76.95 77.60 77.44 77.61 78.20"},
    ),
    "clothing1m-unlabeled": (
        ("100000", "300000", "500000", "700000", "900000", "950000"),
        {
            "cross-entropy": "69.32 68.66 67.87 68.02 68.07 66.88",
            "metalabelnet": "77.90 77.54 77.31 76.52 75.23 71.32",
        },
    ),
}


def _numbers() -> list[PaperNumber]:
    numbers = []
    for row, text in _CIFAR10.items():
        values = text.split()
        for column, mean, std in zip(CELLS, values[::2], values[1::2], strict=True):
            known = mean != "fail"
            numbers.append(
                PaperNumber(
                    table="cifar10-table",
                    row=row,
                    column=column,
                    mean=float(mean) if known else None,
                    std=float(std) if known else None,
                )
            )
    for table, (columns, rows) in _OTHER_TABLES.items():
        for row, text in rows.items():
            for column, mean in zip(columns, text.split(), strict=True):
                numbers.append(PaperNumber(table=table, row=row, column=column, mean=float(mean)))
    return numbers


PAPER_NUMBERS: tuple[PaperNumber, ...] = tuple(_numbers())
_BY_POSITION = {(n.table, n.row, n.column): n for n in PAPER_NUMBERS}


def paper_number(table: str, row: str, column: str) -> PaperNumber | None:
    """The paper's number in a cell, or None."""
    return _BY_POSITION.get((table, row, column))
