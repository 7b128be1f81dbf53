"""What comes out: train's summary, compare's table and picture, label tables."""

import csv
import dataclasses
import io
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from files import QUICK, TABLE, table_rows, write_csv
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.memorization_check import by_heart
from metalabelnet.report.curve_plot import draw_curves
from metalabelnet.train import RunFolder, recipe
from shell import TINY, call
from tiny import BASIC, CLASSES, outcome, samples, snapshot, write_npz

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "small.npz")
    return tmp_path


def test_train_says_what_it_does_and_what_came_out(capsys: Capture, here: Path) -> None:
    said = call(["train", "small.npz", *TINY.split(), "--out", "run"], capsys)
    assert said.code == 0
    lines = said.err.splitlines()
    assert lines[0].startswith(
        "metalabelnet on small.npz: 62 samples of 3 classes (14 unlabeled), 45.8 % of the labels"
    )
    assert "14 clean to learn from and 4 to select on, 30 to test; mlp on cpu" in lines[0]
    assert len(lines) == 6
    for epoch, line in enumerate(lines[1:], 1):
        assert re.fullmatch(rf"metalabelnet: epoch {epoch}/5: loss [\d.]+, clean [\d.]+ %, test [\d.]+ %", line)
    summary = RunFolder(here / "run").summary()
    assert (summary["clean_accuracy"], summary["samples"]["validation"]) == (50.0, 4)
    right = "with 50.00 % of 4 clean samples right, which stands for 15 to 85 % (95 %)"
    assert f"epoch {summary['selected_epoch'] + 1} of 5, {right}" in said.out
    test, last = summary["test_accuracy"], summary["test_accuracy_last"]
    assert f"{test:.2f} %; at the last epoch {last:.2f} %" in said.out
    with (here / "run" / "labels.csv").open(encoding="utf-8") as file:
        suspects = sum(row["suspect"] == "1" for row in csv.DictReader(file))
    assert summary["suspects"] == suspects
    assert f"{suspects} of 48 given labels; suspicion has AUROC" in said.out
    assert said.out.splitlines()[-1].split() == ["run", "folder", "run"]


@pytest.mark.parametrize(("memory", "told"), [(1.0, True), (0.5, False)])
def test_labels_learned_by_heart_are_told(memory: float, told: bool) -> None:
    """A table that says what was given, or the truth in half of the rows; one in four checked labels was wrong."""
    true = torch.arange(200) % 4
    given = torch.where(torch.arange(200) % 4 == 1, (true + 1) % 4, true)
    rows = make_rows(torch.zeros(200, 1), given, true=true, classes=tuple("abcd"), what="rows")
    said = torch.where(torch.arange(200) < 200 * memory, given, true)
    table = LabelTable(rows=rows, probabilities=torch.eye(4)[said] * 0.9 + 0.025)
    clean, select = rows.take(torch.arange(40)), rows.take(torch.arange(40, 48))
    problem = Problem(train=rows, clean=clean, validation=select, test=rows.take(torch.arange(0)), noise_rate=0.25)
    found = by_heart(problem, table)
    assert bool(found) == told
    if told:
        assert found.startswith("0 of 200 labels differ from the given ones, but 12 of 48 clean samples were given")
    unknown = dataclasses.replace(
        problem, clean=clean.with_given(-torch.ones(40).long()), validation=select.take(torch.arange(0))
    )
    assert by_heart(unknown, table) == ""


def test_settings_reach_the_run(capsys: Capture, here: Path) -> None:
    more = "--set beta=0.5 --set differentiation=double-backward --seed 3 --lr-milestones 1,2 --protocol paper --dtype float64"
    assert call(["train", "small.npz", *TINY.split(), *more.split(), "--out", "run"], capsys).code == 0
    run = RunFolder(here / "run").run()
    settings = run.method_settings()
    assert (settings.beta, settings.differentiation) == (0.5, "double-backward")
    assert (run.seed, run.lr_milestones, run.protocol, run.dtype) == (3, (1, 2), "paper", "float64")
    assert (run.noise, run.clean, run.unlabeled, run.epochs, run.warmup) == ("uniform:0.4", 18, 14, 5, 2)


def is_whole_png(content: bytes) -> bool:
    """Follow the chunks of a PNG file and check each sum."""
    if content[:8] != b"\x89PNG\r\n\x1a\n":
        return False
    at, names = 8, []
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        chunk = content[at + 4 : at + 8 + size]
        if struct.unpack(">I", content[at + 8 + size : at + 12 + size]) != (zlib.crc32(chunk),):
            return False
        names.append(chunk[:4])
        at += 12 + size
    return names[0] == b"IHDR" and b"IDAT" in names and names[-1] == b"IEND"


