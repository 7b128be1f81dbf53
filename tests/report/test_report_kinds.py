"""Reports of real runs on each kind of data: the numbers of the run are in the text, and the samples are shown."""

import base64
import csv
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from folders import HOSTILE, Page, page_of, run

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("cli", "train")]

from files import TABLE, photos, table_rows, text_rows, write_csv
from metalabelnet.report import samples
from metalabelnet.report.pictures import of_array, of_file, png
from metalabelnet.train import train
from tiny import tiny_run, write_npz


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def suspects(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["given"]]
    return sorted(rows, key=lambda row: -float(row["suspicion"]))[:30]


def check_numbers(page: Page, folder: Path) -> dict[str, Any]:
    """What the run's files say is what the page says, as text."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert f"Clean accuracy {summary['clean_accuracy']:.2f} %" in page.text
    if summary["test_accuracy"] is not None:
        assert f"Test accuracy {summary['test_accuracy']:.2f} %" in page.text
        assert f"Macro-F1 {summary['macro_f1']:.2f} %" in page.text
        assert f"test_accuracy {json.dumps(summary['test_accuracy'])} " in page.text  # unrounded
    assert f"Suspects {summary['suspects']} of" in page.text
    assert f"{summary['samples']['train']} to train on" in page.text
    for row in suspects(folder):
        assert f"given {row['given']} suggested {row['label']} {100 * float(row['confidence']):.1f} %" in page.text
    return summary


def test_a_table_of_numbers_in_an_npz_file(here: Path) -> None:
    train(tiny_run(write_npz(here / "small.npz")), folder=here / "run")
    page = page_of(here / "run")
    summary = check_numbers(page, here / "run")
    assert "warm-up: epochs 0 to 1; phase 2: epochs 2 to 4; dashed: epoch" in page.text
    assert page.text.count("Label change per epoch") == 1
    about = json.loads((here / "run" / "confusion.json").read_text())
    hits = sum(n for true, predicted, n in about["counts"] if true == predicted)
    assert about["part"] == "test"
    assert sum(n for *_, n in about["counts"]) == 30
    assert hits / 30 == pytest.approx(summary["test_accuracy"] / 100)
    assert f"{hits} of 30 test samples ({summary['test_accuracy']:.2f} %) are recognised." in page.text
    first = suspects(here / "run")[0]
    x = np.load(here / "small.npz")["x_train"][int(first["index"])]
    assert " ".join(f"{k} {value:.4g}" for k, value in enumerate(x)) in page.text
    assert page.pictures() == []
    with (here / "run" / "labels.csv").open(encoding="utf-8", newline="") as file:
        labeled = [row for row in csv.DictReader(file) if row["given"]]
    differ = sum(row["given"] != row["label"] for row in labeled)
    assert f"differs from the given one in {differ} of {len(labeled)} samples" in page.text


def test_images_in_an_npz_file_are_shown_as_they_are(here: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    np.savez(here / "pics.npz", x_train=x, y_train=np.arange(40) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
    run(here / "run", str(here / "pics.npz"), clean=10, noise="uniform:0.2", net="small-cnn")
    page = page_of(here / "run")
    check_numbers(page, here / "run")
    assert len(page.pictures()) == 30
    for source, row in zip(page.pictures(), suspects(here / "run"), strict=True):
        shown = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
        assert (np.asarray(shown) == x[int(row["index"])]).all()


def test_a_folder_of_images_and_the_same_when_it_is_gone(here: Path) -> None:
    true_label = photos(here / "meine photos", count=60)
    write_csv(here / "checked.csv", ["file", "label"], [*true_label[10:40], true_label[60]])
    run(here / "run", "meine photos", clean_file="checked.csv", clean=0)
    page = page_of(here / "run")
    check_numbers(page, here / "run")
    assert len(page.pictures()) == len(suspects(here / "run"))
    assert "held-out clean samples (" in page.text
    assert "on which the epoch was selected too" in page.text
    broken = here / "meine photos" / suspects(here / "run")[0]["id"]
    broken.write_bytes(b"no image")
    page = page_of(here / "run")
    assert len(page.pictures()) == len(suspects(here / "run")) - 1
    assert "is not an image" in page.text
    shutil.rmtree(here / "meine photos")
    page = page_of(here / "run")
    check_numbers(page, here / "run")
    assert page.pictures() == []
    assert "The samples themselves cannot be shown: meine photos/ is not there any more" in page.text


def test_an_id_that_leaves_the_folder_is_not_followed(here: Path) -> None:
    true_label = photos(here / "photos", count=60)
    write_csv(here / "checked.csv", ["file", "label"], [*true_label[10:40], true_label[60]])
    run(here / "run", "photos", clean_file="checked.csv", clean=0)
    Image.new("RGB", (8, 8)).save(here / "secret.png")
    first = suspects(here / "run")[0]["id"]
    file = here / "run" / "labels.csv"
    file.write_text(file.read_text(encoding="utf-8").replace(first, "../secret.png"), encoding="utf-8")
    page = page_of(here / "run")
    assert "../secret.png" in page.text
    (here / "photos" / "birne" / "link.png").symlink_to(here / "secret.png")
    assert not samples._inside(here / "photos", "birne/link.png")
    assert not samples._inside(here / "photos", str(here / "secret.png"))
    assert samples._inside(here / "photos", "birne/other.png")
    assert len(page.pictures()) == len(suspects(here / "run")) - 1


def test_a_table_shows_its_cells(here: Path) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    run(here / "run", "table.csv", clean_column="checked", clean=0)
    page = page_of(here / "run")
    check_numbers(page, here / "run")
    rows = {row[0]: row for row in table_rows(60)}
    for row in suspects(here / "run"):
        _, width, noise, color, *_ = rows[row["id"]]
        assert f"width {width or '–'} noise {noise} color {color or '–'} {row['id']}" in page.text


def test_texts_are_quoted(here: Path) -> None:
    write_csv(here / "news.csv", ["text", "label", "ok"], text_rows(60))
    run(here / "run", "news.csv", clean_column="ok", clean=0)
    page = page_of(here / "run")
    check_numbers(page, here / "run")
    texts = text_rows(60)
    assert page.count("blockquote") == len(suspects(here / "run"))
    for row in suspects(here / "run"):
        assert f"{texts[int(row['id'])][0]} {row['id']}" in page.text


def test_what_stands_in_samples_and_their_names_is_text(here: Path) -> None:
    rows = [
        (f"{nasty} {k}", f"{nasty} {text_rows(1, seed=k)[0][0]}", "ab"[k % 2], k < 10)
        for k, nasty in enumerate((*HOSTILE, "") * 6)
    ]
    write_csv(here / "texts.csv", ["id", "text", "label", "ok"], rows)
    run(here / "texts", "texts.csv", clean_column="ok", clean=0, method="cross-entropy", text="text")
    true_label = photos(here / "photos", count=60)
    name = '<img src=x onerror=alert(1)>" onload="alert(2).png'
    for label in ("birne", "cherry pie"):
        files = sorted((here / "photos" / label).iterdir())
        for k, file in enumerate(files[5:]):
            file.rename(file.with_name(f"{k} {name}"))
    known = [(name, kind) for name, kind in true_label if (here / "photos" / name).is_file()]
    write_csv(here / "checked.csv", ["file", "label"], known[:-2])
    run(here / "pictures", "photos", clean_file="checked.csv", clean=0, method="cross-entropy")
    page = page_of(here / "texts", here / "pictures")  # refuses elements and attributes that nobody wrote
    assert HOSTILE[0] in page.text
    assert name in page.text
    assert len(page.pictures()) == len(suspects(here / "pictures")) > 10


def test_thirty_large_pictures_stay_far_below_the_limit(here: Path) -> None:
    large = [Image.effect_noise((1600, 1200), 100).convert("RGB") for _ in range(2)]
    for k in range(45):
        file = here / "photos" / "ab"[k % 2] / f"{k}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        if k < 12:  # those that were checked are others: copies of them would be taken out
            (large[k - 10] if k >= 10 else Image.effect_noise((64, 48), 100).convert("RGB")).save(file, quality=90)
        else:
            shutil.copy(here / "photos" / "ab"[k % 2] / f"{10 + k % 2}.jpg", file)
    assert sum(file.stat().st_size for file in (here / "photos").rglob("*.jpg")) > 30_000_000
    write_csv(here / "checked.csv", ["file", "label"], [(f"{'ab'[k % 2]}/{k}.jpg", "ab"[k % 2]) for k in range(10)])
    run(here / "run", "photos", clean_file="checked.csv", clean=0, method="cross-entropy", epochs=1, image_size=8)
    page = page_of(here / "run")  # refuses 5 MB
    assert len(page.pictures()) == 30
    assert len(page.content) < 1_000_000


def test_a_picture_keeps_its_proportions_and_stands_upright(here: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (400, 200), "red").save(here / "turned.jpg", exif=exif)
    shown = Image.open(io.BytesIO(base64.b64decode(of_file(here / "turned.jpg").partition(",")[2])))
    assert shown.size == (64, 128)
    assert shown.format == "JPEG"


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_png_written_here_is_one(channels: int) -> None:
    x = np.random.default_rng(0).integers(0, 255, (channels, 5, 7), dtype=np.uint8)
    shown = Image.open(io.BytesIO(png(x[0] if channels == 1 else x.transpose(1, 2, 0))))
    assert (np.asarray(shown) == (x[0] if channels == 1 else x.transpose(1, 2, 0))).all()


def test_a_large_array_is_made_small_also_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((3, 300, 500), np.uint8)
    x[:, :, :4] = 200
    assert of_array(x).startswith("data:image/jpeg;base64,")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "PIL", None)
        kind, _, content = of_array(x).partition(",")
    assert kind == "data:image/png;base64"
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert shown.shape == (75, 125, 3)
    assert (shown[:, 0] == 200).all()
    assert (shown[:, 1:] == 0).all()
