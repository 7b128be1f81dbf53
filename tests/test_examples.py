"""The examples run and print the expected results."""

import csv
import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
EXPECTED_OUTPUT = {
    "images": r"(\d+) of 30 new images correct",
    "table": r"\d+ of \d+ given",
    "text": r"(\d+) of 30 new texts correct",
}


def test_every_example_is_tested() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(EXPECTED_OUTPUT)


@pytest.mark.parametrize(  # `make docs` runs parts of all three
    "name", ["table", *(pytest.param(name, marks=pytest.mark.slow) for name in ("images", "text"))]
)
def test_example(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(tmp_path / "a folder")])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    found = re.search(EXPECTED_OUTPUT[name], out)
    assert found, out
    if name == "table":
        with (tmp_path / "a folder" / "run" / "labels.csv").open() as file:
            assert len(list(csv.DictReader(file))) == 800
        accuracy = re.search(r"^test accuracy +([\d.]+) %", out, re.MULTILINE)
        assert accuracy
        assert float(accuracy[1]) > 80  # 67 % of the given labels are correct
    else:
        assert int(found[1]) >= 24
    if name == "images":
        before, after = (
            int(re.search(rf"^{column}: (\d+) of 322 correct", out, re.MULTILINE)[1]) for column in ("given", "label")
        )
        assert before == 223
        assert after > 270
