"""The JSON files of a run folder: what each must contain, and their parsing. The folder may come from a stranger."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from metalabelnet.errors import InputError
from metalabelnet.input_files.json_text import parse_json

if TYPE_CHECKING:
    from pathlib import Path

MAX_INTEGER = 2**63 - 1
MAX_REASON_CHARACTERS = 100
MAX_SAMPLE_VALUES = 1 << 31  # of one sample: more is damage

Fields = Mapping[str, Any]  # the type of the value of each key

METADATA: Fields = {  # run.json
    "run": dict[str, Any],
    "method_settings": dict[str, Any],
    "classes": list[str],
    "shape": list[int],
    "bytes": bool,
    "data_digest": str,
    "own_net": str | None,
}
OPTIONAL_METADATA: Fields = {
    "versions": dict[str, str],
    "commit": str | None,
    "executed": dict[str, Any],
}
EXECUTED: Fields = {  # of run.json
    "execution": str,
    "kernels": str,
    "fallbacks": list[str],
    "device": str,
    "ranks": int,
}
SUMMARY: Fields = {
    "method": str,
    "dataset": str,
    "noise": str,
    "seed": int,
    "epochs": int,
    "selected_epoch": int,
    "clean_accuracy": float,
    "test_accuracy": float | None,
    "test_accuracy_last": float | None,
    "macro_f1": float | None,
    "ece": float | None,
    "samples": dict[str, int],
    "seconds": float,
}
SAMPLES: Fields = {"train": int, "clean": int, "validation": int, "test": int}  # of summary.json
OPTIONAL_SUMMARY: Fields = {
    "noise_rate": float | None,
    "test_top5_accuracy": float | None,
    "second_test_accuracy": float | None,
    "second_test_top5_accuracy": float | None,
    "clean_macro_f1": float | None,
    "clean_ece": float | None,
    "clean_class_accuracy": dict[str, float | None] | None,
    "class_accuracy": dict[str, float | None] | None,
    "ece_calibrated": float | None,
    "temperature": float,
    "label_accuracy": float | None,
    "label_ece": float | None,
    "right_before": float | None,
    "right_after": float | None,
    "suspicion_ap": float | None,
    "suspicion_auroc": float | None,
    "unlabeled": int,
    "clean_noise": dict[str, Any] | None,
    "annotators": list[dict[str, Any]] | None,
    "given_check": dict[str, Any] | None,
    "warnings": list[str],
    "suspects": int,
}
ANNOTATOR: Fields = {  # of summary.json
    "annotator": str,
    "labels": int,
    "abstained": int,
    "accuracy": float | None,
    "low": float | None,
    "high": float | None,
    "clean_labels": int,
    "clean_accuracy": float | None,
    "clean_low": float | None,
    "clean_high": float | None,
}
CLEAN_NOISE: Fields = {  # of summary.json
    "rate": float,
    "low": float,
    "high": float,
    "samples": int,
    "by_class": dict[str, dict[str, float]],
    "counts": list[list[int]],
}
NOISE_RATE: Fields = {"rate": float, "low": float, "high": float, "samples": int}  # of a class
GIVEN_CHECK: Fields = {"samples": int, "given_right": float, "corrected_right": float, "keeps_given": bool}
METRICS: Fields = {
    "epoch": int,
    "phase": str,
    "candidate": bool,
    "loss": float,
    "clean_accuracy": float,
    "test_accuracy": float | None,
}
OPTIONAL_METRICS: Fields = {
    "lr": float,
    "clean_loss": float,
    "label_change": float,
    "label_change_std": float,
    "seconds": float,
}
CALIBRATION: Fields = {"temperature": float}
ENCODER: Fields = {"kind": str}
CONFUSION: Fields = {"part": str, "counts": list[list[int]]}
CLEAN_SET: Fields = {"positions": list[int], "labels": list[int]}


def parse_object(file: Path, content: bytes, required: Fields, optional: Fields | None = None) -> dict[str, Any]:
    """Return the JSON object in a file of a run.

    Parameters
    ----------
    file : Path
        Names the file in errors.
    content : bytes
        The content of the file, or a line of it.
    required : mapping
        The type of each key that must be there.
    optional : mapping, optional
        The type of each key that may be there. Further keys are not checked.

    Raises
    ------
    InputError
        If the content is not a JSON object, or a key is missing or has another type.
    """
    try:
        parsed = parse_json(content)
    except ValueError as error:
        reason = str(error)[:MAX_REASON_CHARACTERS]
        raise InputError(f"{file} cannot be read ({reason}): copy the run folder again, or train again") from error
    if not isinstance(parsed, dict):
        raise InputError(f"{file} is not a file of a metalabelnet run: it has no JSON object; train again")
    check_fields(file, parsed, required, optional)
    return parsed


def check_fields(file: Path | str, parsed: Mapping[str, Any], required: Fields, optional: Fields | None = None) -> None:
    """Raise InputError for a key that is missing or has a value of another type."""
    for name in required:
        if name not in parsed:
            raise InputError(f"{file} is not a file of a metalabelnet run: {name!r} is missing; train again")
    for name, expected in {**required, **(optional or {})}.items():
        if name in parsed and not has_type(parsed[name], expected):
            value = repr(parsed[name])[:MAX_REASON_CHARACTERS]
            raise InputError(
                f"{file}: {name} is {value}, not of type {_type_name(expected)}: copy the run folder again, or train "
                "again"
            )


def check_summary_parts(file: Path, summary: Mapping[str, Any]) -> None:
    """Raise InputError if a nested part of summary.json is damaged."""
    check_fields(file, summary["samples"], SAMPLES)
    for annotator in summary.get("annotators") or ():
        check_fields(file, annotator, ANNOTATOR)
    if (noise := summary.get("clean_noise")) is not None:
        check_fields(file, noise, CLEAN_NOISE)
        for rate in noise["by_class"].values():
            check_fields(file, rate, NOISE_RATE)
    if (check := summary.get("given_check")) is not None:
        check_fields(file, check, GIVEN_CHECK)


def check_shape(file: Path, shape: list[int]) -> None:
    """Raise InputError unless this can be the shape of a sample."""
    if not shape or min(shape) < 1 or math.prod(shape) > MAX_SAMPLE_VALUES:
        raise InputError(
            f"{file}: shape is {str(shape)[:80]}, not that of a sample: copy the run folder again, or train again"
        )


def has_type(value: Any, expected: Any) -> bool:
    """Return whether a JSON value has a type: a class, a union, `list[…]`, `tuple[…, ...]`, `dict[str, …]`, `Any`.

    An integer is a float, too; true and false are not numbers. A tuple is a list in JSON.
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(has_type(value, one) for one in arguments)
    if origin in (list, tuple):
        if arguments[0] is float and isinstance(value, list) and {*map(type, value)} <= {float}:  # fast, for long lists
            return True
        return isinstance(value, list | tuple) and all(has_type(item, arguments[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(has_type(item, arguments[1]) for item in value.values())
    if expected in (None, types.NoneType):
        return value is None
    if expected is float:
        return type(value) is float or has_type(value, int)
    if expected is int:
        return type(value) is int and abs(value) <= MAX_INTEGER
    return type(value) is expected


def _type_name(expected: Any) -> str:
    return expected.__name__ if isinstance(expected, type) and not get_args(expected) else str(expected)
