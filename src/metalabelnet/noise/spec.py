"""Specification of label noise: its kinds, their notation (`uniform:0.4`, `file:labels.csv`), and counts of flips."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from metalabelnet.errors import InputError, shorten_value, unknown_name_error
from metalabelnet.input_files.regular_files import check_regular_file

CIFAR10N_SETS = ("worst", "aggregate", "random1", "random2", "random3")
UNLABELED = -1  # same value as in metalabelnet.data, which this package must not import


@dataclass(frozen=True, kw_only=True)
class NoiseKind:
    """A kind of noise: its notation, a summary and a reference."""

    usage: str
    summary: str
    reference: str

    @property
    def argument(self) -> str:
        """The argument after the colon: `RATE`, `FILE`, `SET` or nothing."""
        return self.usage.partition(":")[2]


NOISE_KINDS: dict[str, NoiseKind] = {
    "none": NoiseKind(
        usage="none",
        summary="labels are not changed",
        reference="",
    ),
    "uniform": NoiseKind(
        usage="uniform:RATE",
        summary="that share of the labels is flipped to a random other class",
        reference="Angluin and Laird 1988; Algan and Ulusoy 2021",
    ),
    "symmetric": NoiseKind(
        usage="symmetric:RATE",
        summary="that share of the labels is redrawn from all classes, the true one included",
        reference="Li et al. 2020; Liu et al. 2020",
    ),
    "asymmetric": NoiseKind(
        usage="asymmetric:RATE",
        summary="that share of a class is flipped to one similar class, on CIFAR-10 (cat to dog, ...) "
        "and CIFAR-100 (next class of the superclass)",
        reference="Patrini et al. 2017",
    ),
    "class": NoiseKind(
        usage="class:RATE",
        summary="that share of a class is flipped to one similar class (CIFAR-10: cat to dog, ...; "
        "otherwise the next class)",
        reference="Patrini et al. 2017",
    ),
    "feature": NoiseKind(
        usage="feature:RATE",
        summary="that share of the labels, closest to a network's decision boundary, is flipped to the other class",
        reference="Algan and Ulusoy 2020, 2021",
    ),
    "instance": NoiseKind(
        usage="instance:RATE",
        summary="each sample has its own flip rate around RATE and its own distribution of wrong labels",
        reference="Xia et al. 2020",
    ),
    "cifar10n": NoiseKind(
        usage="cifar10n:SET",
        summary=f"human labels of CIFAR-10 ({', '.join(CIFAR10N_SETS)}), from CIFAR-10_human.pt in the data folder",
        reference="Wei et al. 2022",
    ),
    "cifar100n": NoiseKind(
        usage="cifar100n",
        summary="human labels of CIFAR-100, from CIFAR-100_human.pt in the data folder",
        reference="Wei et al. 2022",
    ),
    "matrix": NoiseKind(
        usage="matrix:FILE",
        summary="each label is drawn from the row of its class in a transition matrix (.npy, .csv, .txt)",
        reference="Natarajan et al. 2013; Patrini et al. 2017",
    ),
    "file": NoiseKind(
        usage="file:FILE",
        summary="the labels are read from a file, one per sample of the data (.npy, .csv, .txt)",
        reference="Wei et al. 2022 (human labels)",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Noise:
    """A kind of noise with its rate, its file or its label set. `str` is the inverse of `parse`.

    Parameters
    ----------
    kind : str
        A key of `NOISE_KINDS`.
    rate : float, optional
        Share of the labels to flip, in [0, 1), for kinds that are written KIND:RATE.
    path : Path, optional
        File of a "matrix" or of labels ("file").
    label_set : {"worst", "aggregate", "random1", "random2", "random3"}, optional
        Human labels of "cifar10n".

    Raises
    ------
    InputError
        If there is no such kind, or rate, file or label set are missing, superfluous or out of range.

    Examples
    --------
    >>> from metalabelnet.noise import Noise
    >>> noise = Noise.parse("uniform:0.4")
    >>> noise.kind, noise.rate, str(noise)
    ('uniform', 0.4, 'uniform:0.4')
    """

    kind: str
    rate: float | None = None
    path: Path | None = None
    label_set: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in NOISE_KINDS:
            raise unknown_name_error("noise", self.kind, NOISE_KINDS)
        argument = NOISE_KINDS[self.kind].argument
        given = {"RATE": self.rate, "FILE": self.path, "SET": self.label_set}
        if any((value is not None) != (argument == name) for name, value in given.items()):
            takes = {"RATE": "a rate and no file", "FILE": "a file and no rate", "SET": "a label set only"}
            raise InputError(f"noise {self.kind!r} takes {takes.get(argument, 'neither rate nor file')}")
        if self.label_set is not None and self.label_set not in CIFAR10N_SETS:
            raise unknown_name_error("label set of CIFAR-10N", self.label_set, CIFAR10N_SETS)
        if self.rate is not None:
            check_rate(self.rate)

    def __str__(self) -> str:
        argument = next((value for value in (self.rate, self.path, self.label_set) if value is not None), None)
        return self.kind if argument is None else f"{self.kind}:{argument}"

    @property
    def is_read(self) -> bool:
        """Whether the labels are read from a file, which has one for every sample of the data."""
        return self.kind in ("file", "cifar10n", "cifar100n")

    @classmethod
    def parse(cls, spec: str) -> Noise:
        """Return the noise that a text specifies.

        Parameters
        ----------
        spec : str
            As in the list of `metalabelnet noises`: `none`, `uniform:0.4`, `cifar10n:worst`, `file:FILE`, ….

        Returns
        -------
        Noise

        Raises
        ------
        InputError
            If the text is not such a specification, or the file does not exist.
        """
        if not isinstance(spec, str):
            raise InputError(f"noise={shorten_value(spec)}: give a string such as 'uniform:0.4'")
        kind, _, value = spec.partition(":")
        if kind not in NOISE_KINDS:
            raise unknown_name_error("noise", kind, NOISE_KINDS)
        usage, argument = NOISE_KINDS[kind].usage, NOISE_KINDS[kind].argument
        if not argument:
            if spec != kind:
                raise InputError(f"noise {spec!r}: {kind!r} takes neither rate nor file; write {usage}")
            return cls(kind=kind)
        if not value:
            raise InputError(f"noise {spec!r} has no {argument.lower()}; write {usage}{_example(argument, kind)}")
        if argument == "SET":
            return cls(kind=kind, label_set=value)
        if argument == "FILE":
            path = Path(value)
            try:
                check_regular_file(path)
            except FileNotFoundError:
                raise InputError(f"noise {spec!r}: there is no file {value!r}") from None
            return cls(kind=kind, path=path)
        try:
            rate = float(value)
        except ValueError:
            raise InputError(
                f"noise {spec!r}: {value!r} is not a number; write {usage}{_example(argument, kind)}"
            ) from None
        return cls(kind=kind, rate=rate)


def check_rate(rate: Any) -> None:
    """Raise `InputError` unless rate is a number with 0 ≤ rate < 1."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 <= float(rate) < 1:
        raise InputError(f"noise rate {rate} is not in [0, 1): give a share; 0.4 flips 40 % of the labels")


def flip_count(n: int, rate: float) -> int:
    """Return the number of n labels to flip: int(n·rate) as in the authors' code, with rounding errors corrected."""
    check_rate(rate)
    return int(n * rate + 1e-9)  # 0.29·100 is 28.999… in floating point


def check_classes(classes: int) -> None:
    """Raise `InputError` for fewer than two classes."""
    if classes < 2:
        raise InputError(f"label noise needs at least 2 classes, not {classes}; use noise none")


def _example(argument: str, kind: str) -> str:
    examples = {"RATE": "0.4", "SET": CIFAR10N_SETS[0]}
    return f", for example {kind}:{examples[argument]}" if argument in examples else ""