def test_compare_ends_with_a_table_a_picture_and_run_folders(capsys: Capture, here: Path) -> None:
    pytest.importorskip("matplotlib")
    names = ",".join(BASIC)
    arguments = ["compare", "small.npz", "--methods", names, "--seeds", "2", "--jobs", "1", *TINY.split(), "--out", "o"]
    said = call(arguments, capsys)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].endswith("18 clean samples: per cent, mean over 2 seeds ± standard deviation")
    assert [line.split()[0] for line in lines[3:7]] == list(BASIC)
    for name, line in zip(BASIC, lines[3:7], strict=True):
        both = [RunFolder(here / "o" / f"{name}-seed{seed}").summary()["test_accuracy"] for seed in (0, 1)]
        assert f"{np.mean(both):.2f} ± {np.std(both, ddof=1):.2f}" in line
    assert (here / "o" / "table.txt").read_text(encoding="utf-8").splitlines() == lines[1:7]
    assert is_whole_png((here / "o" / "curves.png").read_bytes())
    assert sorted(f.name for f in (here / "o").iterdir()) == sorted(
        ["table.txt", "curves.png", *(f"{name}-seed{seed}" for name in BASIC for seed in (0, 1))]
    )
    before = {f: snapshot(f) for f in (here / "o").iterdir() if f.is_dir()}
    again = call([*arguments, "--resume"], capsys)
    assert (again.code, again.out) == (0, said.out)
    assert {f: snapshot(f) for f in before} == before
    refused = call(arguments, capsys)
    assert refused.code == 2
    assert "holds a run already" in refused.err
    assert {f: snapshot(f) for f in before} == before


def test_one_run_of_compare_is_that_of_train(capsys: Capture, here: Path) -> None:
    common = ["small.npz", *TINY.split(), "--out"]
    assert call(["compare", *common, "o", "--methods", "fine-tune,fine-tune", "--seeds", "1"], capsys).code == 0
    assert call(["train", *common, "t", "--method", "fine-tune"], capsys).code == 0
    assert outcome(here / "o" / "fine-tune-seed0") == outcome(here / "t")


def test_compare_shows_what_it_has_when_a_run_diverges(capsys: Capture, here: Path) -> None:
    arguments = "compare small.npz --methods cross-entropy --seeds 1 --jobs 1 --clean 18 --lr 1e30 --epochs 12 --out o"
    said = call(arguments.split(), capsys)
    assert said.code == 1
    assert said.out.splitlines()[3].split()[:2] == ["cross-entropy", "–"]
    assert "cross-entropy-seed0: " in said.err.splitlines()[-1]
    assert "learning rate 1e+30" in said.err.splitlines()[-1]
    assert "Traceback" not in said.err


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_compare_shows_what_it_has_when_a_run_is_refused(jobs: str, capsys: Capture, here: Path) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    arguments = (
        f"compare table.csv --clean-column checked --methods forward,cross-entropy --seeds 1 --jobs {jobs} {QUICK}"
    )
    said = call([*arguments.split(), "--set", "forward.transition=counted", "--out", "o"], capsys)
    assert said.code == 1
    rows = [line.split() for line in said.out.splitlines()[3:5]]
    assert rows[0][:2] == ["forward", "–"]
    assert rows[1][0] == "cross-entropy"
    assert rows[1][1] != "–"
    assert said.err.splitlines()[-1].startswith("metalabelnet: o/forward-seed0: ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("digits --lr 1e30 --epochs 2 --warmup 1", ["cross-entropy", "fine-tune"]),
        ("table.csv --clean-column checked --set forward.transition=counted", ["forward"]),
    ],
    ids=["diverged", "refused"],
)
def test_compare_without_any_result_draws_no_picture_and_says_why(
    more: str, names: list[str], capsys: Capture, here: Path
) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    arguments = f"compare {more} --methods {','.join(names)} --seeds 1 --jobs 1 --device cpu --out o"
    said = call(arguments.split(), capsys)
    assert said.code == 1
    for name in names:
        assert f"o/{name}-seed0: " in said.err.splitlines()[-1]
    assert not (here / "o" / "curves.png").exists()
    assert "Traceback" not in said.err


