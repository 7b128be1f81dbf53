"""What a newcomer runs into: paths as other programs write them, tables as pandas saves them, files for other tools."""

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

from files import QUICK, TABLE, photos, read_csv, table_rows, write_csv
from metalabelnet.errors import InputError
from metalabelnet.train import RunFolder
from shell import TINY, call
from tiny import samples, write_npz

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(data: str, capsys: Capture, *more: str) -> str:
    said = call(["train", data, *QUICK.split(), "--out", "run", *more], capsys)
    assert said.code == 0, said.err
    return said.err


def refused(arguments: list[str], capsys: Capture) -> str:
    said = call(arguments, capsys)
    assert (said.code, said.out) == (2, "")
    return said.err.splitlines()[-1]


# What is said first


@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_what_will_be_done_is_said_before_the_first_step(
    execution: str, capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where steps are recorded the first is compiled, and nobody should wonder for a minute."""
    said = []

    def step(*_: object) -> None:
        said.append(capsys.readouterr().err)
        raise InputError("enough")

    monkeypatch.setattr("metalabelnet.train.loop.Engine.step", step)
    call(["train", str(write_npz(here / "tiny.npz")), *TINY.split(), "--execution", execution], capsys)
    assert said[0].startswith("metalabelnet on ")
    assert (", steps recorded, compiled (a minute or more, the first time) and replayed; " in said[0]) == (
        execution == "compiled"
    )


# Images


def test_images_that_are_hardly_any(capsys: Capture, here: Path) -> None:
    """A single pixel is a picture; half a JPEG and 300 million pixels are not, for training and for predicting."""
    true_label = photos(here / "photos")
    shutil.rmtree(here / "photos" / "rare")
    write_csv(here / "checked.csv", ["id", "label"], true_label[10:40])
    Image.new("LA", (1, 1), (9, 200)).save(here / "photos" / "birne" / "one pixel.png")
    broken = here / "photos" / "birne" / "hälfte.jpg"
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
    (here / "photos" / "birne" / "wall.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + data)
    said = refused(["train", "photos", "--clean", "checked.csv", "--out", "run"], capsys)
    assert "birne/wall.png has 300,000,000 pixels, more than the 89,478,485 that are decoded; repair it" in said
    assert not (here / "run").exists()
    said = train("photos", capsys, "--clean", "checked.csv", "--on-error", "skip")
    assert "2 of 93 samples left out: birne/hälfte.jpg cannot be decoded" in said
    assert "birne/one pixel.png" in {row["id"] for row in read_csv(here / "run" / "labels.csv")}
    said = refused(["predict", "run", "photos", "-o", "out.csv"], capsys)
    assert "birne/hälfte.jpg cannot be decoded" in said
    assert not [*here.glob("*out.csv*")]
    assert call(["predict", "run", "photos", "-o", "out.csv", "--on-error", "skip"], capsys).code == 0
    assert len(read_csv(here / "out.csv")) == 91


# The clean set


@pytest.mark.parametrize("spelt", ["./{}", "photos/{}", "{absolute}", "backslashes"])
def test_paths_of_a_clean_set_as_other_programs_write_them(spelt: str, capsys: Capture, here: Path) -> None:
    true_label = photos(here / "photos")
    shutil.rmtree(here / "photos" / "rare")
    names = [
        name.replace("/", "\\") if spelt == "backslashes" else spelt.format(name, absolute=here / "photos" / name)
        for name, _ in true_label[10:40]
    ]
    write_csv(here / "checked.csv", ["id", "label"], zip(names, (kind for _, kind in true_label[10:40]), strict=True))
    assert "30 clean samples, 30 of them taken out of training" in train("photos", capsys, "--clean", "checked.csv")


def test_a_clean_file_beside_the_data_counts_once(capsys: Capture, here: Path) -> None:
    true_label = photos(here / "photos")
    shutil.rmtree(here / "photos" / "rare")
    beside = []
    for k, (name, kind) in enumerate(true_label[10:40]):
        (here / "new").mkdir(exist_ok=True)
        shutil.move(here / "photos" / name, here / "new" / f"{k}.png")
        beside.append([f"new/{k}.png", kind])
    write_csv(here / "twice.csv", ["id", "label"], [*beside, *([f"./{name}", kind] for name, kind in beside)])
    train("photos", capsys, "--clean", "twice.csv")
    assert RunFolder(here / "run").summary()["samples"] == {"train": 60, "clean": 24, "validation": 6, "test": 0}
    write_csv(here / "both.csv", ["id", "label"], [*beside, [beside[0][0], beside[1][1]]])
    said = refused(["train", "photos", "--clean", "both.csv", "--out", "other"], capsys)
    assert f"new/0.png is there twice, as {beside[0][1]!r} and as {beside[1][1]!r}" in said


def test_the_label_of_a_clean_set_may_have_any_name_beside_the_id(capsys: Capture, here: Path) -> None:
    """For a folder there is no --label to name it with."""
    true_label = photos(here / "photos")
    shutil.rmtree(here / "photos" / "rare")
    write_csv(here / "more.csv", ["wo", "was", "wer"], [[*pair, "ich"] for pair in true_label[10:40]])
    said = refused(["train", "photos", "--clean", "more.csv", "--out", "run"], capsys)
    assert said.endswith("more.csv: which column is the label: wo, was, wer? call it label")
    write_csv(here / "checked.csv", ["Filename", "was"], true_label[10:40])
    assert "30 clean samples, 30 of them taken out" in train("photos", capsys, "--clean", "checked.csv")


def test_an_npz_file_brings_its_whole_clean_set(capsys: Capture, here: Path) -> None:
    for count in (30, 120):  # fewer than the 100 that are drawn where nobody says how many, and more
        x, y = samples(count, seed=5)
        write_npz(here / f"{count}.npz", x_clean=x, y_clean=y)
        said = call(["train", f"{count}.npz", *QUICK.split(), "--out", f"run{count}"], capsys)
        assert said.code == 0, said.err
        sizes = RunFolder(here / f"run{count}").summary()["samples"]
        assert sizes["clean"] + sizes["validation"] == count
    (here / "30.npz").unlink()  # what is left of a run is enough to ask it
    assert call(["predict", "run30", "120.npz"], capsys).code == 0
    assert call(["train", "120.npz", *QUICK.split(), "--clean", "60", "--out", "fewer"], capsys).code == 0
    assert RunFolder(here / "fewer").summary()["samples"]["clean"] == 48


# Tables


def test_row_numbers_that_pandas_saved_along_are_no_feature(capsys: Capture, here: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [row[1:] for row in table_rows(120)]
    frame = pandas.DataFrame(rows, columns=TABLE[1:])
    frame[frame.index % 7 != 3].to_parquet(here / "kept.parquet")
    said = train("kept.parquet", capsys, "--clean-column", "checked")
    assert "3 features, label in 'label', id in '__index_level_0__'" in said
    assert {int(row["id"]) % 7 for row in read_csv(here / "run" / "labels.csv")} == {0, 1, 2, 4, 5, 6}


@pytest.mark.parametrize("wrong", ["LABEL", "Label"])
def test_a_name_in_another_case_is_suggested(wrong: str, capsys: Capture, here: Path) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    said = refused(["train", "table.csv", "--label", wrong, "--clean-column", "checked"], capsys)
    assert f"unknown column {wrong!r}: did you mean 'label'?" in said


# What comes out


def test_without_a_test_part_the_clean_samples_say_more_than_accuracy(capsys: Capture, here: Path) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(120))
    arguments = ["train", "table.csv", "--clean-column", "checked", *QUICK.split(), "--out", "run"]
    said = call(arguments, capsys)
    summary = RunFolder(here / "run").summary()
    assert summary["macro_f1"] is None  # that of the test part
    confusion = json.loads((here / "run" / "confusion.json").read_text())
    assert confusion["part"] == "validation"
    counts = np.zeros((2, 2))
    for true, predicted, count in confusion["counts"]:
        counts[true, predicted] = count
    accuracies = 100 * counts.diagonal() / counts.sum(1)
    assert list(summary["clean_class_accuracy"].values()) == pytest.approx(accuracies)
    f1 = 200 * counts.diagonal() / (counts.sum(0) + counts.sum(1))
    assert summary["clean_macro_f1"] == pytest.approx(f1.mean())
    assert f"{summary['clean_macro_f1']:.2f} % of the same samples" in said.out
    assert f"{summary['clean_ece']:.2f} % before calibrating on them" in said.out
    assert "yes ✓ " in said.out


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_label_studio_is_asked_for_local_files(kind: str, capsys: Capture, here: Path) -> None:
    """Below the root, which must not be the folder that is added as storage: as Label Studio 1.23 wants it."""
    true_label = photos(here / "data" / "my photos #1")
    shutil.rmtree(here / "data" / "my photos #1" / "rare")
    if kind == "folder":
        write_csv(here / "checked.csv", ["id", "label"], true_label[10:40])
        train("data/my photos #1", capsys, "--clean", "checked.csv")
        root, storage = here / "data", here / "data" / "my photos #1"
    else:
        rows = [[f"n{k}", f"my photos #1/{name}", y, 10 <= k < 40] for k, (name, y) in enumerate(true_label[:90])]
        write_csv(here / "data" / "list.csv", ["id", "file", "label", "ok"], rows)
        train("data/list.csv", capsys, "--clean-column", "ok")
        root, storage = here, here / "data"
    said = call(["labels", "run", "--top", "5", "--format", "label-studio"], capsys)
    assert f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root}, and add {storage} as local storage" in said.err
    for task in json.loads(said.out):
        address = urlparse(task["data"]["image"])
        assert (address.path, address.fragment) == ("/data/local-files/", "")
        (name,) = parse_qs(address.query)["d"]
        assert (root / name).is_file()
        known = task["data"]["id"] if kind == "folder" else true_label[int(task["data"]["id"][1:])][0]
        assert name.endswith(f"my photos #1/{known}")
    labels = json.loads(call(["labels", "run", "--top", "5", "--format", "fiftyone"], capsys).out)["labels"]
    assert len(labels) == 5
    assert all((storage / f"{name}.png").is_file() for name in labels)
    if kind == "table":
        (here / "data" / "list.csv").unlink()
        gone = call(["labels", "run", "--top", "5", "--format", "label-studio"], capsys)
        assert all(task["data"]["text"] == task["data"]["id"] for task in json.loads(gone.out))
        assert "tasks hold ids alone. The paths of the images cannot be read: data/list.csv" in gone.err


def test_fiftyone_does_not_lose_one_of_two_files_that_differ_by_their_ending(capsys: Capture, here: Path) -> None:
    true_label = photos(here / "photos", unlabeled=0)
    shutil.rmtree(here / "photos" / "rare")
    name = true_label[50][0]
    shutil.copy(here / "photos" / true_label[53][0], here / "photos" / name.replace(".png", ".webp"))
    write_csv(here / "checked.csv", ["id", "label"], true_label[10:40])
    train("photos", capsys, "--clean", "checked.csv")
    said = refused(["labels", "run", "--format", "fiftyone"], capsys)
    assert f"two samples are {name.removesuffix('.png')!r} to FiftyOne" in said


@pytest.mark.parametrize("command", ["labels run", "predict run table.csv"])
def test_what_stood_there_stays_until_the_new_file_is_whole(
    command: str, capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    train("table.csv", capsys, "--clean-column", "checked")
    (here / "folder").mkdir()
    assert "folder is a folder: name a file to write" in refused([*command.split(), "-o", "folder"], capsys)
    assert "there is no folder no" in refused([*command.split(), "-o", "no/out.csv"], capsys)
    (here / "out.csv").write_text("before")

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert "No space left" in refused([*command.split(), "-o", "out.csv"], capsys)
    assert (here / "out.csv").read_text() == "before"
    assert not [*here.glob(".out*")]
    assert call([*command.split(), "-o", "out.csv"], capsys).code == 0
    whole = (here / "out.csv").read_text()
    (here / "link.csv").symlink_to("out.csv")
    (here / "out.csv").write_text("before")
    assert call([*command.split(), "-o", "link.csv"], capsys).code == 0
    assert ((here / "link.csv").is_symlink(), (here / "out.csv").read_text()) == (True, whole)


def test_a_pipe_is_written_to_and_not_replaced(capsys: Capture, here: Path) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    train("table.csv", capsys, "--clean-column", "checked")
    os.mkfifo(here / "pipe")
    reader = os.open(here / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert call(["labels", "run", "--top", "2", "-o", "pipe"], capsys).code == 0
        assert os.read(reader, 1 << 16).startswith(b"index,id,given,label")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((here / "pipe").stat().st_mode)


def test_a_class_with_one_label_is_counted_in_good_english(capsys: Capture, here: Path) -> None:
    true_label = photos(here / "photos")
    write_csv(here / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90], true_label[91]])
    said = train("photos", capsys, "--clean", "checked.csv")
    assert "classes are uneven: 'rare' has 1 label, " in said
