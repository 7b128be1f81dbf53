"""Lines of results as they are read: each has what tables, figures and estimates take from it, or is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Line = dict[str, Any]
Kinds = dict[str, type | tuple[type, ...]]

LINE: Kinds = {"date": str, "settings": dict, "summary": (dict, type(None)), "versions": dict}
IN_SOME: Kinds = {"method_settings": dict, "curves": dict, "losses": dict, "concurrent": int, "failure": str}
SETTINGS: Kinds = {"data": str, "method": str, "noise": str, "net": str}
SETTINGS |= dict.fromkeys(("epochs", "warmup", "batch_size", "seed"), int)
SUMMARY: Kinds = {"seconds": (int, float)}
SUMMARY |= dict.fromkeys(("test_accuracy", "test_accuracy_last"), (int, float, type(None)))
CURVES: Kinds = {"test_accuracy": list}
CHANGE: Kinds = {"from": int, "mean": list, "std": list}


def read_lines(file: Path, content: bytes, *, after: int) -> Iterator[Line]:
    """The results in what a file holds, from the line after this one on."""
    for number, text in enumerate(content.splitlines()[after:], after + 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not (isinstance(line, dict) and _is_result(line)):
            raise InputError(f"{file}, line {number}: this is no result of a run; remove the line")
        yield line


def _is_result(line: Line) -> bool:
    there = {name: line[name] for name in IN_SOME if line.get(name) is not None}
    return (
        _has(line, LINE)
        and "commit" in line
        and _has(there, {name: IN_SOME[name] for name in there})
        and _has(line["settings"], SETTINGS)
        and (line["summary"] is None or _has(line["summary"], SUMMARY))
        and ("curves" not in there or _are_curves(there["curves"], line["settings"]))
    )


def _are_curves(curves: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether there is an accuracy for the last epoch of warm-up, and what the soft labels did, if anything."""
    change = curves.get("label_change")
    whole = change is None or (isinstance(change, dict) and _has(change, CHANGE))
    return whole and _has(curves, CURVES) and len(curves["test_accuracy"]) >= settings["warmup"]


def _has(what: Mapping[str, Any], kinds: Kinds) -> bool:
    return all(name in what and isinstance(what[name], kind) for name, kind in kinds.items())
