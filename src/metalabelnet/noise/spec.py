"""What noise there is, how it is written (`uniform:0.4`, `file:labels.csv`), and how many labels it flips."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from metalabelnet.errors import InputError, unknown

UNLABELED = -1  # as in the data; noise and data do not import each other


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of noise as a list shows it: how it is written, what it does, where it comes from."""

    usage: str
    summary: str
    reference: str

    @property
    def needs(self) -> str:
        """What follows the colon: `RATE`, `FILE` or nothing."""
        return self.usage.partition(":")[2]


NOISES: dict[str, Kind] = {
    "none": Kind(
        usage="none",
        summary="every label is the true one",
        reference="",
    ),
    "uniform": Kind(
        usage="uniform:RATE",
        summary="that share of the labels goes to another class, each equally likely",
        reference="Angluin and Laird 1988; Algan and Ulusoy 2021",
    ),
    "class": Kind(
        usage="class:RATE",
        summary="that share of a class goes to the class it is mistaken for (CIFAR-10: cat to dog, ...; "
        "elsewhere the next class)",
        reference="Patrini et al. 2017",
    ),
    "feature": Kind(
        usage="feature:RATE",
        summary="that share of the labels, those nearest to a network's decision boundary, goes to the class across it",
        reference="Algan and Ulusoy 2020, 2021",
    ),
    "matrix": Kind(
        usage="matrix:FILE",
        summary="each label is drawn from its class's row of a matrix (.npy, .csv, .txt)",
        reference="Natarajan et al. 2013; Patrini et al. 2017",
    ),
    "file": Kind(
        usage="file:FILE",
        summary="the labels are read from a file, one for each sample of the data (.npy, .csv, .txt)",
        reference="Wei et al. 2022 (labels by people)",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Noise:
    """One kind of noise with its rate or its file; `str` writes it as `parse` reads it."""

    kind: str
    rate: float | None = None
    path: Path | None = None

    def __post_init__(self) -> None:
        if self.kind not in NOISES:
            raise unknown("noise", self.kind, NOISES)
        needs = NOISES[self.kind].needs
        if (self.rate is not None) != (needs == "RATE") or (self.path is not None) != (needs == "FILE"):
            takes = {"RATE": "a rate and no file", "FILE": "a file and no rate", "": "neither rate nor file"}
            raise InputError(f"noise {self.kind!r} takes {takes[needs]}")
        if self.rate is not None:
            check_rate(self.rate)

    def __str__(self) -> str:
        argument = self.rate if self.rate is not None else self.path
        return self.kind if argument is None else f"{self.kind}:{argument}"

    @classmethod
    def parse(cls, spec: str) -> Noise:
        """Read `none`, `uniform:0.4`, `class:0.3`, `feature:0.4`, `matrix:FILE` or `file:FILE`.

        A file that is not there is refused here, before time is spent on what comes first.
        """
        kind, _, argument = spec.partition(":")
        if kind not in NOISES:
            raise unknown("noise", kind, NOISES)
        usage, needs = NOISES[kind].usage, NOISES[kind].needs
        if not needs:
            if spec != kind:
                raise InputError(f"noise {spec!r}: {kind!r} takes neither rate nor file; write {usage}")
            return cls(kind=kind)
        if not argument:
            raise InputError(f"noise {spec!r} has no {needs.lower()}; write {usage}{_example(needs, kind)}")
        if needs == "FILE":
            path = Path(argument)
            if not path.is_file():
                raise InputError(f"noise {spec!r}: there is no file {argument!r}")
            return cls(kind=kind, path=path)
        try:
            rate = float(argument)
        except ValueError:
            raise InputError(
                f"noise {spec!r}: {argument!r} is not a number; write {usage}{_example(needs, kind)}"
            ) from None
        return cls(kind=kind, rate=rate)


def check_rate(rate: float) -> None:
    """Refuse a rate that is no share of the labels (NaN is none either)."""
    if not 0 <= rate < 1:
        raise InputError(f"noise rate {rate} is not in [0, 1): it is a share, 0.4 flips 40 % of the labels")


def flip_count(n: int, rate: float) -> int:
    """How many of n labels are flipped: the authors' int(n·rate), with 0.29·100 = 28.999… counted as 29."""
    check_rate(rate)
    return int(n * rate + 1e-9)


def check_classes(classes: int) -> None:
    """Refuse to flip where there is nothing to flip to."""
    if classes < 2:
        raise InputError(f"label noise needs at least 2 classes, there is {classes}; use noise none")


def _example(needs: str, kind: str) -> str:
    return f", for example {kind}:0.4" if needs == "RATE" else ""
