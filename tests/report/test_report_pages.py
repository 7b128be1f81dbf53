"""Report pages for unusual runs: many classes, hostile names, one epoch, old folders, several runs."""

import itertools
import json
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from report_runs import HOSTILE, ReportPage, parse_report, write_run

sys.path.append(str(Path(__file__).parents[1] / "cli"))

from cli_runner import run_cli
from metalabelnet.errors import InputError
from metalabelnet.report import finished_run, make_report, page, sample_content
from metalabelnet.report.comparison import comparison_html, format_spread
from metalabelnet.report.markup import tag
from metalabelnet.report.run_section import make_section
from metalabelnet.report.svg_chart import Series, chart, ticks

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_thousand_classes(workdir: Path) -> None:
    write_run(workdir / "run", tuple(f"class {k}" for k in range(1000)), rows=3000)
    report = parse_report(workdir / "run")
    assert len(report.content) < 200_000
    assert "1000 : class 0 , class 1" in report.text.replace("1000:", "1000 :")
    assert "The matrix of 1000 classes is too large to show. 2000 samples are on its diagonal, 1000" in report.text
    assert "class 0 class 999 7 " in report.text
    assert "The 15 classes with the lowest accuracy of 1000" in report.text
    assert "gone.npz does not exist" in report.text


def test_names_are_escaped(workdir: Path) -> None:
    write_run(workdir / '<b onclick="x">run', HOSTILE)
    report = parse_report(workdir / '<b onclick="x">run')  # the parser rejects unexpected elements and attributes
    for name in HOSTILE[:2]:
        assert name in report.text
    assert report.count("b") == 0
    assert "x" * 400 not in report.content
    assert "nul � bell �" in report.text
    assert "\x00" not in report.content


def test_single_epoch(workdir: Path) -> None:
    write_run(workdir / "run", ("a", "b"), epochs=1)
    report = parse_report(workdir / "run")
    assert report.count("circle") == 4  # accuracy and loss, two lines each
    assert report.count("polyline") == 0
    assert "needs at least two epochs" in report.text


def test_missing_confusion_matrix(workdir: Path) -> None:
    folder = write_run(workdir / "run", ("a", "b"))
    (folder / "confusion.json").unlink()
    report = parse_report(folder)
    assert "The run folder has no confusion.json" in report.text
    assert "Accuracy of each class" in report.text


def test_unnamed_phases(workdir: Path) -> None:
    folder = write_run(workdir / "run", ("a", "b"))
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"candidate": true', '"candidate": false', 2))
    assert "epochs before selection: epochs 0 to 1; selectable epochs: epoch 2;" in parse_report(folder).text


def test_seeds_share_a_row(workdir: Path) -> None:
    folders = [write_run(workdir / f"seed{k}", ("a", "b"), seed=k) for k in range(3)]
    other = write_run(workdir / "other", ("a", "b"), seed=5)
    about = json.loads((other / "run.json").read_text())
    about["run"]["batch_size"] = 7
    (other / "run.json").write_text(json.dumps(about))
    report = parse_report(*folders, other, folders[0])  # a folder given twice counts once
    values = [json.loads((folder / "summary.json").read_text())["test_accuracy"] for folder in folders]
    mean = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert f"cross-entropy, batch_size 64 0, 1, 2 {mean} " in report.text
    assert "cross-entropy, batch_size 7 5 81.54 70.10 " in report.text
    assert report.count("section") == 5
    anchors = {attributes.get("id") for _, attributes in report.elements}
    links = [str(attributes["href"]) for name, attributes in report.elements if name == "a"]
    assert len(links) == 4
    assert {link[1:] for link in links} <= anchors
    assert format_spread([]) == "–"


def test_settings_are_compared_within_a_method(workdir: Path) -> None:
    folders = [write_run(workdir / f"{k}", ("a", "b")) for k in range(3)]
    for folder, method, own in zip(folders, ("gce", "sce", "sce"), ({"q": 0.7}, {"a": 1}, {"a": 2}), strict=True):
        about = json.loads((folder / "run.json").read_text())
        about["run"]["method"], about["method_settings"] = method, own
        (folder / "run.json").write_text(json.dumps(about))
    report = parse_report(*folders)
    assert re.search(r"seconds gce 0 76\.54 .* sce, sce\.a 1 0 76\.54 .* sce, sce\.a 2 0 76\.54 ", report.text)


def test_rows_with_long_names_show_their_folder(workdir: Path) -> None:
    folders = [write_run(workdir / name, ("a", "b")) for name in ("one", "two", "three")]
    for k, folder in enumerate(folders):
        about = json.loads((folder / "run.json").read_text())
        about["run"] |= {
            "data": "photographs of many kinds of fruit/" * (k < 2),
            "clean_file": "checked.csv",
            "rate": 0.01 * k,
        }
        about["run"]["clean_column"] = "ok" if k == 2 else None
        (folder / "run.json").write_text(json.dumps(about))
    text = parse_report(*folders).text
    assert "one: cross-entropy, data photographs of many" in text
    assert "two: cross-entropy, data photographs of many" in text
    assert "clean_column null" not in text.partition("All settings")[0]


