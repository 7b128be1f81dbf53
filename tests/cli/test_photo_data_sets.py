"""Clothing1M, Food-101N and WebVision from training to review, by the command line, on stand-ins of their layout."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from helpers.cli_runner import run_cli
from metalabelnet.reproduction.stand_ins import STAND_INS, write_webvision
from review_client import open_review, sample_numbers

# Each name with a split, the clean set, and the number of training images.
DATA_SETS = [
    pytest.param("food101n", "general", "all", 49),
    pytest.param("clothing1m", "paper", "56", 84, marks=pytest.mark.slow),
    pytest.param("clothing1m", "general", "all", 84, marks=pytest.mark.slow),
    pytest.param("food101n", "paper", "14", 63, marks=pytest.mark.slow),
    pytest.param("webvision-mini", "paper", "100", 150, marks=pytest.mark.slow),
    pytest.param("webvision", "general", "all", 2002, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
]
RECIPE = "--net small-cnn --image-size 8 --epochs 2 --warmup 1 --batch-size 14 --recipe paper --device cpu"


@pytest.mark.parametrize(("name", "split", "clean", "images"), DATA_SETS)
def test_from_training_to_review(
    name: str, split: str, clean: str, images: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "webvision":  # all of its classes
        write_webvision(tmp_path / "data", per_class=1, classes=1000)
    else:
        STAND_INS[name](tmp_path / "data")
    run = tmp_path / "run"
    method = "metalabelnet" if name == "webvision" else "metalabelnet-plus"  # with 1,000 classes that takes minutes
    words = [
        "train",
        name,
        "--method",
        method,
        "--data-dir",
        str(tmp_path / "data"),
        "--split",
        split,
        "--clean",
        clean,
    ]
    trained = run_cli([*words, *RECIPE.split(), "--out", str(run)], capsys)
    assert trained.code == 0, trained.err
    summary = json.loads((run / "summary.json").read_text())
    assert summary["dataset"] == name
    assert 0 <= summary["test_accuracy"] <= summary["test_top5_accuracy"] <= 100
    assert ("second_test_accuracy" in summary) == name.startswith("webvision")
    rows = read_csv((run / "labels.csv").read_text(encoding="utf-8"))
    assert len(rows) == images
    classes = json.loads((run / "run.json").read_text())["classes"]
    assert {row["label"] for row in rows} <= {*classes}
    top = ("class_1", "p_1") if len(classes) > 50 else ("p_" + classes[0],)
    assert {*top} <= rows[0].keys()

    assert run_cli(["report", str(run), "-o", str(tmp_path / "report.html")], capsys).code == 0
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert name in report
    assert "data:image" in report

    page = open_review(run)
    html = page.get("/?show=all").text
    number = sample_numbers(html)[0]
    image = page.get(re.findall(rf'<img src="(/sample/{number}/[^"]*)"', html)[0])
    assert (image.status_code, image.headers["content-type"]) == (200, "image/png")
    assert page.post("/verdict", n=number, seen=0, action="choose", **{"class": classes[1]}).status_code == 303
    sample = page.row(number)
    exported = run_cli(["review", str(run), "--export", "labels"], capsys)
    labels = {row["id"]: row["label"] for row in read_csv(exported.out)}
    assert len(labels) >= images
    assert labels[sample["id"]] == classes[1]


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
