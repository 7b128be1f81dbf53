"""Pages of runs as they may come: many classes, hostile names, one epoch, old folders, several runs."""

import itertools
import json
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from folders import HOSTILE, Page, page_of, write_run

sys.path.append(str(Path(__file__).parents[1] / "cli"))

from metalabelnet.errors import InputError
from metalabelnet.report import make_report, page, samples, source
from metalabelnet.report.comparison import compare, spread
from metalabelnet.report.curves import Series, chart, ticks
from metalabelnet.report.markup import tag
from metalabelnet.report.section import section
from shell import call

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_thousand_classes(here: Path) -> None:
    write_run(here / "run", tuple(f"class {k}" for k in range(1000)), rows=3000)
    made = page_of(here / "run")
    assert len(made.content) < 200_000
    assert "1000 : class 0 , class 1" in made.text.replace("1000:", "1000 :")
    assert "With 1000 classes the matrix is too large for a page. 2000 samples lie on its diagonal, 1000" in made.text
    assert "class 0 class 999 7 " in made.text
    assert "The 15 worst of 1000 classes" in made.text
    assert "gone.npz is not there any more" in made.text


def test_hostile_names_are_text(here: Path) -> None:
    write_run(here / '<b onclick="x">run', HOSTILE)
    made = page_of(here / '<b onclick="x">run')  # the parser refuses elements and attributes that nobody wrote
    for name in HOSTILE[:2]:
        assert name in made.text
    assert made.count("b") == 0
    assert "x" * 400 not in made.content
    assert "nul � bell �" in made.text
    assert "\x00" not in made.content


def test_a_single_epoch(here: Path) -> None:
    write_run(here / "run", ("a", "b"), epochs=1)
    made = page_of(here / "run")
    assert made.count("circle") == 4  # accuracy and loss, two lines each
    assert made.count("polyline") == 0
    assert "one epoch has none before it to compare with" in made.text


def test_a_folder_of_an_earlier_version(here: Path) -> None:
    folder = write_run(here / "run", ("a", "b"))
    (folder / "confusion.json").unlink()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    bare = [{k: v for k, v in line.items() if k not in ("phase", "candidate")} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bare))
    about = json.loads((folder / "run.json").read_text())
    about["run"] |= {"method": "metalabelnet", "warmup": 1}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "labels.csv").write_text(
        "index,id,given,label,confidence,suspect,true,p_a,p_b\n0,0,a,a,0.6,0,a,0.6,0.4\n1,1,a,b,0.8,1,b,0.2,0.8\n"
    )
    made = page_of(folder)
    assert "This run did not write its confusion matrix" in made.text
    assert "Accuracy of each class" in made.text
    assert "warm-up: epoch 0; after warm-up: epochs 1 to 2" in made.text
    assert "The 2 most suspicious labels" in made.text
    assert re.search(r"1 given a suggested b 80\.0 % suspicion 0\.800 .* suspicion 0\.400", made.text)


def test_stages_that_a_method_does_not_name_are_marked(here: Path) -> None:
    folder = write_run(here / "run", ("a", "b"))
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"candidate": true', '"candidate": false', 2))
    assert "preparation: epochs 0 to 1; after preparation: epoch 2;" in page_of(folder).text


def test_seeds_are_one_row_of_the_comparison(here: Path) -> None:
    folders = [write_run(here / f"seed{k}", ("a", "b"), seed=k) for k in range(3)]
    other = write_run(here / "other", ("a", "b"), seed=5)
    about = json.loads((other / "run.json").read_text())
    about["run"]["batch_size"] = 7
    (other / "run.json").write_text(json.dumps(about))
    made = page_of(*folders, other, folders[0])  # the same folder again counts once
    values = [json.loads((folder / "summary.json").read_text())["test_accuracy"] for folder in folders]
    mean = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert f"cross-entropy, batch_size 64 0, 1, 2 {mean} " in made.text
    assert "cross-entropy, batch_size 7 5 81.54 70.10 " in made.text
    assert made.count("section") == 5
    anchors = {attributes.get("id") for _, attributes in made.elements}
    links = [str(attributes["href"]) for name, attributes in made.elements if name == "a"]
    assert len(links) == 4
    assert {link[1:] for link in links} <= anchors
    assert spread([]) == "–"


def test_the_settings_of_different_methods_are_not_compared(here: Path) -> None:
    folders = [write_run(here / f"{k}", ("a", "b")) for k in range(3)]
    for folder, method, own in zip(folders, ("gce", "sce", "sce"), ({"q": 0.7}, {"a": 1}, {"a": 2}), strict=True):
        about = json.loads((folder / "run.json").read_text())
        about["run"]["method"], about["method_settings"] = method, own
        (folder / "run.json").write_text(json.dumps(about))
    made = page_of(*folders)
    assert re.search(r"seconds gce 0 76\.54 .* sce, sce\.a 1 0 76\.54 .* sce, sce\.a 2 0 76\.54 ", made.text)


def test_rows_that_differ_late_are_told_apart_by_their_folder(here: Path) -> None:
    folders = [write_run(here / name, ("a", "b")) for name in ("one", "two", "three")]
    for k, folder in enumerate(folders):
        about = json.loads((folder / "run.json").read_text())
        about["run"] |= {
            "data": "photographs of many kinds of fruit/" * (k < 2),
            "clean_file": "checked.csv",
            "rate": 0.01 * k,
        }
        about["run"]["clean_column"] = "ok" if k == 2 else None
        (folder / "run.json").write_text(json.dumps(about))
    text = page_of(*folders).text
    assert "one: cross-entropy, data photographs of many" in text
    assert "two: cross-entropy, data photographs of many" in text
    assert "trusted null" not in text.partition("All settings")[0]


