"""The noise on the clean samples and the warnings of a run, in a report."""

import json
from pathlib import Path

import pytest

from metalabelnet.errors import InputError
from metalabelnet.report import make_report
from metalabelnet.report.noise_section import format_noise
from report_runs import HOSTILE, ReportPage, write_run


def rate(wrong: int, n: int) -> dict[str, float]:
    return {"rate": 100 * wrong / n, "low": 1.0, "high": 60.0, "samples": n}


NOISE = {
    **rate(4, 20),
    "by_class": {"a": rate(3, 10), "b": rate(1, 10)},
    "counts": [[0, 0, 7], [0, 1, 3], [1, 0, 1], [1, 1, 9]],
}
CHECK = {"samples": 20, "given_right": 80.0, "corrected_right": 75.0, "keeps_given": True}


def change_summary(folder: Path, **changes: object) -> None:
    """Replace values of the summary; the folder then has no digests."""
    file = folder / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    (folder / "digests.json").unlink(missing_ok=True)


def test_noise_and_warnings_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ("a", "b"))
    assert "No clean sample carries a given label" in ReportPage(make_report([tmp_path / "run"])).text
    change_summary(tmp_path / "run", clean_noise=NOISE, given_check=CHECK, warnings=["labels are odd", HOSTILE[0]])
    text = ReportPage(make_report([tmp_path / "run"])).text
    assert "20 % (95 % CI 1–60 %) of 20 clean samples have a wrong given label." in text
    assert "80 % of given labels and 75 % of corrected labels are right. The label table keeps the given labels" in text
    assert "labels are odd" in text
    assert HOSTILE[0] in text  # as text, not as an element


def test_a_class_beyond_those_of_the_run_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ("a", "b"))
    change_summary(tmp_path / "run", clean_noise=NOISE | {"counts": [[0, 2, 3]]})
    with pytest.raises(InputError, match="noise matrix has a class beyond those of the run"):
        make_report([tmp_path / "run"])


def test_classes_with_the_most_noise_come_first() -> None:
    by_class = {name: rate(k, 20) for k, name in enumerate("abcdefgh")}
    text = format_noise({**rate(4, 20), "by_class": by_class})
    assert [part[0] for part in text.partition("; ")[2].split(", ")] == list("hgfed")
