"""The labels export of the command, which reads the samples and not the database, against the export of the page."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_runner import ENVIRONMENT, run_cli
from metalabelnet.data import ReadOptions
from metalabelnet.review import array_samples, exports, source
from report_runs import train_run
from review_client import ReviewClient, open_review


def imported_labels(page: ReviewClient, *, spreadsheet_safe: bool = False) -> str:
    """The labels by a query on the imported samples."""
    rows = exports.corrected_labels(page.store, page.source)
    return "".join(exports.csv_lines(rows, spreadsheet_safe=spreadsheet_safe))


def add_verdicts(page: ReviewClient) -> None:
    """Add a verdict of each kind on trained and clean samples; undo one."""
    for split in ("train", "clean"):
        rows = page.rows("split = ? AND given >= 0 ORDER BY position", split)[:5]
        for row, action in zip(rows, ("keep", "unusable", "skip", "choose", "unusable"), strict=True):
            page.post("/verdict", n=row["n"], seen=0, action=action, tab=split, **{"class": page.source.classes[-1]})
        page.post("/undo", page="check", tab=split)


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_equal_to_the_query_on_imported_samples(
    page: ReviewClient, judged: bool, safe: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if judged:
        add_verdicts(page)
    option = ["--spreadsheet-safe"] if safe else []
    result = run_cli(["review", str(page.source.run), "--export", "labels", *option], capsys)
    assert (result.code, result.err) == (0, "")
    assert result.out == imported_labels(page, spreadsheet_safe=safe)
    assert ("person" in result.out) == judged


def test_table_with_duplicate_ids_and_unlabeled_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    ids = ["=1+1", "b", "b", "\x1b[2J", "@e", *(str(k) for k in range(40))]
    labels = ["-1", "x", "y", "", *("xy"[k % 2] for k in range(41))]
    rows = [f"{name},{k},{label}\n" for k, (name, label) in enumerate(zip(ids, labels, strict=True))]
    file.write_text("id,a,label\n" + "".join(rows))
    result = run_cli(["review", str(file), "--export", "labels", "--spreadsheet-safe"], capsys)
    assert not (tmp_path / "t.csv.review.sqlite").exists()
    page = open_review(file)
    assert result.out == imported_labels(page, spreadsheet_safe=True)
    for row in page.rows("id = 'b'"):
        page.post("/verdict", n=row["n"], seen=0, action="choose", **{"class": "xy"[row["given"] == 0]})
    result = run_cli(["review", str(file), "--export", "labels"], capsys)
    assert result.out == imported_labels(page)
    assert "b,x,y,person," in result.out
    assert "b,y,x,person," in result.out


def test_new_classes_renumber_verdicts_without_changing_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page that is open keeps the classes it has imported."""
    file = tmp_path / "t.csv"
    rows = [f"i{k},{k},{'xy'[k % 2]}\n" for k in range(40)]
    file.write_text("id,a,label\n" + "".join(rows))
    page = open_review(file)
    page.post("/verdict", n=page.rows("id = 'i3'")[0]["n"], seen=0, action="choose", **{"class": "x"})
    before = list(page.store.connection().iterdump())
    file.write_text("id,a,label\n" + "".join([*rows, "i40,40,a\n", "i41,41,a\n"]))
    result = run_cli(["review", str(file), "--export", "labels"], capsys)
    assert "i3,y,x,person," in result.out
    assert list(page.store.connection().iterdump()) == before
    assert result.out == imported_labels(open_review(file))


def test_link_as_database_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id,a,label\n" + "".join(f"i{k},{k},{'xy'[k % 2]}\n" for k in range(40)))
    (tmp_path / "t.csv.review.sqlite").symlink_to(tmp_path / "elsewhere")
    result = run_cli(["review", str(file), "--export", "labels"], capsys)
    assert result.code == 2
    assert "is a symbolic link" in result.err
    assert not (tmp_path / "elsewhere").exists()


