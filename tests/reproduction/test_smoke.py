"""`reproduce … --smoke` end to end on digits: the files it writes, and that a second call runs nothing."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from metalabelnet.cli import main
from metalabelnet.reproduction.experiments import RUNNABLE
from metalabelnet.reproduction.figures import FIGURES
from metalabelnet.reproduction.results import Results

TABLES = tuple(name for name in RUNNABLE if name not in FIGURES)


def smoke(
    names: tuple[str, ...],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    methods: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> str:
    """Run the smoke test of these experiments; returns stderr."""
    folders = [f"--{name}={folder / name}" for name in ("results", "out", "figures")]
    some = ["--methods", ",".join(methods)] if methods else []
    assert main(["reproduce", *names, *some, "--smoke", "--device", "cpu", *folders, *more]) == 0
    return capsys.readouterr().err


def check_smoke(
    names: tuple[str, ...],
    again: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    methods: tuple[str, ...] = (),
) -> None:
    log = smoke(names, folder, capsys, methods)
    assert "failed" not in log
    assert len(re.findall(r"^\[\d+/\d+\]", log, flags=re.MULTILINE)) == len(Results(folder / "results").lines)
    for name in names:
        markdown = (folder / "figures" / f"{name}.md").read_text()
        rows = [line for line in markdown.splitlines() if line.startswith("| ")]
        assert rows
        filled = [row for row in rows if not methods or row.split()[1] in methods]
        assert not any("|  |" in row for row in filled), "a cell is empty"
        assert (folder / "figures" / f"{name}.tex").read_text().count(r"\begin{tabular}") == markdown.count("| --- |\n")
    before = {file: file.read_bytes() for file in (folder / "figures").iterdir()}
    assert smoke((again,), folder, capsys, methods).startswith("0 of ")
    assert {file: file.read_bytes() for file in (folder / "figures").iterdir()} == before


def test_paper_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Some rows of one table: the others run the same code; test_field.py has the one with an epoch budget."""
    check_smoke(("cifar10n",), "cifar10n", tmp_path, capsys, ("cross-entropy", "co-teaching", "metalabelnet"))
    assert len(Results(tmp_path / "results").lines) == 3
    assert not list((tmp_path / "figures").glob("*.svg"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_smoke(TABLES, "cifar10n", tmp_path, capsys)


PHOTO_TABLES = {  # name: data, some points of the setting that is varied, runs
    "clothing1m-table": ("clothing1m", "", 1),
    "clothing1m-clean-size": ("clothing1m", "500,14000", 2),
    "clothing1m-unlabeled": ("clothing1m", "950000", 2),
    "food101n-table": ("food101n", "", 1),
    "webvision-table": ("webvision-mini", "", 1),
}


@pytest.mark.parametrize("name", PHOTO_TABLES)
def test_table_on_a_stand_in(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A data set of photos in its own layout, from the lists to the table."""
    data, points, runs = PHOTO_TABLES[name]
    check_stand_ins((name,), tmp_path, capsys, ("--points", points) if points else ())
    lines = Results(tmp_path / "results").lines
    assert len(lines) == runs
    for line in lines:
        assert line["settings"]["data"] == data
        assert ("second_test_accuracy" in line["summary"]) == (data == "webvision-mini")


@pytest.mark.slow
def test_tables_on_stand_ins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_stand_ins(tuple(PHOTO_TABLES), tmp_path, capsys)
    # Of 22 runs, the three smallest clean sets are equal in small, and the largest is that of the table.
    assert len(Results(tmp_path / "results").lines) == 19


def check_stand_ins(
    names: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...] = ()
) -> None:
    assert "failed" not in smoke(names, folder, capsys, more=more)
    for line in Results(folder / "results").lines:
        assert line["summary"]["test_top5_accuracy"] >= line["summary"]["test_accuracy"] >= 0
    for name in names:
        assert re.search(r"\| metalabelnet|\d \(1\)", (folder / "figures" / f"{name}.md").read_text())
    assert smoke(names, folder, capsys, more=more).startswith("0 of ")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_figures_and_ablations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_smoke(tuple(FIGURES), "fig-curves", tmp_path, capsys)
    from matplotlib.image import imread

    for name in FIGURES:
        svg, png = (tmp_path / "figures" / f"{name}.{kind}" for kind in ("svg", "png"))
        assert ET.parse(svg).getroot().tag.endswith("svg")
        picture = imread(png)
        assert picture.shape[0] > 500
        assert picture.std() > 0.01, "nothing is drawn"


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (
            "fig-curves --methods cross-entropy",
            ["cross-entropy, uniform 40 %", "cross-entropy, feature-dependent 60 %"],
        ),
        ("fig-curves --cells uniform:0.2", ["metalabelnet, uniform 20 %"]),
    ],
)
def test_selected_runs_are_in_table_and_figure(
    arguments: str, rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smoke(tuple(arguments.split()), tmp_path, capsys)
    table = [row.strip("| ").split(" | ") for row in (tmp_path / "figures" / "fig-curves.md").read_text().splitlines()]
    assert [row[0] for row in table if row[-1].endswith("(1)")] == rows
    assert (tmp_path / "figures" / "fig-curves.svg").is_file()


def test_smoke_writes_nothing_to_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "cifar10-table", "--smoke", "--methods", "cross-entropy", "--cells", "uniform:0.4"]) == 0
    assert str(temporary) in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]
    (folder,) = temporary.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["reproduce", "reproduction", "results"]
