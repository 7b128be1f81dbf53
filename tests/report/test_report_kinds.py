"""Reports of trained runs on each kind of data: they contain the numbers of the run and its samples."""

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

from report_runs import HOSTILE, ReportPage, parse_report, train_run

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("cli", "train")]

from metalabelnet.report import sample_content
from metalabelnet.report.thumbnails import encode_png, thumbnail_from_array, thumbnail_from_file
from metalabelnet.train import train
from tiny_data import tiny_run, write_npz
from user_data import TABLE_COLUMNS, table_rows, text_rows, write_csv, write_photos


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def suspects(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["given"]]
    return sorted(rows, key=lambda row: -float(row["suspicion"]))[:30]


def check_numbers(page: ReportPage, folder: Path) -> dict[str, Any]:
    """Check that the page contains the numbers of the run folder."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert f"Clean accuracy {summary['clean_accuracy']:.2f} %" in page.text
    if summary["test_accuracy"] is not None:
        assert f"Test accuracy {summary['test_accuracy']:.2f} %" in page.text
        assert f"Macro-F1 {summary['macro_f1']:.2f} %" in page.text
        assert f"test_accuracy {json.dumps(summary['test_accuracy'])} " in page.text  # unrounded
    assert f"Suspects {summary['suspects']} of" in page.text
    assert f"{summary['samples']['train']} training" in page.text
    for row in suspects(folder):
        assert f"given {row['given']} corrected {row['label']} {100 * float(row['confidence']):.1f} %" in page.text
    return summary


def test_npz_with_features(workdir: Path) -> None:
    train(tiny_run(write_npz(workdir / "small.npz")), folder=workdir / "run")
    page = parse_report(workdir / "run")
    summary = check_numbers(page, workdir / "run")
    assert "warm-up: epochs 0 to 1; phase 2: epochs 2 to 4; dashed: selected epoch" in page.text
    assert page.text.count("Label change per epoch") == 1
    about = json.loads((workdir / "run" / "confusion.json").read_text())
    hits = sum(n for true, predicted, n in about["counts"] if true == predicted)
    assert about["part"] == "test"
    assert sum(n for *_, n in about["counts"]) == 30
    assert hits / 30 == pytest.approx(summary["test_accuracy"] / 100)
    assert f"{hits} of 30 test samples ({summary['test_accuracy']:.2f} %) are classified correctly." in page.text
    first = suspects(workdir / "run")[0]
    x = np.load(workdir / "small.npz")["x_train"][int(first["index"])]
    assert " ".join(f"{k} {value:.4g}" for k, value in enumerate(x)) in page.text
    assert page.images() == []
    with (workdir / "run" / "labels.csv").open(encoding="utf-8", newline="") as file:
        labeled = [row for row in csv.DictReader(file) if row["given"]]
    differ = sum(row["given"] != row["label"] for row in labeled)
    assert f"differs from the given label for {differ} of {len(labeled)} samples" in page.text


def test_npz_with_images(workdir: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    np.savez(workdir / "pics.npz", x_train=x, y_train=np.arange(40) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
    train_run(workdir / "run", str(workdir / "pics.npz"), clean=10, noise="uniform:0.2", net="small-cnn")
    page = parse_report(workdir / "run")
    check_numbers(page, workdir / "run")
    assert len(page.images()) == 30
    for source, row in zip(page.images(), suspects(workdir / "run"), strict=True):
        shown = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
        assert (np.asarray(shown) == x[int(row["index"])]).all()


def test_image_folder_and_missing_image_folder(workdir: Path) -> None:
    true_label = write_photos(workdir / "meine photos", count=60)
    write_csv(workdir / "checked.csv", ["file", "label"], [*true_label[10:40], true_label[60]])
    train_run(workdir / "run", "meine photos", clean_file="checked.csv", clean="all")
    page = parse_report(workdir / "run")
    check_numbers(page, workdir / "run")
    assert len(page.images()) == len(suspects(workdir / "run"))
    assert "validation samples (" in page.text
    assert "the epoch was selected on the same samples" in page.text
    broken = workdir / "meine photos" / suspects(workdir / "run")[0]["id"]
    broken.write_bytes(b"no image")
    page = parse_report(workdir / "run")
    assert len(page.images()) == len(suspects(workdir / "run")) - 1
    assert "is not an image" in page.text
    shutil.rmtree(workdir / "meine photos")
    page = parse_report(workdir / "run")
    check_numbers(page, workdir / "run")
    assert page.images() == []
    assert "The samples cannot be shown: meine photos does not exist" in page.text


def test_id_outside_the_folder_is_not_read(workdir: Path) -> None:
    true_label = write_photos(workdir / "photos", count=60)
    write_csv(workdir / "checked.csv", ["file", "label"], [*true_label[10:40], true_label[60]])
    train_run(workdir / "run", "photos", clean_file="checked.csv", clean="all")
    Image.new("RGB", (8, 8)).save(workdir / "secret.png")
    first = suspects(workdir / "run")[0]["id"]
    file = workdir / "run" / "labels.csv"
    file.write_text(file.read_text(encoding="utf-8").replace(first, "../secret.png"), encoding="utf-8")
    (workdir / "run" / "digests.json").unlink()  # the run folder of a stranger, who can write matching digests
    page = parse_report(workdir / "run")
    assert "../secret.png" in page.text
    (workdir / "photos" / "birne" / "link.png").symlink_to(workdir / "secret.png")
    assert not sample_content._inside(workdir / "photos", "birne/link.png")
    assert not sample_content._inside(workdir / "photos", str(workdir / "secret.png"))
    assert sample_content._inside(workdir / "photos", "birne/other.png")
    assert len(page.images()) == len(suspects(workdir / "run")) - 1


def test_table_cells_are_shown(workdir: Path) -> None:
    write_csv(workdir / "table.csv", TABLE_COLUMNS, table_rows(60))
    train_run(workdir / "run", "table.csv", clean_column="checked", clean="all")
    page = parse_report(workdir / "run")
    check_numbers(page, workdir / "run")
    rows = {row[0]: row for row in table_rows(60)}
    for row in suspects(workdir / "run"):
        _, width, noise, color, *_ = rows[row["id"]]
        assert f"width {width or '–'} noise {noise} color {color or '–'} {row['id']}" in page.text


def test_linear_fit_names_its_network(workdir: Path) -> None:
    write_csv(workdir / "news.csv", ["text", "label", "ok"], text_rows(60))
    train_run(workdir / "run", "news.csv", clean_column="ok", clean="all", method="metalabelnet-plus", net="auto")
    assert "Network linear (auto)" in parse_report(workdir / "run").text


def test_texts_are_shown(workdir: Path) -> None:
    write_csv(workdir / "news.csv", ["text", "label", "ok"], text_rows(60))
    train_run(workdir / "run", "news.csv", clean_column="ok", clean="all")
    page = parse_report(workdir / "run")
    check_numbers(page, workdir / "run")
    texts = text_rows(60)
    assert page.count("blockquote") == len(suspects(workdir / "run"))
    for row in suspects(workdir / "run"):
        assert f"{texts[int(row['id'])][0]} {row['id']}" in page.text


def test_samples_and_ids_are_escaped(workdir: Path) -> None:
    rows = [
        (f"{hostile} {k}", f"{hostile} {text_rows(1, seed=k)[0][0]}", "ab"[k % 2], k < 10)
        for k, hostile in enumerate((*HOSTILE, "") * 6)
    ]
    write_csv(workdir / "texts.csv", ["id", "text", "label", "ok"], rows)
    train_run(workdir / "texts", "texts.csv", clean_column="ok", clean="all", method="cross-entropy", text="text")
    true_label = write_photos(workdir / "photos", count=60)
    name = '<img src=x onerror=alert(1)>" onload="alert(2).png'
    for label in ("birne", "cherry pie"):
        files = sorted((workdir / "photos" / label).iterdir())
        for k, file in enumerate(files[5:]):
            file.rename(file.with_name(f"{k} {name}"))
    known = [(name, kind) for name, kind in true_label if (workdir / "photos" / name).is_file()]
    write_csv(workdir / "checked.csv", ["file", "label"], known[:-2])
    train_run(workdir / "pictures", "photos", clean_file="checked.csv", clean="all", method="cross-entropy")
    page = parse_report(workdir / "texts", workdir / "pictures")  # rejects unexpected elements
    assert HOSTILE[0] in page.text
    assert name in page.text
    assert len(page.images()) == len(suspects(workdir / "pictures")) > 10


def test_large_images_are_downscaled(workdir: Path) -> None:
    large = [Image.effect_noise((1600, 1200), 100).convert("RGB") for _ in range(2)]
    for k in range(45):
        file = workdir / "photos" / "ab"[k % 2] / f"{k}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        if k < 12:  # clean samples differ from the others: duplicates would be removed
            (large[k - 10] if k >= 10 else Image.effect_noise((64, 48), 100).convert("RGB")).save(file, quality=90)
        else:
            shutil.copy(workdir / "photos" / "ab"[k % 2] / f"{10 + k % 2}.jpg", file)
    assert sum(file.stat().st_size for file in (workdir / "photos").rglob("*.jpg")) > 30_000_000
    write_csv(workdir / "checked.csv", ["file", "label"], [(f"{'ab'[k % 2]}/{k}.jpg", "ab"[k % 2]) for k in range(10)])
    train_run(
        workdir / "run", "photos", clean_file="checked.csv", clean="all", method="cross-entropy", epochs=1, image_size=8
    )
    page = parse_report(workdir / "run")  # fails above 5 MB
    assert len(page.images()) == 30
    assert len(page.content) < 1_000_000


def test_thumbnail_keeps_aspect_ratio_and_orientation(workdir: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (400, 200), "red").save(workdir / "turned.jpg", exif=exif)
    shown = Image.open(io.BytesIO(base64.b64decode(thumbnail_from_file(workdir / "turned.jpg").partition(",")[2])))
    assert shown.size == (64, 128)
    assert shown.format == "JPEG"


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_encode_png(channels: int) -> None:
    x = np.random.default_rng(0).integers(0, 255, (channels, 5, 7), dtype=np.uint8)
    shown = Image.open(io.BytesIO(encode_png(x[0] if channels == 1 else x.transpose(1, 2, 0))))
    assert (np.asarray(shown) == (x[0] if channels == 1 else x.transpose(1, 2, 0))).all()


def test_large_array_is_downscaled_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((3, 300, 500), np.uint8)
    x[:, :, :4] = 200
    assert thumbnail_from_array(x).startswith("data:image/jpeg;base64,")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "PIL", None)
        kind, _, content = thumbnail_from_array(x).partition(",")
    assert kind == "data:image/png;base64"
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert shown.shape == (75, 125, 3)
    assert (shown[:, 0] == 200).all()
    assert (shown[:, 1:] == 0).all()
