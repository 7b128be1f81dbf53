"""Rename keys and values of stored results to the current vocabulary, and add what newer lines have, in place.

    python scripts/migrate_results.py results

Measured numbers do not change, and migrating a second time changes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.reproduction.tuning_data import tuning_data

RUN_FIELDS = {
    "meta": "clean",
    "meta_file": "clean_file",
    "rate": "lr",
    "rate_drops": "lr_milestones",
    "looks": "snapshots",
    "engine": "execution",
    "preset": "recipe",
}
METHOD_SETTINGS = {
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
VALUES = {  # by key
    "method": {"meta-only": "clean-only"},
    "execution": {"recorded": "compiled"},
    "features": {"average": "ema"},
    "matrix": {"without-doubt": "deconfounded"},
    "lr_schedule": {"schedule": "milestones"},
    "variant": {
        "meta-only": "clean-only",
        "whole warm-up": "full warm-up",
        "no average": "no EMA",
        "no strong view": "no strong augmentation",
        "half the rate": "lr scale 2",
        "the schedule's rate": "lr scale 1",
        "the given label once": "given label 1",
        "thrice the given label": "given label 3",
        "twice the strong view": "consistency 2",
        "four times the strong view": "consistency 4",
        "twice the strong view, thrice the given label": "consistency 2, given label 3",
        "0.7 of warm-up": "warm-up share 0.7",
        "without doubt": "deconfounded",
        "without doubt, thrice the given label": "deconfounded, given label 3",
    },
}
LINE = {"together": "concurrent", "rate": "lr"}
EXTRA_NAMES = {  # by folder
    "review": {"looks": "judged", "way": "sampling"},
    "no_clean_set": {"way": "variant"},
}
SUMMARY = {"meta_accuracy": "clean_accuracy"}
SAMPLES = {"select": "validation"}


def rename_keys(content: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A copy with renamed keys and values."""
    result = {names.get(key, key): value for key, value in content.items()}
    return {
        key: VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value for key, value in result.items()
    }


def migrate_line(line: dict[str, Any], *, names: dict[str, str] = LINE) -> dict[str, Any]:
    """A result line in the current vocabulary."""
    line = rename_keys(line, names)
    if isinstance(line.get("settings"), dict):
        is_run = "data" in line["settings"]  # otherwise the settings of a method
        line["settings"] = rename_keys(line["settings"], RUN_FIELDS if is_run else METHOD_SETTINGS)
        if is_run:
            line["settings"]["settings"] = rename_keys(line["settings"]["settings"], METHOD_SETTINGS)
            if line["settings"].get("limit") == 0:
                line["settings"]["limit"] = None  # all training samples
    if isinstance(line.get("method_settings"), dict):
        line["method_settings"] = rename_keys(line["method_settings"], METHOD_SETTINGS)
    if isinstance(line.get("summary"), dict):
        line["summary"] = rename_keys(line["summary"], SUMMARY)
        line["summary"]["samples"] = rename_keys(line["summary"].get("samples", {}), SAMPLES)
    return line


SUPERSEDED = {  # by method: a setting that only the earlier version has, and why its results are not used
    "metalabelnet-plus": ("ema", "edfd21a: EMA, strong augmentation and learning rate belong to the recipe"),
}


def complete_line(line: dict[str, Any]) -> dict[str, Any]:
    """A result line of `metalabelnet reproduce` with what it was tuned on, flagged if its method has changed since."""
    if "versions" not in line or "data" not in line.get("settings", {}):
        return line
    method = line["settings"]["method"]
    added = {"tuned_on": tuning_data(method, line["settings"]["recipe"])}
    setting, reason = SUPERSEDED.get(method, ("", ""))
    if setting in line.get("method_settings", {}):
        added["superseded"] = reason
    rest = {name: line[name] for name in ("versions", "commit")}
    return {name: value for name, value in line.items() if name not in rest} | added | rest


def migrate_text(text: str, names: dict[str, str], *, of_reproduce: bool = False) -> str:
    """The lines of a file in the current vocabulary, with the same JSON separators as before."""
    lines = []
    for line in text.splitlines():
        compact = ", " not in line[:60] and '": ' not in line[:60]
        separators = (",", ":") if compact else (", ", ": ")
        migrated = migrate_line(json.loads(line), names=names)
        migrated = complete_line(migrated) if of_reproduce else migrated
        lines.append(json.dumps(migrated, separators=separators, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines)


def main(folder: Path) -> None:
    """Migrate every .jsonl file below the folder."""
    for file in sorted(folder.rglob("*.jsonl")):
        if file.parent.name in ("labels", "plus", "speed"):
            continue
        names = LINE | EXTRA_NAMES.get(file.parent.name, {})
        before = file.read_text(encoding="utf-8")
        after = migrate_text(before, names, of_reproduce=file.parent == folder)
        if after != before:
            file.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
