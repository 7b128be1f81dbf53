"""Results: summary of train, table and plot of compare, label tables."""

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

from cli_runner import TINY, run_cli
from metalabelnet.cli.console import format_table
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.memorization_check import memorization_warning
from metalabelnet.report.curve_plot import draw_curves
from metalabelnet.train import RunFolder, make_run
from tiny_data import BASIC_METHODS, CLASSES, folder_contents, run_outputs, table_samples, write_npz
from user_data import QUICK, TABLE_COLUMNS, table_rows, write_csv

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "small.npz")
    return tmp_path


def test_linear_fit_holds_out_no_clean_sample(capsys: Capture, work_dir: Path) -> None:
    output = run_cli(["train", "small.npz", "--clean", "18", "--out", "run"], capsys)
    assert "; 18 clean samples; 30 test samples; linear on cpu" in output.err
    assert "cross-validated on 18 clean samples" in output.out
    assert "metalabelnet-plus on small.npz  no added noise, seed 0" in output.out


def test_train_prints_progress_and_summary(capsys: Capture, work_dir: Path) -> None:
    output = run_cli(["train", "small.npz", *f"--method metalabelnet {TINY} --out run".split()], capsys)
    assert output.code == 0
    lines = output.err.splitlines()
    assert lines[0].startswith(
        "metalabelnet on small.npz: 62 training samples of 3 classes (14 unlabeled), 35.4 % wrong labels; "
    )
    assert "18 clean samples (4 for validation); 30 test samples; mlp on cpu" in lines[0]
    assert len(lines) == 6
    for epoch, line in enumerate(lines[1:], 1):
        assert re.fullmatch(
            rf"metalabelnet: epoch {epoch}/5: loss [\d.]+, clean accuracy [\d.]+ %, test accuracy [\d.]+ %", line
        )
    summary = RunFolder(work_dir / "run").summary()
    assert (summary["clean_accuracy"], summary["samples"]["validation"]) == (75.0, 4)
    assert re.search(rf"^selected epoch +{summary['selected_epoch'] + 1} of 5$", output.out, re.MULTILINE)
    assert "75.00 % (95 % CI 30–95 %) on the 4 clean samples that selected the epoch" in output.out
    test, last = summary["test_accuracy"], summary["test_accuracy_last"]
    assert f"{test:.2f} %; last epoch {last:.2f} %" in output.out
    noise = summary["clean_noise"]
    assert f"{noise['rate']:.0f} % (95 % CI {noise['low']:.0f}–{noise['high']:.0f} %) of 18 clean samples" in output.out
    matrix = output.out.partition("and given label (columns):\n")[2].splitlines()[2:5]
    counts = np.zeros((3, 3), int)
    for true, given, n in noise["counts"]:
        counts[true, given] = n
    assert [list(map(int, line.split()[-3:])) for line in matrix] == counts.tolist()
    assert f"of corrected labels are right on {summary['given_check']['samples']} clean samples" in output.out
    with (work_dir / "run" / "labels.csv").open(encoding="utf-8") as file:
        suspects = sum(row["suspect"] == "1" for row in csv.DictReader(file))
    assert summary["suspects"] == suspects
    assert f"{suspects} of 48 given labels; detection AUROC" in output.out
    assert output.out.splitlines()[-1].split() == ["run", "folder", "run"]


@pytest.mark.parametrize(("memory", "expects_warning"), [(1.0, True), (0.5, False)])
def test_memorization_warning(memory: float, expects_warning: bool) -> None:
    """The table equals the given labels, or is correct in half of the rows. A quarter of the given labels is wrong."""
    true = torch.arange(200) % 4
    given = torch.where(torch.arange(200) % 4 == 1, (true + 1) % 4, true)
    rows = make_rows(torch.zeros(200, 1), given, true=true, classes=tuple("abcd"), what="rows")
    corrected = torch.where(torch.arange(200) < 200 * memory, given, true)
    table = LabelTable(rows=rows, probabilities=torch.eye(4)[corrected] * 0.9 + 0.025)
    clean, select = rows.take(torch.arange(40)), rows.take(torch.arange(40, 48))
    problem = Problem(train=rows, clean=clean, validation=select, test=rows.take(torch.arange(0)), noise_rate=0.25)
    found = memorization_warning(problem, table)
    assert bool(found) == expects_warning
    if expects_warning:
        assert found.startswith(
            "0 of 200 corrected labels differ from the given ones, but 12 of 48 clean samples have a wrong"
        )
    unknown = dataclasses.replace(
        problem, clean=clean.with_given_labels(-torch.ones(40).long()), validation=select.take(torch.arange(0))
    )
    assert memorization_warning(unknown, table) == ""


