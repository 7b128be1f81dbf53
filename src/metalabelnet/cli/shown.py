"""The words of samples, for tools that show them to a person: texts, and rows of a table as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.report import samples, source
from metalabelnet.train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def of_rows(run: Path, rows: Sequence[dict[str, str]]) -> tuple[dict[int, str], str]:
    """What stands in the data for these rows of a run's label table, by index; else the reason why it cannot be read.

    Images are shown by their path, which the table has.
    """
    if (RunFolder(run).inputs() or {}).get("kind") not in ("text", "table"):
        return {}, ""
    wanted = [
        source.Suspect(
            index=int(row["index"]),
            id=row["id"],
            given=row["given"],
            label=row["label"],
            confidence=float(row["confidence"]),
            suspicion=float(row["suspicion"] or 0),
            true=row["true"],
        )
        for row in rows
    ]
    found, why = samples.find(source.read(run), wanted)
    words = {
        index: ", ".join(f"{name}: {cell}" for name, cell in sample.cells) if sample.text is None else sample.text
        for index, sample in found.items()
    }
    return words, why