def write_npz(file: Path, kind: str, *, rows: int = 60, clean: bool = True, first: int = 0) -> None:
    """Write samples that encode their class, every seventh unlabeled; `first` changes the first sample."""
    true = np.arange(rows) % 3
    x = true[:, None] + np.random.default_rng(0).normal(size=(200, 4))[:rows] / 9
    if kind != "table":
        image = np.uint8(x[:, None, :, None] * 50 % 256).repeat(5, 1).repeat(3, 3)
        x = {"gray": image[..., 0], "channels last": image, "channels first": image.transpose(0, 3, 1, 2)}[kind]
    x[0] += first
    y = np.where(np.arange(rows) % 7, true, -1)
    parts = {"x_clean": x[:12], "y_clean": true[:12]} if clean else {"true_train": true}
    if kind == "table":  # class names, of which one looks like a formula
        names = np.array(["=a", "b", "c", "-1"])
        y, parts = names[y], {name: names[a] if a.ndim == 1 else a for name, a in parts.items()}
    np.savez(file, x_train=x, y_train=y, **parts)


@pytest.fixture(params=["table", "gray", "channels last", "channels first"])
def npz_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run on `data.npz`, whose clean set is separate; its table lacks some of the samples."""
    write_npz(tmp_path / "data.npz", request.param)
    return train_run(tmp_path / "run", str(tmp_path / "data.npz"), clean="all", limit=40, epochs=1, warmup=0)


@pytest.fixture
def no_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loading data with PyTorch fail."""
    monkeypatch.delattr(source, "load_samples")


@pytest.mark.usefixtures("no_pytorch")
def test_npz_file_is_read_without_pytorch(npz_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ["review", str(npz_run), "--export", "labels"]
    first = run_cli(export, capsys)
    assert not (npz_run / "review.sqlite").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "load_samples", array_samples.load_samples, raising=False)
        page = open_review(npz_run)
    assert first.out == imported_labels(page)
    assert first.out.count(",run,") == 40
    for k, row in enumerate(page.rows("1 ORDER BY n LIMIT 9")):
        action = ("choose", "unusable", "skip")[k % 3]
        page.post("/verdict", n=row["n"], seen=0, action=action, **{"class": page.source.classes[1]})
    labels = run_cli([*export, "--spreadsheet-safe"], capsys).out
    assert labels == imported_labels(page, spreadsheet_safe=True)
    assert labels.count(",person,") == 3
    light = source.open_source(str(npz_run), ReadOptions(), labels_only=True)
    assert light.fingerprint == page.source.fingerprint
    assert light.digest(7) == page.source.digest(7)


@pytest.mark.usefixtures("no_pytorch")
def test_npz_file_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_npz(tmp_path / "data.npz", "gray", rows=8, clean=False)
    lines = run_cli(["review", str(tmp_path / "data.npz"), "--export", "labels"], capsys).out.splitlines()
    assert lines[1:4] == ["0,,,,", "1,1,1,given,", "2,2,2,given,"]