def test_without_a_test_part_the_picture_is_of_the_clean_samples(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = pytest.importorskip("matplotlib.axes").Axes
    seen: dict[str, object] = {}
    plot, put = axes.plot, axes.set
    monkeypatch.setattr(axes, "plot", lambda a, x, y, **how: seen.update(y=y.tolist()) or plot(a, x, y, **how))
    monkeypatch.setattr(axes, "set", lambda a, **how: seen.update(how) or put(a, **how))
    for test, label in (
        ([None, None], "accuracy on held-out clean samples (%)"),
        ([7, 8], "accuracy on test samples (%)"),
    ):
        history = [{"test_accuracy": test[k], "clean_accuracy": 50.0 + k} for k in range(2)]
        draw_curves(tmp_path / "curves.png", [(recipe("own.npz", method="cross-entropy", clean=0), history)])
        assert seen["ylabel"] == label
        assert seen["y"] == ([50, 51] if test[0] is None else test)
        assert str(seen["title"]).endswith(", all clean")


def test_compare_without_matplotlib_says_that_there_is_no_picture(
    capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = f"compare small.npz --methods cross-entropy --seeds 1 --jobs 1 {TINY} --out o"
    said = call(arguments.split(), capsys)
    assert said.code == 0
    assert "no picture: a picture of the learning curves needs matplotlib: pip install 'metalabelnet[plot]'" in said.err
    assert not (here / "o" / "curves.png").exists()


# labels


@pytest.fixture
def run(capsys: Capture, here: Path) -> Path:
    assert call(["train", "small.npz", *TINY.split(), "--out", "run"], capsys).code == 0
    return here / "run"


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_labels_gives_the_table_of_the_run(run: Path, capsys: Capture, here: Path) -> None:
    table = (run / "labels.csv").read_text(encoding="utf-8")
    assert call(["labels", "run"], capsys).out == table
    said = call(["labels", "run", "-o", "mine.csv"], capsys)
    assert said.out == "62 rows written to mine.csv\n"
    assert (here / "mine.csv").read_bytes() == table.encode()
    assert {row["label"] for row in read(table)} <= set(CLASSES)


@pytest.mark.parametrize(
    "cut",
    [
        lambda _: b"",
        lambda table: table.splitlines()[0],
        lambda table: table[: table.rindex(b",0.") - 12],
        lambda t: b"\xff",
    ],
    ids=["empty", "header", "cut", "not text"],
)
@pytest.mark.parametrize("more", [[], ["--suspects"]])
def test_a_label_table_that_is_not_whole_is_named(
    cut: Callable[[bytes], bytes], more: list[str], run: Path, capsys: Capture
) -> None:
    file = run / "labels.csv"
    file.write_bytes(cut(file.read_bytes()))
    said = call(["labels", "run", *more], capsys)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "run/labels.csv " in said.err


@pytest.mark.parametrize("content", ['{"method": ', "{}"])
def test_a_damaged_summary_is_one_line_in_every_command(content: str, run: Path, capsys: Capture) -> None:
    (run / "summary.json").write_text(content)
    for words in (["labels", "run"], ["predict", "run", "small.npz"], ["report", "run"], ["review", "run"]):
        said = call(words, capsys)
        assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), words
        assert "run/summary.json " in said.err
    said = call(["train", "small.npz", *TINY.split(), "--out", "run", "--resume"], capsys)
    assert said.code == 2
    assert "run/summary.json " in said.err.splitlines()[-1]


def test_labels_for_data_never_seen(run: Path, capsys: Capture, here: Path) -> None:
    x, y = samples(21, seed=8)
    write_npz(here / "new.npz", x_train=x, y_train=y, x_test=None, y_test=None)
    write_npz(here / "bare.npz", x_train=x, y_train=None, x_test=None, y_test=None, classes=None)
    assert call(["labels", "run", "--data", "new.npz", "-o", "new.csv"], capsys).out.startswith("21 rows")
    labeled = read((here / "new.csv").read_text(encoding="utf-8"))
    bare = read(call(["labels", "run", "--data", "bare.npz"], capsys).out)
    assert [row["label"] for row in labeled] == [row["label"] for row in bare]
    assert [row["given"] for row in labeled] == [CLASSES[c] for c in y]
    assert {row["given"] for row in bare} == {""}
    assert {row["true"] for row in (*labeled, *bare)} == {""}  # nobody has said that the given ones are right
    write_npz(here / "known.npz", x_train=x, y_train=y, true_train=(y + 1) % 3, x_test=None, y_test=None)
    known = read(call(["labels", "run", "--data", "known.npz"], capsys).out)
    assert [row["true"] for row in known] == [CLASSES[(c + 1) % 3] for c in y]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x_train": np.zeros((5, 7)), "y_train": np.zeros(5, int)}, "samples of shape (7,) do not fit run"),
        ({"classes": np.array(["x", "y", "z"])}, "has the classes x, y, z, but run knows a, "),
        ({"y_train": np.full(80, 3), "classes": None}, "labels are 0 to 2"),
    ],
)
def test_labels_refuses_what_does_not_fit(
    changes: dict[str, np.ndarray], says: str, run: Path, capsys: Capture, here: Path
) -> None:
    write_npz(here / "new.npz", **{"x_test": None, "y_test": None, **changes})
    said = call(["labels", "run", "--data", "new.npz", "-o", "new.csv"], capsys)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert says in said.err
    assert not (here / "new.csv").exists()


def test_labels_of_a_run_whose_model_is_another(run: Path, capsys: Capture, here: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    about["run"]["net"] = "mlp"
    about["classes"] = about["classes"][:2]
    (run / "run.json").write_text(json.dumps(about))
    write_npz(here / "new.npz", y_train=np.zeros(80, int), x_test=None, y_test=None, classes=None)
    said = call(["labels", "run", "--data", "new.npz"], capsys)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "is not the model of this run" in said.err


def test_labels_to_a_place_that_cannot_be_written(run: Path, capsys: Capture, here: Path) -> None:
    place = "no/such/folder/labels.csv"
    said = call(["labels", "run", "-o", place], capsys)
    assert (said.code, said.err) == (2, f"metalabelnet: {place} cannot be written: there is no folder no/such/folder\n")