def test_options_reach_the_run(capsys: Capture, work_dir: Path) -> None:
    more = "--method metalabelnet --set beta=0.5 --set differentiation=double-backward --seed 3"
    more += " --lr-milestones 1,2 --protocol paper --dtype float64"
    assert run_cli(["train", "small.npz", *TINY.split(), *more.split(), "--out", "run"], capsys).code == 0
    run = RunFolder(work_dir / "run").run()
    settings = run.method_settings()
    assert (settings.beta, settings.differentiation) == (0.5, "double-backward")
    assert (run.seed, run.lr_milestones, run.protocol, run.dtype) == (3, (1, 2), "paper", "float64")
    assert (run.noise, run.clean, run.unlabeled, run.epochs, run.warmup) == ("uniform:0.4", 18, 14, 5, 2)


def is_complete_png(content: bytes) -> bool:
    """Check the checksum of every chunk of a PNG file."""
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


def test_compare_prints_the_noise_matrix(capsys: Capture, work_dir: Path) -> None:
    header = "clean samples by true class (rows) and given label (columns):"
    data = ["small.npz", "--clean", "18", "--noise", "uniform:0.4", "--device", "cpu"]
    train_lines = run_cli(["train", *data, "--out", "t"], capsys).out.splitlines()
    matrix = train_lines[train_lines.index(header) : train_lines.index("")]
    assert len(matrix) == 6  # names of the classes, a rule, three classes
    methods = ["--methods", "metalabelnet-plus,logistic-given", "--seeds", "1", "--jobs", "1", "--out", "c"]
    compared = run_cli(["compare", *data, *methods], capsys).out.splitlines()
    start = compared.index(header)
    assert compared[start - 1].startswith("noise rate: ")
    assert compared[start : start + len(matrix)] == matrix


def test_compare_writes_table_plot_and_run_folders(capsys: Capture, work_dir: Path) -> None:
    pytest.importorskip("matplotlib")
    names = ",".join(BASIC_METHODS)
    arguments = ["compare", "small.npz", "--methods", names, "--seeds", "2", "--jobs", "1", *TINY.split(), "--out", "o"]
    output = run_cli(arguments, capsys)
    assert output.code == 0
    lines = output.out.splitlines()
    assert lines[0].endswith("18 clean samples; in %, mean ± standard deviation over 2 seeds")
    assert [line.split()[0] for line in lines[3:7]] == list(BASIC_METHODS)
    assert [line.partition(":")[0] for line in lines[7:9]] == ["noise rate, seed 0", "noise rate, seed 1"]
    for name, line in zip(BASIC_METHODS, lines[3:7], strict=True):
        both = [RunFolder(work_dir / "o" / f"{name}-seed{seed}").summary()["test_accuracy"] for seed in (0, 1)]
        assert f"{np.mean(both):.2f} ± {np.std(both, ddof=1):.2f}" in line
    assert (work_dir / "o" / "table.txt").read_text(encoding="utf-8").splitlines() == lines[1:7]
    assert is_complete_png((work_dir / "o" / "curves.png").read_bytes())
    assert sorted(f.name for f in (work_dir / "o").iterdir()) == sorted(
        ["table.txt", "curves.png", *(f"{name}-seed{seed}" for name in BASIC_METHODS for seed in (0, 1))]
    )
    before = {f: folder_contents(f) for f in (work_dir / "o").iterdir() if f.is_dir()}
    again = run_cli([*arguments, "--resume"], capsys)
    assert (again.code, again.out) == (0, output.out)
    assert {f: folder_contents(f) for f in before} == before
    input_error = run_cli(arguments, capsys)
    assert input_error.code == 2
    assert "already holds a run" in input_error.err
    assert {f: folder_contents(f) for f in before} == before


def test_compare_run_equals_train_run(capsys: Capture, work_dir: Path) -> None:
    common = ["small.npz", *TINY.split(), "--out"]
    assert run_cli(["compare", *common, "o", "--methods", "fine-tune,fine-tune", "--seeds", "1"], capsys).code == 0
    assert run_cli(["train", *common, "t", "--method", "fine-tune"], capsys).code == 0
    assert run_outputs(work_dir / "o" / "fine-tune-seed0") == run_outputs(work_dir / "t")