@pytest.fixture(params=["default", "paper"])
def drawn_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run on `data.npz` whose clean set was drawn from the training rows."""
    write_npz(tmp_path / "data.npz", "table", clean=False)
    settings = {"protocol": request.param, "clean": 9, "limit": 20, "epochs": 1, "warmup": 0}
    return train_run(tmp_path / "run", str(tmp_path / "data.npz"), **settings)


def test_clean_set_drawn_from_an_npz_file(drawn_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is stored, so that it is not drawn again, with PyTorch; older runs have not stored it."""
    export = ["review", str(drawn_run), "--export", "labels"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(source, "load_samples")
        labels = run_cli(export, capsys).out
    assert labels == imported_labels(open_review(drawn_run))
    assert [labels.count(f",{origin},") for origin in ("clean", "run")] == [9, 20]
    (drawn_run / "clean_set.json").unlink()
    assert run_cli(export, capsys).out == labels


def test_drawn_clean_set_is_exported_without_pytorch(drawn_run: Path, tmp_path: Path) -> None:
    words = ["review", str(drawn_run), "--export", "labels", "-o", str(tmp_path / "labels.csv")]
    code = f"import sys; from metalabelnet.cli import main; sys.exit(main({words}) or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert (tmp_path / "labels.csv").read_text().count(",clean,") == 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has changed since the run wrote it"),
        ("[", "cannot be read"),
        ("{}", "'positions' is missing"),
        ('{"positions": [1, 2], "labels": ["a", 1]}', "not of type"),
        ('{"positions": [1, 2], "labels": [1]}', "are not those of a clean set"),
        ('{"positions": [1, 1], "labels": [1, 1]}', "are not those of a clean set"),
        ('{"positions": [-1], "labels": [1]}', "are not those of a clean set"),
    ],
)
def test_damaged_clean_set_is_named(
    content: str | None, message: str, drawn_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = drawn_run / "clean_set.json"
    if content is None:
        file.write_text(file.read_text().replace("[", "[0, ", 1))
    else:
        (drawn_run / "digests.json").unlink()
        file.write_text(content)
    result = run_cli(["review", str(drawn_run), "--export", "labels"], capsys)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "clean_set.json" in result.err
    assert message in result.err


def test_clean_set_beyond_the_data_is_drawn_again(drawn_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ["review", str(drawn_run), "--export", "labels"]
    labels = run_cli(export, capsys).out
    (drawn_run / "digests.json").unlink()
    for content in ('{"positions": [60], "labels": [0]}', '{"positions": [1], "labels": [3]}'):
        (drawn_run / "clean_set.json").write_text(content)
        assert run_cli(export, capsys).out == labels


@pytest.mark.usefixtures("no_pytorch")
def test_verdicts_on_an_npz_file_that_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are numbers: others may be appended, but not changed."""
    file = tmp_path / "data.npz"
    write_npz(file, "gray")
    export = ["review", str(file), "--export", "labels"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "load_samples", array_samples.load_samples, raising=False)
        page = open_review(file)
    page.post("/verdict", n=page.rows("position = 1")[0]["n"], seen=0, action="choose", **{"class": "2"})
    before = run_cli(export, capsys).out
    assert "\n1,1,2,person,\n" in before
    write_npz(file, "gray", rows=70)
    after = run_cli(export, capsys).out
    assert after.startswith(before)
    assert len(after.splitlines()) == 71
    write_npz(file, "gray", rows=70, first=1)
    result = run_cli(export, capsys)
    assert (result.code, result.out) == (2, "")
    assert "are for other rows" in result.err


@pytest.mark.parametrize(
    ("y", "problem"),
    [([0, 1], "3 samples but 2 labels"), ([0, 1, 2], "row 2 has label 2"), ([0, 1, -2], "row 2 is -2")],
)
def test_npz_file_with_wrong_labels(
    y: list[int], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", x_train=np.eye(3), y_train=y, classes=["a", "b"])
    result = run_cli(["review", str(tmp_path / "data.npz"), "--export", "labels"], capsys)
    assert (result.code, result.out) == (2, "")
    assert problem in result.err


@pytest.mark.parametrize("data", ["images", "npz"])
def test_pytorch_is_not_imported(data: str, page: ReviewClient, tmp_path: Path) -> None:
    """It takes longer to import than 100,000 labels take to write."""
    run = page.source.run
    if data == "npz":
        write_npz(tmp_path / "data.npz", "gray")
        run = train_run(tmp_path / "npz run", str(tmp_path / "data.npz"), clean="all", epochs=1, warmup=0)
        page = open_review(run)
        page.post("/verdict", n=page.rows()[0]["n"], seen=0, action="unusable")
    else:
        add_verdicts(page)
    script = (
        "import sys; from metalabelnet.cli import main; run = sys.argv[1]; "
        "assert main(['review', run, '--export', 'labels', '-o', run + '/a.csv']) == 0; "
        "assert main(['labels', run, '-o', run + '/b.csv']) == 0; "
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(run)]
    assert subprocess.run(command, env=ENVIRONMENT, check=False, capture_output=True).returncode == 0