def test_large_page_leaves_out_sections(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [write_run(workdir / f"seed{k}", ("a", "b"), seed=k) for k in range(3)]
    whole = make_report(folders)
    last = len(whole[whole.index('id="run-3"') :])
    monkeypatch.setattr(page, "MAX_PAGE_BYTES", page.MAX_PAGE_BYTES - _bytes_left(folders) - last // 2)
    report = ReportPage(make_report(folders))
    assert "No section, to limit the size of the page: seed2." in report.text
    assert report.count("section") == 3


def _bytes_left(folders: list[Path]) -> int:
    """The bytes left below the limit after these runs."""
    runs = [finished_run.read_run(folder) for folder in folders]
    parts = [
        make_section(run, *sample_content.read_contents(run, run.suspects), anchor=f"run-{k}")
        for k, run in enumerate(runs, 1)
    ]
    head = page.size(comparison_html(runs)) if len(runs) > 1 else 0
    return page.MAX_PAGE_BYTES - head - sum(map(page.size, parts))


def test_samples_are_left_out_before_sections(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(workdir / "run", ("a", "b"))
    x = np.random.default_rng(0).integers(0, 255, (60, 30, 30), dtype=np.uint8)
    np.savez(workdir / "gone.npz", x_train=x, y_train=np.zeros(60, np.int64), classes=np.array(["a", "b"]))
    assert len(parse_report(folder).images()) == 30
    monkeypatch.setattr(page, "MAX_PAGE_BYTES", page.MAX_PAGE_BYTES - _bytes_left([folder]) - 1)
    report = parse_report(folder)
    assert report.images() == []
    assert "The samples are left out to limit the size of the page" in report.text
    assert report.count("li") == 30


def test_nothing_is_downloaded(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(workdir / "run", ("a", "b"))
    about = json.loads((folder / "run.json").read_text())
    monkeypatch.setenv("METALABELNET_DATA", str(workdir))
    monkeypatch.setattr("metalabelnet.data.benchmarks.cifar.fetch", lambda *_: pytest.fail("downloaded"))
    for data, message in (("cifar10", "cifar10 is not downloaded"), ("in memory", "passed in memory")):
        about["run"] |= {"data": data, "data_format": "memory" if data == "in memory" else "benchmark"}
        (folder / "run.json").write_text(json.dumps(about))
        assert message in parse_report(folder).text


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("labels.csv", "index,id\n", "labels.csv is not the label table of this run"),
        ("labels.csv", None, "labels.csv is missing"),
        ("confusion.json", "{", "confusion.json cannot be read"),
        ("confusion.json", '{"part": "test", "counts": [[0, 9, 1]]}', "has a class number beyond the 2 classes"),
        ("summary.json", None, "the run is not finished"),
        ("summary.json", '{"method": "cross', "summary.json cannot be read"),
        ("summary.json", "{}", "summary.json is not a file of a metalabelnet run"),
        ("metrics.jsonl", '{"epoch": 0, "lo', "metrics.jsonl cannot be read"),
    ],
)
def test_damaged_folder_gives_a_one_line_error(
    workdir: Path, capsys: Capture, file: str, content: str | None, message: str
) -> None:
    folder = write_run(workdir / "run", ("a", "b"))
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    answer = run_cli(["report", "run"], capsys)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert not (workdir / "report.html").exists()


def test_report_command(workdir: Path, capsys: Capture) -> None:
    write_run(workdir / "run", ("a", "b"))
    answer = run_cli(["report", "run", "-o", "page.html"], capsys)
    assert answer.code == 0
    assert re.fullmatch(r"page\.html written \(0\.0\d MB\)\n", answer.out)
    assert "run: The samples cannot be shown: gone.npz does not exist" in answer.err
    report = ReportPage((workdir / "page.html").read_text(encoding="utf-8"))
    assert "Test accuracy 76.54 %" in report.text
    assert run_cli(["report", "run", "-o", "no/such/page.html"], capsys).code == 2
    assert run_cli(["report", "nothing"], capsys).code == 2
    message = run_cli(["report", "run", "-o", "."], capsys)
    assert (message.code, message.err) == (2, "metalabelnet: . is a folder: name a file to write\n")
    (workdir / "link.html").symlink_to("page.html")
    (workdir / "page.html").write_text("old")
    assert run_cli(["report", "run", "-o", "link.html"], capsys).code == 0
    assert (workdir / "link.html").is_symlink()
    assert "Test accuracy 76.54 %" in ReportPage((workdir / "page.html").read_text(encoding="utf-8")).text
    with pytest.raises(InputError, match="at least one run folder"):
        make_report([])


def test_ticks_are_round_and_span_the_values() -> None:
    for low, high in ((0, 1), (0.2, 97.3), (-3, 1e6), (5, 5), (0, 0), (1e-9, 2e-9)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 8
        assert found[0] <= low
        assert found[-1] >= high
        steps = {round((b - a) / (found[1] - found[0]), 6) for a, b in itertools.pairwise(found)}
        assert steps == {1}


def test_escaping() -> None:
    assert tag("p", "<b>", tag("i", "&"), title='"x"') == '<p title="&quot;x&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert tag("p", "\udce9") == "<p>?</p>"  # from a file name that is not UTF-8


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (93.33333333333333, 93.33333333333334),
        (0.0, 1e-13),
        (1e-13, 2e-13),
        (-1e-13, 1e-13),
        (1e9, 1e9 + 1e-6),
        (0.0, 2e-9),
    ],
)
def test_nearly_equal_values_are_drawn(low: float, high: float) -> None:
    found = ticks(low, high)
    assert len(found) >= 2
    assert found == sorted({*found})
    assert found[0] <= low + 1e-9
    assert found[-1] >= high - 1e-9
    drawn = chart("accuracy", [Series(name="a", points=[(0, low), (1, high)])])
    assert "polyline" in str(drawn)