def test_a_page_that_grows_too_large_leaves_out_and_says_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [write_run(here / f"seed{k}", ("a", "b"), seed=k) for k in range(3)]
    whole = make_report(folders)
    last = len(whole[whole.index('id="run-3"') :])
    monkeypatch.setattr(page, "MOST_BYTES", page.MOST_BYTES - _room_left(folders) - last // 2)
    made = Page(make_report(folders))
    assert "Without a part of their own, to keep the page small: seed2." in made.text
    assert made.count("section") == 3


def _room_left(folders: list[Path]) -> int:
    """What is left of the limit after these runs."""
    runs = [source.read(folder) for folder in folders]
    parts = [section(run, *samples.find(run, run.suspects), anchor=f"run-{k}") for k, run in enumerate(runs, 1)]
    head = page.size(compare(runs)) if len(runs) > 1 else 0
    return page.MOST_BYTES - head - sum(map(page.size, parts))


def test_pictures_are_the_first_to_be_left_out(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(here / "run", ("a", "b"))
    x = np.random.default_rng(0).integers(0, 255, (60, 30, 30), dtype=np.uint8)
    np.savez(here / "gone.npz", x_train=x, y_train=np.zeros(60, np.int64), classes=np.array(["a", "b"]))
    assert len(page_of(folder).pictures()) == 30
    monkeypatch.setattr(page, "MOST_BYTES", page.MOST_BYTES - _room_left([folder]) - 1)
    made = page_of(folder)
    assert made.pictures() == []
    assert "The samples are left out to keep the page small" in made.text
    assert made.count("li") == 30


def test_nothing_is_downloaded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(here / "run", ("a", "b"))
    about = json.loads((folder / "run.json").read_text())
    monkeypatch.setenv("METALABELNET_DATA", str(here))
    monkeypatch.setattr("metalabelnet.data.benchmarks.cifar.fetch", lambda *_: pytest.fail("downloaded"))
    for data, said in (("cifar10", "cifar10 is not on this computer"), ("in memory", "handed over in memory")):
        about["run"]["data"] = data
        (folder / "run.json").write_text(json.dumps(about))
        assert said in page_of(folder).text


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("labels.csv", "index,id\n", "labels.csv is not the label table of this run"),
        ("labels.csv", None, "labels.csv is missing"),
        ("confusion.json", "{", "confusion.json is not what a run of this program writes"),
        ("confusion.json", '{"part": "test", "counts": [[0, 9, 1]]}', "has a class beyond the 2 of the run"),
        ("summary.json", None, "the run is not finished"),
        ("summary.json", '{"method": "cross', "summary.json cannot be read"),
        ("summary.json", "{}", "summary.json is not what a run of this program writes"),
        ("metrics.jsonl", '{"epoch": 0, "lo', "metrics.jsonl cannot be read"),
    ],
)
def test_a_damaged_folder_is_one_line(here: Path, capsys: Capture, file: str, content: str | None, said: str) -> None:
    folder = write_run(here / "run", ("a", "b"))
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    answer = call(["report", "run"], capsys)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert not (here / "report.html").exists()


def test_the_command(here: Path, capsys: Capture) -> None:
    write_run(here / "run", ("a", "b"))
    answer = call(["report", "run", "-o", "page.html"], capsys)
    assert answer.code == 0
    assert re.fullmatch(r"page\.html written \(0\.0\d MB\)\n", answer.out)
    assert "run: The samples themselves cannot be shown: gone.npz is not there any more" in answer.err
    made = Page((here / "page.html").read_text(encoding="utf-8"))
    assert "Test accuracy 76.54 %" in made.text
    assert call(["report", "run", "-o", "no/such/page.html"], capsys).code == 2
    assert call(["report", "nothing"], capsys).code == 2
    said = call(["report", "run", "-o", "."], capsys)
    assert (said.code, said.err) == (2, "metalabelnet: . is a folder: name a file to write\n")
    (here / "link.html").symlink_to("page.html")
    (here / "page.html").write_text("old")
    assert call(["report", "run", "-o", "link.html"], capsys).code == 0
    assert (here / "link.html").is_symlink()
    assert "Test accuracy 76.54 %" in Page((here / "page.html").read_text(encoding="utf-8")).text
    with pytest.raises(InputError, match="one run folder"):
        make_report([])


def test_ticks_span_the_values_in_round_steps() -> None:
    for low, high in ((0, 1), (0.2, 97.3), (-3, 1e6), (5, 5), (0, 0), (1e-9, 2e-9)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 8
        assert found[0] <= low
        assert found[-1] >= high
        steps = {round((b - a) / (found[1] - found[0]), 6) for a, b in itertools.pairwise(found)}
        assert steps == {1}


def test_text_is_escaped_where_markup_is_not() -> None:
    assert tag("p", "<b>", tag("i", "&"), title='"x"') == '<p title="&quot;x&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert tag("p", "\udce9") == "<p>?</p>"  # of a file name that is not UTF-8


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
def test_values_that_differ_by_rounding_are_drawn(low: float, high: float) -> None:
    found = ticks(low, high)
    assert len(found) >= 2
    assert found == sorted({*found})
    assert found[0] <= low + 1e-9
    assert found[-1] >= high - 1e-9
    drawn = chart("accuracy", [Series(name="a", points=[(0, low), (1, high)])])
    assert "polyline" in str(drawn)
