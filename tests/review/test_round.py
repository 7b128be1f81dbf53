"""From data to a model with the page and the commands it shows, for every kind of data."""

import html
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli_runner import run_cli
from review_client import ReviewClient, form_field, open_review, sample_numbers
from tiny_data import CLASSES, write_npz
from user_data import QUICK, TABLE_COLUMNS, table_rows, text_rows, write_csv, write_photos

SHORT = f"{QUICK} --method cross-entropy".split()
Capture = pytest.CaptureFixture[str]


def image_folder(workdir: Path) -> tuple[str, dict[str, str]]:
    write_photos(workdir / "meine photos", count=60)
    return "meine photos", {}


def image_table(workdir: Path) -> tuple[str, dict[str, str]]:
    names = [
        (name, name.split("/")[0].replace("_unlabeled", "")) for name, _ in write_photos(workdir / "pics", count=60)
    ]
    write_csv(workdir / "list.tsv", ("file", "kind"), [(f"pics/{name}", kind) for name, kind in names], "\t")
    return "list.tsv", {"label": "kind"}


def text_table(workdir: Path) -> tuple[str, dict[str, str]]:
    write_csv(workdir / "news.csv", ("words", "topic"), [row[:2] for row in text_rows(40)])
    return "news.csv", {"label": "topic", "text": "words"}


def feature_table(workdir: Path) -> tuple[str, dict[str, str]]:
    write_csv(workdir / "feature_table.csv", TABLE_COLUMNS[:5], [row[:5] for row in table_rows(40)])
    return "feature_table.csv", {"features": "width,color"}


def image_arrays(workdir: Path) -> tuple[str, dict[str, str]]:
    x = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 3), np.uint8)
    np.savez(workdir / "pics.npz", x_train=x, y_train=np.arange(40) % 2, classes=np.array(["cat", "dog, wet"]))
    return "pics.npz", {}


def arrays_with_clean_set(workdir: Path) -> tuple[str, dict[str, str]]:
    x = np.random.default_rng(0).normal(size=(6, 4))
    write_npz(workdir / "mine.npz", x_clean=x, y_clean=np.arange(6) % 3)
    return "mine.npz", {}


def benchmark_data(_workdir: Path) -> tuple[str, dict[str, str]]:
    return "digits", {}


def confirm(page: ReviewClient, times: int) -> int:
    """Confirm the given labels of drawn samples; returns how many were labeled."""
    result = 0
    for _ in range(times):
        shown = page.get("/clean").text
        if not (found := sample_numbers(shown)):
            break
        given = page.row(found[0])["given"]
        hidden = {name: form_field(shown, name) for name in ("n", "seen", "sampling", "blind")}
        verdict_fields = {"action": "skip"} if given < 0 else {"action": "choose", "class": page.source.classes[given]}
        assert page.post("/verdict", page="clean", **hidden, **verdict_fields).status_code == 303
        result += given >= 0
    return result


def commands(page: ReviewClient) -> tuple[list[str], list[str]]:
    """The commands on the page that export the clean set and train with it."""
    (shown,) = re.findall(
        r"<pre><code>(metalabelnet review .*?--export clean.*?)</code>", page.get("/export").text, re.S
    )
    export, train = (shlex.split(line)[1:] for line in html.unescape(shown).split("\n") if line)
    return export, train


