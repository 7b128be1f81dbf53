"""A table of text, in Markdown and LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns, rows of text, and what they are."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table as Markdown, its title above it."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return f"{self.title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

    def latex(self) -> str:
        """The table as a LaTeX tabular, its title as a comment."""
        lines = [" & ".join(map(_latex, row)) + r" \\" for row in self.rows]
        head = " & ".join(map(_latex, self.columns)) + r" \\ \hline"
        shape = "l" + "c" * (len(self.columns) - 1)
        return "\n".join([f"% {self.title}", rf"\begin{{tabular}}{{{shape}}}", head, *lines, r"\end{tabular}", ""])


_IN_LATEX = {
    "%": r"\%",
    "_": r"\_",
    "±": r"$\pm$",
    "–": "--",
    "θ̂′": r"$\hat\theta'$",
    "θ̂": r"$\hat\theta$",
    "θ": r"$\theta$",
    "β": r"$\beta$",
}


def _latex(text: str) -> str:
    for sign, command in _IN_LATEX.items():
        text = text.replace(sign, command)
    return text