def test_compare_when_a_run_diverges(capsys: Capture, work_dir: Path) -> None:
    arguments = "compare small.npz --methods cross-entropy --seeds 1 --jobs 1 --clean 18 --lr 1e30 --epochs 12 --out o"
    output = run_cli(arguments.split(), capsys)
    assert output.code == 1
    assert output.out.splitlines()[3].split()[:2] == ["cross-entropy", "–"]
    assert "cross-entropy-seed0: " in output.err.splitlines()[-1]
    assert "after epoch 0 with learning rate 1e+30" in output.err.splitlines()[-1]
    assert "Traceback" not in output.err


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_compare_when_a_run_is_rejected(jobs: str, capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    arguments = (
        "compare table.csv --clean-column checked --methods forward,cross-entropy --seeds 1 "
        f"--jobs {jobs} {QUICK.removeprefix('--method metalabelnet')}"
    )
    output = run_cli([*arguments.split(), "--set", "forward.transition=counted", "--out", "o"], capsys)
    assert output.code == 1
    rows = [line.split() for line in output.out.splitlines()[3:5]]
    assert rows[0][:2] == ["forward", "–"]
    assert rows[1][0] == "cross-entropy"
    assert rows[1][1] != "–"
    assert output.err.splitlines()[-1].startswith("metalabelnet: o/forward-seed0: ")
    assert "Traceback" not in output.err


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("digits --lr 1e30 --epochs 2 --warmup 1", ["cross-entropy", "fine-tune"]),
        ("table.csv --clean-column checked --set forward.transition=counted", ["forward"]),
    ],
    ids=["diverged", "refused"],
)
def test_compare_when_every_run_fails(more: str, names: list[str], capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    arguments = f"compare {more} --methods {','.join(names)} --seeds 1 --jobs 1 --device cpu --out o"
    output = run_cli(arguments.split(), capsys)
    assert output.code == 1
    for name in names:
        assert f"o/{name}-seed0: " in output.err.splitlines()[-1]
    assert not (work_dir / "o" / "curves.png").exists()
    assert "Traceback" not in output.err


def test_plot_without_test_set_shows_clean_accuracy(
    work_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = pytest.importorskip("matplotlib.axes").Axes
    seen: dict[str, object] = {}
    plot, put = axes.plot, axes.set
    monkeypatch.setattr(axes, "plot", lambda a, x, y, **how: seen.update(y=y.tolist()) or plot(a, x, y, **how))
    monkeypatch.setattr(axes, "set", lambda a, **how: seen.update(how) or put(a, **how))
    for test, label in (
        ([None, None], "accuracy on validation samples (%)"),
        ([7, 8], "accuracy on test samples (%)"),
    ):
        history = [{"test_accuracy": test[k], "clean_accuracy": 50.0 + k} for k in range(2)]
        draw_curves(
            tmp_path / "curves.png",
            [(make_run("own.npz", recipe="paper", method="cross-entropy", clean="all"), history)],
        )
        assert seen["ylabel"] == label
        assert seen["y"] == ([50, 51] if test[0] is None else test)
        assert str(seen["title"]).endswith(", all clean samples")


def test_compare_without_matplotlib(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = f"compare small.npz --methods cross-entropy --seeds 1 --jobs 1 {TINY} --out o"
    output = run_cli(arguments.split(), capsys)
    assert output.code == 0
    assert "no plot: a plot of the learning curves needs matplotlib: pip install 'metalabelnet[plot]'" in output.err
    assert not (work_dir / "o" / "curves.png").exists()


# labels


@pytest.fixture
def run(capsys: Capture, work_dir: Path) -> Path:
    assert run_cli(["train", "small.npz", *f"--method metalabelnet {TINY} --out run".split()], capsys).code == 0
    return work_dir / "run"


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_labels_prints_label_table(run: Path, capsys: Capture, work_dir: Path) -> None:
    table = (run / "labels.csv").read_text(encoding="utf-8")
    assert run_cli(["labels", "run"], capsys).out == table
    output = run_cli(["labels", "run", "-o", "mine.csv"], capsys)
    assert output.out == "62 rows written to mine.csv\n"
    assert (work_dir / "mine.csv").read_bytes() == table.encode()
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
def test_incomplete_label_table(cut: Callable[[bytes], bytes], more: list[str], run: Path, capsys: Capture) -> None:
    file = run / "labels.csv"
    file.write_bytes(cut(file.read_bytes()))
    output = run_cli(["labels", "run", *more], capsys)
    assert (output.code, output.out, output.err.count("\n")) == (2, "", 1)
    assert "run/labels.csv " in output.err


@pytest.mark.parametrize("content", ['{"method": ', "{}"])
def test_damaged_summary_gives_one_line_in_every_command(content: str, run: Path, capsys: Capture) -> None:
    (run / "summary.json").write_text(content)
    for words in (["labels", "run"], ["predict", "run", "small.npz"], ["report", "run"], ["review", "run"]):
        output = run_cli(words, capsys)
        assert (output.code, output.out, output.err.count("\n")) == (2, "", 1), words
        assert "run/summary.json " in output.err
    output = run_cli(["train", "small.npz", *f"--method metalabelnet {TINY} --out run --resume".split()], capsys)
    assert output.code == 2
    assert "run/summary.json " in output.err.splitlines()[-1]


def test_labels_for_new_data(run: Path, capsys: Capture, work_dir: Path) -> None:
    x, y = table_samples(21, seed=8)
    write_npz(work_dir / "new.npz", x_train=x, y_train=y, x_test=None, y_test=None)
    write_npz(work_dir / "bare.npz", x_train=x, y_train=None, x_test=None, y_test=None, classes=None)
    assert run_cli(["labels", "run", "--data", "new.npz", "-o", "new.csv"], capsys).out.startswith("21 rows")
    labeled = read((work_dir / "new.csv").read_text(encoding="utf-8"))
    bare = read(run_cli(["labels", "run", "--data", "bare.npz"], capsys).out)
    assert [row["label"] for row in labeled] == [row["label"] for row in bare]
    assert [row["given"] for row in labeled] == [CLASSES[c] for c in y]
    assert {row["given"] for row in bare} == {""}
    assert {row["true"] for row in (*labeled, *bare)} == {""}  # true labels are unknown
    write_npz(work_dir / "known.npz", x_train=x, y_train=y, true_train=(y + 1) % 3, x_test=None, y_test=None)
    known = read(run_cli(["labels", "run", "--data", "known.npz"], capsys).out)
    assert [row["true"] for row in known] == [CLASSES[(c + 1) % 3] for c in y]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x_train": np.zeros((5, 7)), "y_train": np.zeros(5, int)}, "samples of shape (7,) do not fit run"),
        ({"classes": np.array(["x", "y", "z"])}, "has the classes x, y, z, but run has a, "),
        ({"y_train": np.full(80, 3), "classes": None}, "labels are 0 to 2"),
    ],
)
def test_labels_for_new_data_of_other_shape(
    changes: dict[str, np.ndarray], says: str, run: Path, capsys: Capture, work_dir: Path
) -> None:
    write_npz(work_dir / "new.npz", **{"x_test": None, "y_test": None, **changes})
    output = run_cli(["labels", "run", "--data", "new.npz", "-o", "new.csv"], capsys)
    assert (output.code, output.err.count("\n")) == (2, 1)
    assert says in output.err
    assert not (work_dir / "new.csv").exists()


def test_labels_with_model_of_another_run(run: Path, capsys: Capture, work_dir: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    about["run"]["net"] = "mlp"
    about["classes"] = about["classes"][:2]
    (run / "run.json").write_text(json.dumps(about))
    (run / "digests.json").unlink()
    write_npz(work_dir / "new.npz", y_train=np.zeros(80, int), x_test=None, y_test=None, classes=None)
    output = run_cli(["labels", "run", "--data", "new.npz"], capsys)
    assert (output.code, output.err.count("\n")) == (2, 1)
    assert "does not fit the run" in output.err


def test_labels_output_cannot_be_written(run: Path, capsys: Capture, work_dir: Path) -> None:
    place = "no/such/folder/labels.csv"
    output = run_cli(["labels", "run", "-o", place], capsys)
    assert (output.code, output.err) == (
        2,
        f"metalabelnet: {place} cannot be written: the folder no/such/folder does not exist; create it first\n",
    )


def test_a_long_cell_does_not_lengthen_the_line_below_the_head() -> None:
    head, rule, row, _ = format_table(["name", "value"], [["a", "x" * 200], ["long name", "y"]]).splitlines()
    assert (head, rule) == ("name       value", "---------  " + "-" * 40)
    assert row == "a          " + "x" * 200
