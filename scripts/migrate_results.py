"""Rename the keys and values of stored results from the vocabulary before version 0.2 to the present one, in place.

    python scripts/migrate_results.py results

Measured numbers do not change. A migrated file stays as it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RUN = {  # fields of a run
    "meta": "clean",
    "meta_file": "clean_file",
    "rate": "lr",
    "rate_drops": "lr_milestones",
    "looks": "snapshots",
    "engine": "execution",
}
METHOD = {  # settings of a method
    "engine": "differentiation",
    "meta_updates_statistics": "clean_updates_statistics",
    "weight_net_rate": "weight_net_lr",
    "last_rate": "last_lr",
    "retrain_rate": "retrain_lr",
    "rate_scale": "lr_scale",
    "rates": "lr_schedule",
    "average": "ema",
    "labelnet": "label_net",
}
VALUES = {  # of these keys
    "method": {"meta-only": "clean-only"},
    "execution": {"recorded": "compiled"},
    "features": {"average": "ema"},
    "matrix": {"without-doubt": "deconfounded"},
    "lr_schedule": {"schedule": "milestones"},
    "way": {"meta-only": "clean-only"},
}
LINE = {"together": "concurrent", "rate": "lr"}  # a line of results, beside its settings
SUMMARY = {"meta_accuracy": "clean_accuracy"}
SAMPLES = {"select": "validation"}


def renamed(content: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The same dict under the new names, its values included."""
    result = {names.get(key, key): value for key, value in content.items()}
    return {
        key: VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value for key, value in result.items()
    }


def migrate_line(line: dict[str, Any], *, names: dict[str, str] = LINE) -> dict[str, Any]:
    """A line of results in the present vocabulary."""
    line = renamed(line, names)
    if isinstance(line.get("settings"), dict):
        run = "data" in line["settings"]  # else a variant's own settings of its method
        line["settings"] = renamed(line["settings"], RUN if run else METHOD)
        if run:
            line["settings"]["settings"] = renamed(line["settings"]["settings"], METHOD)
            if line["settings"].get("limit") == 0:
                line["settings"]["limit"] = None  # all training samples
    if isinstance(line.get("method_settings"), dict):
        line["method_settings"] = renamed(line["method_settings"], METHOD)
    if isinstance(line.get("summary"), dict):
        line["summary"] = renamed(line["summary"], SUMMARY)
        line["summary"]["samples"] = renamed(line["summary"].get("samples", {}), SAMPLES)
    return line


def migrate_text(text: str, names: dict[str, str]) -> str:
    """All lines of a file, each written as compactly as it was."""
    lines = []
    for line in text.splitlines():
        compact = ", " not in line[:60] and '": ' not in line[:60]
        separators = (",", ":") if compact else (", ", ": ")
        lines.append(json.dumps(migrate_line(json.loads(line), names=names), separators=separators, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines)


def main(folder: Path) -> None:
    """Migrate every file of lines below the folder."""
    for file in sorted(folder.rglob("*.jsonl")):
        if file.parent.name in ("labels", "plus", "speed"):
            continue
        names = {"looks": "judged", **LINE} if file.parent.name == "review" else LINE
        before = file.read_text(encoding="utf-8")
        after = migrate_text(before, names)
        if after != before:
            file.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
