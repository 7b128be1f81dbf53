"""First use: descriptions, path spellings of other programs, tables saved by pandas, files for other tools."""

import json
import os
import shutil
import stat
import struct
import zlib
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest
from PIL import Image

from cli_runner import TINY, run_cli
from metalabelnet.errors import InputError
from metalabelnet.train import RunFolder
from tiny_data import table_samples, write_npz
from user_data import QUICK, TABLE_COLUMNS, read_csv, table_rows, write_csv, write_photos

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(data: str, capsys: Capture, *more: str) -> str:
    output = run_cli(["train", data, *QUICK.split(), "--out", "run", *more], capsys)
    assert output.code == 0, output.err
    return output.err


def input_error(arguments: list[str], capsys: Capture) -> str:
    output = run_cli(arguments, capsys)
    assert (output.code, output.out) == (2, "")
    return output.err.splitlines()[-1]


# Description


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_description_is_printed_before_first_step(
    execution: str, capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling the first step can take a minute."""
    output = []

    def step(*_: object) -> None:
        output.append(capsys.readouterr().err)
        raise InputError("enough")

    monkeypatch.setattr("metalabelnet.train.loop.Engine.step", step)
    run_cli(
        [
            "train",
            str(write_npz(work_dir / "tiny.npz")),
            *TINY.split(),
            "--method",
            "metalabelnet",
            "--execution",
            execution,
        ],
        capsys,
    )
    assert output[0].startswith("metalabelnet on ")
    assert (", steps compiled (takes a minute or more the first time); " in output[0]) == (execution == "compiled")


# Images


def test_unusual_images(capsys: Capture, work_dir: Path) -> None:
    """One pixel is a valid image; a truncated JPEG and 300 million pixels are errors, in train and in predict."""
    true_label = write_photos(work_dir / "photos")
    shutil.rmtree(work_dir / "photos" / "rare")
    write_csv(work_dir / "checked.csv", ["id", "label"], true_label[10:40])
    Image.new("LA", (1, 1), (9, 200)).save(work_dir / "photos" / "birne" / "one pixel.png")
    broken = work_dir / "photos" / "birne" / "hälfte.jpg"
    Image.effect_noise((90, 90), 50).save(broken)
    broken.write_bytes(broken.read_bytes()[:2000])
    about = struct.pack(">IIBBBBB", 20_000, 15_000, 8, 2, 0, 0, 0)
    head = struct.pack(">I", 13) + b"IHDR" + about + struct.pack(">I", zlib.crc32(b"IHDR" + about))
    data = (
        struct.pack(">I", 8)
        + b"IDAT"
        + zlib.compress(b"")
        + struct.pack(">I", zlib.crc32(b"IDAT" + zlib.compress(b"")))
    )
    (work_dir / "photos" / "birne" / "wall.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + data)
    output = input_error(["train", "photos", "--clean", "checked.csv", "--out", "run"], capsys)
    assert "birne/wall.png has 300,000,000 pixels, more than the limit of 89,478,485; repair it" in output
    assert not (work_dir / "run").exists()
    output = train("photos", capsys, "--clean", "checked.csv", "--on-error", "skip")
    assert "2 of 93 samples left out: birne/hälfte.jpg cannot be decoded" in output
    assert "birne/one pixel.png" in {row["id"] for row in read_csv(work_dir / "run" / "labels.csv")}
    output = input_error(["predict", "run", "photos", "-o", "out.csv"], capsys)
    assert "birne/hälfte.jpg cannot be decoded" in output
    assert not [*work_dir.glob("*out.csv*")]
    assert run_cli(["predict", "run", "photos", "-o", "out.csv", "--on-error", "skip"], capsys).code == 0
    assert len(read_csv(work_dir / "out.csv")) == 91


# The clean set


@pytest.mark.parametrize("spelt", ["./{}", "photos/{}", "{absolute}", "backslashes"])
def test_clean_file_path_spellings(spelt: str, capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    shutil.rmtree(work_dir / "photos" / "rare")
    names = [
        name.replace("/", "\\") if spelt == "backslashes" else spelt.format(name, absolute=work_dir / "photos" / name)
        for name, _ in true_label[10:40]
    ]
    write_csv(
        work_dir / "checked.csv", ["id", "label"], zip(names, (kind for _, kind in true_label[10:40]), strict=True)
    )
    assert "30 clean samples, 30 of them removed from the training rows" in train(
        "photos", capsys, "--clean", "checked.csv"
    )


def test_clean_file_in_data_folder_is_not_data(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    shutil.rmtree(work_dir / "photos" / "rare")
    beside = []
    for k, (name, kind) in enumerate(true_label[10:40]):
        (work_dir / "new").mkdir(exist_ok=True)
        shutil.move(work_dir / "photos" / name, work_dir / "new" / f"{k}.png")
        beside.append([f"new/{k}.png", kind])
    write_csv(work_dir / "twice.csv", ["id", "label"], [*beside, *([f"./{name}", kind] for name, kind in beside)])
    train("photos", capsys, "--clean", "twice.csv")
    assert RunFolder(work_dir / "run").summary()["samples"] == {"train": 60, "clean": 24, "validation": 6, "test": 0}
    write_csv(work_dir / "both.csv", ["id", "label"], [*beside, [beside[0][0], beside[1][1]]])
    output = input_error(["train", "photos", "--clean", "both.csv", "--out", "other"], capsys)
    assert f"new/0.png occurs twice, as {beside[0][1]!r} and as {beside[1][1]!r}" in output


def test_clean_file_label_column_may_have_any_name(capsys: Capture, work_dir: Path) -> None:
    """An image folder has no --label option to name the column."""
    true_label = write_photos(work_dir / "photos")
    shutil.rmtree(work_dir / "photos" / "rare")
    write_csv(work_dir / "more.csv", ["wo", "was", "wer"], [[*pair, "ich"] for pair in true_label[10:40]])
    output = input_error(["train", "photos", "--clean", "more.csv", "--out", "run"], capsys)
    assert output.endswith("more.csv: cannot tell which column is the label: wo, was, wer; rename it to label")
    write_csv(work_dir / "checked.csv", ["Filename", "was"], true_label[10:40])
    assert "30 clean samples, 30 of them removed" in train("photos", capsys, "--clean", "checked.csv")


def test_npz_clean_set_is_used_completely(capsys: Capture, work_dir: Path) -> None:
    for count in (30, 120):  # fewer and more than the default of 100
        x, y = table_samples(count, seed=5)
        write_npz(work_dir / f"{count}.npz", x_clean=x, y_clean=y)
        output = run_cli(["train", f"{count}.npz", *QUICK.split(), "--out", f"run{count}"], capsys)
        assert output.code == 0, output.err
        sizes = RunFolder(work_dir / f"run{count}").summary()["samples"]
        assert sizes["clean"] + sizes["validation"] == count
    (work_dir / "30.npz").unlink()  # predictions need the run folder only
    assert run_cli(["predict", "run30", "120.npz"], capsys).code == 0
    assert run_cli(["train", "120.npz", *QUICK.split(), "--clean", "60", "--out", "fewer"], capsys).code == 0
    assert RunFolder(work_dir / "fewer").summary()["samples"]["clean"] == 48


# Tables


def test_pandas_index_column_is_not_a_feature(capsys: Capture, work_dir: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [row[1:] for row in table_rows(120)]
    frame = pandas.DataFrame(rows, columns=TABLE_COLUMNS[1:])
    frame[frame.index % 7 != 3].to_parquet(work_dir / "kept.parquet")
    output = train("kept.parquet", capsys, "--clean-column", "checked")
    assert "3 features, label in 'label', id in '__index_level_0__'" in output
    assert {int(row["id"]) % 7 for row in read_csv(work_dir / "run" / "labels.csv")} == {0, 1, 2, 4, 5, 6}


@pytest.mark.parametrize("wrong", ["LABEL", "Label"])
def test_suggestion_ignores_case(wrong: str, capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    output = input_error(["train", "table.csv", "--label", wrong, "--clean-column", "checked"], capsys)
    assert f"unknown column {wrong!r}: did you mean 'label'?" in output


# Results


def test_summary_without_test_set(capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(120))
    arguments = ["train", "table.csv", "--clean-column", "checked", *QUICK.split(), "--out", "run"]
    output = run_cli(arguments, capsys)
    summary = RunFolder(work_dir / "run").summary()
    assert summary["macro_f1"] is None  # on test samples
    confusion = json.loads((work_dir / "run" / "confusion.json").read_text())
    assert confusion["part"] == "validation"
    counts = np.zeros((2, 2))
    for true, predicted, count in confusion["counts"]:
        counts[true, predicted] = count
    accuracies = 100 * counts.diagonal() / counts.sum(1)
    assert list(summary["clean_class_accuracy"].values()) == pytest.approx(accuracies)
    f1 = 200 * counts.diagonal() / (counts.sum(0) + counts.sum(1))
    assert summary["clean_macro_f1"] == pytest.approx(f1.mean())
    assert f"{summary['clean_macro_f1']:.2f} % on the same samples" in output.out
    assert f"{summary['clean_ece']:.2f} % before calibration" in output.out
    assert "yes ✓: " in output.out


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_label_studio_uses_local_files(kind: str, capsys: Capture, work_dir: Path) -> None:
    """Label Studio 1.23 requires a document root above the folder that is added as local storage."""
    true_label = write_photos(work_dir / "data" / "my photos #1")
    shutil.rmtree(work_dir / "data" / "my photos #1" / "rare")
    if kind == "folder":
        write_csv(work_dir / "checked.csv", ["id", "label"], true_label[10:40])
        train("data/my photos #1", capsys, "--clean", "checked.csv")
        root, storage = work_dir / "data", work_dir / "data" / "my photos #1"
    else:
        rows = [[f"n{k}", f"my photos #1/{name}", y, 10 <= k < 40] for k, (name, y) in enumerate(true_label[:90])]
        write_csv(work_dir / "data" / "list.csv", ["id", "file", "label", "ok"], rows)
        train("data/list.csv", capsys, "--clean-column", "ok")
        root, storage = work_dir, work_dir / "data"
    output = run_cli(["labels", "run", "--top", "5", "--format", "label-studio"], capsys)
    assert f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root}, and add {storage} as local storage" in output.err
    for task in json.loads(output.out):
        address = urlparse(task["data"]["image"])
        assert (address.path, address.fragment) == ("/data/local-files/", "")
        (name,) = parse_qs(address.query)["d"]
        assert (root / name).is_file()
        known = task["data"]["id"] if kind == "folder" else true_label[int(task["data"]["id"][1:])][0]
        assert name.endswith(f"my photos #1/{known}")
    labels = json.loads(run_cli(["labels", "run", "--top", "5", "--format", "fiftyone"], capsys).out)["labels"]
    assert len(labels) == 5
    assert all((storage / f"{name}.png").is_file() for name in labels)
    if kind == "table":
        (work_dir / "data" / "list.csv").unlink()
        gone = run_cli(["labels", "run", "--top", "5", "--format", "label-studio"], capsys)
        assert all(task["data"]["text"] == task["data"]["id"] for task in json.loads(gone.out))
        assert "tasks contain sample ids only. The paths of the images cannot be read: data/list.csv" in gone.err


def test_fiftyone_keeps_files_that_differ_by_extension(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos", unlabeled=0)
    shutil.rmtree(work_dir / "photos" / "rare")
    name = true_label[50][0]
    shutil.copy(work_dir / "photos" / true_label[53][0], work_dir / "photos" / name.replace(".png", ".webp"))
    write_csv(work_dir / "checked.csv", ["id", "label"], true_label[10:40])
    train("photos", capsys, "--clean", "checked.csv")
    output = input_error(["labels", "run", "--format", "fiftyone"], capsys)
    assert f"two samples have the name {name.removesuffix('.png')!r} in FiftyOne" in output


@pytest.mark.parametrize("command", ["labels run", "predict run table.csv"])
def test_output_file_is_replaced_only_when_complete(
    command: str, capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    train("table.csv", capsys, "--clean-column", "checked")
    (work_dir / "folder").mkdir()
    assert "folder is a folder: name a file to write" in input_error([*command.split(), "-o", "folder"], capsys)
    assert "the folder no does not exist" in input_error([*command.split(), "-o", "no/out.csv"], capsys)
    (work_dir / "out.csv").write_text("before")

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert "No space left" in input_error([*command.split(), "-o", "out.csv"], capsys)
    assert (work_dir / "out.csv").read_text() == "before"
    assert not [*work_dir.glob(".out*")]
    assert run_cli([*command.split(), "-o", "out.csv"], capsys).code == 0
    whole = (work_dir / "out.csv").read_text()
    (work_dir / "link.csv").symlink_to("out.csv")
    (work_dir / "out.csv").write_text("before")
    assert run_cli([*command.split(), "-o", "link.csv"], capsys).code == 0
    assert ((work_dir / "link.csv").is_symlink(), (work_dir / "out.csv").read_text()) == (True, whole)


def test_pipe_is_not_replaced(capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    train("table.csv", capsys, "--clean-column", "checked")
    os.mkfifo(work_dir / "pipe")
    reader = os.open(work_dir / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run_cli(["labels", "run", "--top", "2", "-o", "pipe"], capsys).code == 0
        assert os.read(reader, 1 << 16).startswith(b"index,id,given,label")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((work_dir / "pipe").stat().st_mode)


def test_singular_in_imbalance_warning(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90], true_label[91]])
    output = train("photos", capsys, "--clean", "checked.csv")
    assert "classes are imbalanced: 'rare' has 1 label, " in output
