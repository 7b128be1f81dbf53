"""The kinds of samples there are, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.encoders import images
from metalabelnet.data.encoders.encoder import Inputs
from metalabelnet.data.encoders.tables import Table
from metalabelnet.data.encoders.texts import Texts
from metalabelnet.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor


class Images(Inputs):
    """Image files."""

    kind = "image"
    dtype = torch.uint8

    def __init__(self, shape: tuple[int, ...], column: str | None) -> None:
        self.shape = shape
        self.columns = [] if column is None else [column]

    def encode(self, items: Sequence[Path]) -> Iterator[Tensor | str]:
        """Decode, several at a time."""
        for result in images.each(lambda path: images.decode(path, self.shape), items):
            yield reason(result) if isinstance(result, Exception) else result

    def to_json(self) -> dict[str, Any]:
        """The shape, and in which column of a table paths stand."""
        return {"kind": self.kind, "shape": self.shape, "column": self.columns[0] if self.columns else None}

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Images:
        """Decode to the same shape."""
        return cls(tuple(about["shape"]), about["column"])


KINDS: dict[str, type[Inputs]] = {kind.kind: kind for kind in (Images, Table, Texts)}


def from_json(about: dict[str, Any], source: Path) -> Inputs:
    """What a file says about inputs."""
    if not isinstance(about, dict) or about.get("kind") not in KINDS:
        raise InputError(f"{source}: {unknown('kind of input', str(about)[:40], KINDS)}")
    try:
        return KINDS[about["kind"]].from_json(about)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{source} is damaged, or was written by another version: {error!r}") from error


def reason(error: Exception) -> str:
    """Why an image cannot be used, as a phrase after its name."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"is not there (there is no file {error.filename})"
    return f"cannot be decoded ({' '.join(str(error).split())[:120] or type(error).__name__})"