@pytest.mark.parametrize(
    "make",
    [
        *(image_folder, text_table, image_arrays),
        *(
            pytest.param(make, marks=pytest.mark.slow)
            for make in (image_table, feature_table, arrays_with_clean_set, benchmark_data)
        ),
    ],
)
def test_from_data_to_model(
    make: Callable[[Path], tuple[str, dict[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    data, read_options = make(tmp_path)
    page = open_review(data, **read_options)
    assert page.get("/").headers["location"] == "/clean"
    page.get("/clean?target=2&blind=1")
    result = confirm(page, 200)
    assert "Every class has 2 confirmed samples" in page.get("/clean").text
    export, train = commands(page)
    assert run_cli(export, capsys).code == 0
    assert len((tmp_path / "clean.csv").read_text().splitlines()) == result + 1
    answer = run_cli([*train, *SHORT, "--out", "run"], capsys)
    assert answer.code == 0, answer.err
    assert f"{result} clean samples" in answer.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    separate = 6 if make is arrays_with_clean_set else 0
    assert summary["samples"]["clean"] + summary["samples"]["validation"] == result + separate
    assert summary["clean_accuracy"] is not None

    again = open_review(tmp_path / "run")  # the next clean set contains that of the run
    assert len(again.rows("split = 'clean'")) == result
    assert len(again.rows("split = 'train'")) == summary["samples"]["train"]
    row = again.rows("split = 'train' AND given >= 0")[0]
    again.post("/verdict", n=row["n"], seen=0, action="keep")
    export, train = commands(again)
    assert run_cli(export, capsys).code == 0
    assert len((tmp_path / "clean.csv").read_text().splitlines()) == result + 2
    assert run_cli([*train, *SHORT, "--out", "second"], capsys).code == 0


def test_commands_contain_database_and_moved_data(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    photos, verdicts = trained / "photos", tmp_path / "my verdicts.sqlite"
    export, _ = commands(open_review(tmp_path / "run", data=str(photos), db=verdicts))
    expected = ["review", str(tmp_path / "run"), "--data", str(photos), "--db", str(verdicts)]
    assert export == [*expected, "--export", "clean", "-o", "clean.csv"]


def test_command_repeats_noise_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The command for a benchmark run has its noise and seed, and the test rows stay the same."""
    monkeypatch.chdir(tmp_path)
    short = [*SHORT, *["--epochs", "1", "--warmup", "0", "--batch-size", "200"]]
    arguments = f"train digits --noise uniform:0.4 --seed 3 --clean 40 {' '.join(short)} --out run"
    assert run_cli(arguments.split(), capsys).code == 0
    page = open_review(tmp_path / "run")
    _, train = commands(page)
    assert train == ["train", "digits", "--noise", "uniform:0.4", "--seed", "3", "--clean", "clean.csv"]
    page.post("/verdict", n=page.rows("split = 'train'")[0]["n"], seen=0, action="keep")
    assert run_cli(commands(page)[0], capsys).code == 0
    answer = run_cli([*train, *short, "--out", "again"], capsys)
    assert answer.code == 0, answer.err
    assert "41 clean samples in clean.csv" in answer.err
    again = open_review(tmp_path / "again")
    tested = [{row["position"] for row in one.rows("split = 'test'")} for one in (page, again)]
    assert tested[0] == tested[1]
    assert len(tested[0]) == 500


def test_invalid_clean_sets_for_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "mine.npz", y_train=np.arange(80) % 3)
    good = [(k, CLASSES[k % 3]) for k in range(12)]
    for rows, more, message in (
        ([*good, (80, "a")], "", "there is no sample '80' in mine"),
        ([*good, ("0.5", "a")], "", "there is no sample '0.5' in mine"),
        ([*good, (12, "d")], "", "unknown class 'd'"),
        ([*good, (12, "")], "", "12 has no label"),
        ([*good, (0, CLASSES[1])], "", "0 occurs twice"),
        (good[:2], "", "is missing from the clean rows"),
        ([(k, CLASSES[k % 3]) for k in range(80)], "", "leaves no training rows"),
        (good, "--split paper", "the split 'paper' takes the clean set from the test part"),
        (good, "--label y", "--label is for a folder of images or a table"),
    ):
        write_csv(tmp_path / "clean.csv", ("id", "label"), rows)
        result = run_cli(["train", "mine.npz", "--clean", "clean.csv", *more.split(), "--out", "run"], capsys)
        assert (result.code, result.out) == (2, ""), message
        assert message in result.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_array_labels_are_true_labels_only_with_added_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "mine.npz", x_test=None, y_test=None)
    write_csv(tmp_path / "clean.csv", ("id", "label"), [(k, CLASSES[k % 3]) for k in range(18)])
    for noise, tested in (("none", 0), ("uniform:0.4", 20)):
        arguments = f"train mine.npz --clean clean.csv --noise {noise} {' '.join(SHORT)} --out {noise[:4]}"
        assert run_cli(arguments.split(), capsys).code == 0
        summary = json.loads((tmp_path / noise[:4] / "summary.json").read_text())
        assert summary["samples"]["test"] <= tested
        assert (summary["right_after"] is None) == (noise == "none")


@pytest.mark.parametrize("kind", ["feature_table", "text_table", "image_table"])
def test_unusable_clean_row_stays_excluded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The data still marks the row as clean; the exported clean set excludes it."""
    monkeypatch.chdir(tmp_path)
    if kind == "feature_table":
        data, more = write_csv(tmp_path / "t.csv", TABLE_COLUMNS, table_rows(80)), ""
    elif kind == "text_table":
        data, more = write_csv(tmp_path / "t.csv", ("text", "topic", "checked"), text_rows(80)), "--label topic"
    else:
        rows = [
            (f"pics/{name}", right, k % 4 == 0) for k, (name, right) in enumerate(write_photos(tmp_path / "pics")[:90])
        ]
        data, more = write_csv(tmp_path / "t.csv", ("file", "label", "checked"), rows), ""
    assert (
        run_cli(["train", data.name, "--clean-column", "checked", *more.split(), *SHORT, "--out", "run0"], capsys).code
        == 0
    )
    page = open_review(tmp_path / "run0")
    before, trained = len(page.rows("split = 'clean'")), {row["id"] for row in page.rows("split = 'train'")}
    unusable, changed, skipped, *_ = page.rows("split = 'clean'")
    other = page.source.classes[changed["clean_label"] - 1]
    for row, result in (
        (unusable, {"action": "unusable"}),
        (changed, {"action": "choose", "class": other}),
        (skipped, {"action": "skip"}),
    ):
        page.post("/verdict", n=row["n"], seen=0, **result)
    for run in ("run1", "run2"):  # in the second round the run excludes it, without a verdict
        export, train = commands(page)
        assert train[train.index("--clean-column") + 1] == "checked"
        assert run_cli(export, capsys).code == 0
        lines = (tmp_path / "clean.csv").read_text().splitlines()[1:]
        assert [line for line in lines if ",," in line] == [f"{unusable['id']},,left out"]
        assert any(line.startswith((f"{changed['id']},{other},", f'{changed["id"]},"{other}",')) for line in lines)
        answer = run_cli([*train, *SHORT, "--out", run], capsys)
        assert answer.code == 0, answer.err
        assert f"{before - 1} clean samples, {before - 1} of them removed from the training rows" in answer.err
        assert (
            "1 samples are marked as clean but have no label in clean.csv: they are neither clean nor trained on"
            in answer.err
        )
        page = open_review(tmp_path / run)
        assert {row["id"] for row in page.rows("split = 'train'")} == trained
        assert [row["id"] for row in page.rows("split = 'left out'")] == [unusable["id"]]


def test_row_marked_clean_after_the_run_is_used(tmp_path: Path, monkeypatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    rows = table_rows(80)
    write_csv(tmp_path / "t.csv", TABLE_COLUMNS, rows)
    assert run_cli(["train", "t.csv", "--clean-column", "checked", *SHORT, "--out", "run"], capsys).code == 0
    open_review(tmp_path / "run")
    marked_clean = next(k for k, row in enumerate(rows) if row[4] and not row[5])
    write_csv(
        tmp_path / "t.csv",
        TABLE_COLUMNS,
        [[*row[:5], "yes" if k == marked_clean else row[5]] for k, row in enumerate(rows)],
    )
    page = open_review(tmp_path / "run")
    export, train = commands(page)
    assert run_cli(export, capsys).code == 0
    answer = run_cli([*train, *SHORT, "--out", "again"], capsys)
    assert answer.code == 0, answer.err
    assert f"{sum(row[5] == 'yes' for row in rows) + 1} clean samples" in answer.err


def test_contradicted_clean_row_is_left_out_with_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "t.csv", TABLE_COLUMNS, table_rows(80))
    assert run_cli(["train", "t.csv", "--clean-column", "checked", *SHORT, "--out", "run"], capsys).code == 0
    page = open_review(tmp_path / "run")
    row = page.rows("split = 'clean'")[0]
    other = page.source.classes[row["clean_label"] - 1]
    page.post("/verdict", n=row["n"], seen=0, action="choose", **{"class": other})
    drawn = run_cli(["review", "run", "--export", "clean", "--drawn"], capsys).out.splitlines()
    assert [line for line in drawn if line.startswith(f"{row['id']},")] == [f"{row['id']},,left out"]
