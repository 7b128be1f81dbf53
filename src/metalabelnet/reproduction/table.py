"""A table of text, as Markdown and LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SPREAD = "mean ± standard deviation (seeds)"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text with a title and notes."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """Format as Markdown, with the title above the table and the notes below."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return "\n\n".join([self.title, table, *self.notes]) + "\n"

    def latex(self) -> str:
        """Format as a LaTeX tabular, with the title as a comment."""
        lines = [" & ".join(map(_escape_latex, row)) + r" \\" for row in self.rows]
        head = " & ".join(map(_escape_latex, self.columns)) + r" \\ \hline"
        alignment = "l" + "c" * (len(self.columns) - 1)
        return "\n".join([f"% {self.title}", rf"\begin{{tabular}}{{{alignment}}}", head, *lines, r"\end{tabular}", ""])


_LATEX_COMMANDS = {
    "%": r"\%",
    "_": r"\_",
    "±": r"$\pm$",
    "–": "--",
    "θ̂′": r"$\hat\theta'$",
    "θ̂": r"$\hat\theta$",
    "θ": r"$\theta$",
    "β": r"$\beta$",
}


def _escape_latex(text: str) -> str:
    for sign, command in _LATEX_COMMANDS.items():
        text = text.replace(sign, command)
    return text
