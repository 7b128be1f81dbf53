"""Clothing1M, Food-101N and WebVision: their lists, splits and images, on stand-ins of the published layout."""

import dataclasses
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metalabelnet.cli import main
from metalabelnet.data import DATASETS, DataSet, ReadOptions, load
from metalabelnet.data.benchmarks import clothing1m, food101n, webvision
from metalabelnet.data.benchmarks.image_lists import ImageParts
from metalabelnet.data.encoders.images import ImageEncoder, decode
from metalabelnet.data.splits import SPLITS
from metalabelnet.errors import InputError
from metalabelnet.reproduction.stand_ins import FOOD_CLASSES, STAND_INS, write_clothing1m
from metalabelnet.train import make_run
from metalabelnet.train.prepare import prepare

SMALL = ReadOptions(image_size=8)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    for write in STAND_INS.values():
        write(folder)
    return folder


@pytest.fixture
def copy(stand_ins: Path, tmp_path: Path) -> Path:
    """Return a copy whose lists can be changed; its images are hard links."""

    def copy_file(source: str, target: str) -> None:
        (os.link if Path(source).suffix in (".jpg", ".JPEG") else shutil.copy)(source, target)

    return shutil.copytree(stand_ins, tmp_path / "copy", copy_function=copy_file)


def ids(parts: ImageParts) -> dict[str, set[str]]:
    return {name: {image.id for image in getattr(parts, name)} for name in ("train", "clean", "test", "second_test")}


@pytest.mark.parametrize("name", STAND_INS)
@pytest.mark.parametrize("split", ["paper", "general"])
def test_parts_are_disjoint_and_show_their_class(name: str, split: str, stand_ins: Path) -> None:
    data = load(name, stand_ins, read_options=ReadOptions(image_size=8, split=split))
    assert isinstance(data, DataSet)
    assert data.clean is not None
    assert data.test is not None
    assert data.train.x.shape[1:] == (3, 8, 8)
    named = [{*rows.ids} for rows in (data.train, data.clean, data.test)]
    assert sum(map(len, named)) == len(set.union(*named))
    assert (data.train.true == -1).all()
    assert (data.train.given >= 0).all()
    brightness = data.test.x.double().amax((1, 2, 3))
    assert brightness[data.test.true % 2 == 1].min() > brightness[data.test.true % 2 == 0].max()  # as in `stand_ins`
    chosen = SPLITS[split](data, len(data.classes), torch.Generator().manual_seed(0))
    assert torch.equal(chosen.clean.true.sort().values, torch.arange(len(data.classes)))
    assert len(chosen.train) == len(data.train)
    assert chosen.test is data.test


def test_clothing1m_parts(stand_ins: Path) -> None:
    paper, general = (clothing1m.list_parts(stand_ins, split) for split in ("paper", "general"))
    assert all("clean_val" in image.id for image in paper.clean)
    assert all("clean_train" in image.id for image in general.clean)
    assert paper.test == general.test
    assert {image.given >= 0 for image in paper.clean} == {True, False}  # some have both labels
    assert Counter(image.given == image.true for image in paper.clean if image.given >= 0)[False] > 0
    assert "noisy_train_key_list.txt: 84 images are listed, 1,000,000 are published" in paper.notes
    assert len(paper.notes) == 4


@pytest.mark.parametrize("name", STAND_INS)
@pytest.mark.parametrize("split", SPLITS)
def test_clean_all_is_the_whole_clean_part(name: str, split: str, stand_ins: Path) -> None:
    """Under the default protocol a fifth of it is held out, under the paper's it trains and validates."""
    data = load(name, stand_ins, read_options=ReadOptions(image_size=8, split=split))
    assert data.clean is not None
    sizes = {"data_dir": str(stand_ins), "image_size": 8, "device": "cpu", "split": split}
    run = make_run(name, clean="all", **sizes)
    problem = prepare(run)
    assert {*problem.clean.ids} | {*problem.validation.ids} == {*data.clean.ids}
    assert len(problem.clean) + len(problem.validation) == len(data.clean)
    assert len(problem.validation) == round(len(data.clean) / 5)
    whole = prepare(dataclasses.replace(run, protocol="paper"))
    assert {*whole.clean.ids} == {*whole.validation.ids} == {*data.clean.ids}
    few = prepare(make_run(name, clean=len(data.classes), **sizes, protocol="paper"))
    assert len(few.clean) == len(data.classes) < len(data.clean)


@pytest.mark.parametrize(("prefix", "lists"), [("", ""), ("images/", "annotations"), ("", "annotations")])
def test_other_copies_of_clothing1m(prefix: str, lists: str, stand_ins: Path, tmp_path: Path) -> None:
    write_clothing1m(tmp_path, prefix=prefix, lists=lists)
    expected, found = (ids(clothing1m.list_parts(folder, "paper")) for folder in (stand_ins, tmp_path))
    assert found == expected
    assert clothing1m.list_parts(tmp_path / "clothing1M", "paper").train[0].path.startswith(str(tmp_path))


def test_training_images_of_clothing1m_are_in_no_clean_part(copy: Path) -> None:
    with (copy / "clothing1M" / "noisy_train_key_list.txt").open("a") as file:
        file.write("images/0/clean_val_0.jpg\nimages/0/clean_test_0.jpg\n")
    parts = clothing1m.list_parts(copy, "general")
    assert not ids(parts)["train"] & {"images/0/clean_val_0.jpg", "images/0/clean_test_0.jpg"}
    assert "2 training images belong to a clean part and are not trained on" in parts.notes


def test_food101n_headers_and_verification_labels(stand_ins: Path) -> None:
    paper, general = (food101n.list_parts(stand_ins, split) for split in ("paper", "general"))
    assert paper.classes == general.classes == FOOD_CLASSES  # the header is no class
    assert all(image.id.startswith("food-101/") for image in (*paper.clean, *general.test))
    assert len({image.id for image in general.test}) == 3 * len(FOOD_CLASSES)  # the first line is no header
    verified = (stand_ins / "Food-101N_release" / "meta" / "verified_train.tsv").read_text().splitlines()[1:]
    right = {line.split("\t")[0] for line in verified if line.endswith("1")}
    wrong = {line.split("\t")[0] for line in verified if line.endswith("0")}
    assert ids(general)["clean"] == right
    assert wrong
    assert wrong <= ids(general)["train"]
    assert all(image.given == -1 for image in general.clean)
    assert len(general.train) + len(general.clean) == 70


def test_food101n_lists_without_header_lose_no_line(copy: Path) -> None:
    before = food101n.list_parts(copy, "general")
    for name in ("classes.txt", "imagelist.tsv", "verified_train.tsv", "verified_val.tsv"):
        file = copy / "Food-101N_release" / "meta" / name
        file.write_text(file.read_text().partition("\n")[2])
    assert food101n.list_parts(copy, "general") == before


def test_webvision_sources_and_mini_subset(copy: Path) -> None:
    mini = webvision.list_parts(copy, mini=True)
    shutil.rmtree(copy / "imagenet")
    full = webvision.list_parts(copy, mini=False)
    assert len(mini.classes) == 50
    assert len(full.classes) == 1000
    assert {image.id.partition("/")[0] for image in mini.train} == {"google"}
    assert {image.id.partition("/")[0] for image in full.train} == {"google", "flickr"}
    assert len(mini.train) == 150
    assert len(full.train) == 302
    assert max(image.given for image in mini.train) == 49
    assert Counter(image.true for image in mini.clean) == Counter(list(range(50)) * 2)
    assert Counter(image.true for image in mini.test) == Counter(list(range(50)) * 3)
    assert Counter(image.true for image in mini.second_test) == Counter(list(range(50)) * 2)
    assert "training lists: 302 images are listed, 2,439,574 are published" in full.notes


def test_second_test_set_is_optional(copy: Path) -> None:
    shutil.rmtree(copy / "imagenet" / "val" / "n00000007")
    with pytest.raises(InputError, match="n00000007 is missing; restore it"):
        webvision.list_parts(copy, mini=True)
    (copy / "webvision" / "info" / "synsets.txt").unlink()
    parts = webvision.list_parts(copy, mini=True)
    assert parts.second_test == []
    assert parts.classes[:2] == ("0", "1")
    assert "synsets.txt is missing" in parts.notes[-1]
    shutil.rmtree(copy / "imagenet")
    assert "there is no second test set" in webvision.list_parts(copy, mini=True).notes[-1]


def test_images_are_resized_without_aspect_ratio_and_center_cropped(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 70, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    for size in (clothing1m.SIZE, webvision.SIZE):
        encoder = ImageEncoder((3, size.crop, size.crop), None, resize=size.resize)
        (image,) = encoder.encode([tmp_path / "photo.png"])
        whole = decode(tmp_path / "photo.png", (3, size.resize, size.resize))
        top = (size.resize - size.crop) // 2
        assert isinstance(image, torch.Tensor)
        assert torch.equal(image, whole[:, top : top + size.crop, top : top + size.crop])
        again = ImageEncoder.from_json(encoder.to_json())
        assert (again.shape, again.resize) == (encoder.shape, size.resize)
    assert (clothing1m.SIZE.resize, clothing1m.SIZE.crop) == (256, 224)
    assert (webvision.SIZE.resize, webvision.SIZE.crop) == (320, 299)
    assert "resize" not in ImageEncoder((3, 8, 8), None).to_json()
    for resize in (4, "8", 10**6):
        with pytest.raises(ValueError, match="cannot be resized"):
            ImageEncoder.from_json({"kind": "image", "shape": [3, 8, 8], "column": None, "resize": resize})


def test_missing_images_are_named_and_skipped(copy: Path) -> None:
    for k in range(7):
        (copy / "clothing1M" / "images" / str(k) / f"noisy_train_{k}.jpg").unlink()
    with pytest.raises(InputError) as raised:
        load("clothing1m", copy, read_options=SMALL)
    message = str(raised.value)
    assert message.startswith("clothing1m: 7 of 168 listed images are missing: images/0/noisy_train_0.jpg, ")
    assert "noisy_train_4.jpg and 2 more; restore them, or leave them out with --on-error skip" in message
    data = load("clothing1m", copy, read_options=ReadOptions(image_size=8, on_error="skip"))
    assert len(data.train) == 77
    assert any("7 of 168 listed images are missing" in note for note in data.notes)


def test_truncated_image_is_named_and_skipped(copy: Path) -> None:
    file = copy / "Food-101N_release" / "images" / "donuts" / "00000003.jpg"
    content = file.read_bytes()
    file.unlink()  # a hard link
    file.write_bytes(content[:200])
    with pytest.raises(InputError, match=r"donuts/00000003.jpg cannot be decoded \(.*--on-error skip"):
        load("food101n", copy, read_options=SMALL)
    data = load("food101n", copy, read_options=ReadOptions(image_size=8, on_error="skip"))
    assert "donuts/00000003.jpg" not in data.train.ids
    assert any(note.startswith("1 of 91 images left out: donuts/00000003.jpg") for note in data.notes)


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    [
        ("clothing1m", "clothing1M/clean_label_kv.txt", "0.jpg 0", "0.jpg 14", "label '14' in the line"),
        ("clothing1m", "clothing1M/noisy_label_kv.txt", "0.jpg 1", "0.jpg shirt", "label 'shirt' in the line"),
        (
            "clothing1m",
            "clothing1M/clean_val_key_list.txt",
            "val_3.jpg",
            "val_x.jpg",
            "val_x.jpg, which has no label",
        ),
        ("food101n", "Food-101N_release/meta/verified_train.tsv", "\t1", "\t2", "verification label '2'"),
        ("food101n", "food-101/meta/test.txt", "donuts/1000", "dounts/1000", "whose class is not in meta/classes.txt"),
        ("webvision-mini", "webvision/info/train_filelist_google.txt", "0.jpg 0", "0.jpg 1000", "label '1000'"),
        ("webvision-mini", "webvision/info/synsets.txt", "n00000001", "n00000000", "999 different synsets, not 1000"),
    ],
)
def test_wrong_list_is_one_line(name: str, file: str, old: str, new: str, message: str, copy: Path) -> None:
    path = copy / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError) as raised:
        load(name, copy, read_options=ReadOptions(image_size=8, split="paper"))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("clothing1m", "clothing1M/clean_test_key_list.txt"),
        ("clothing1m", "clothing1M/noisy_label_kv.txt"),
        ("food101n", "food-101/meta/test.txt"),
        ("food101n", "Food-101N_release/meta/verified_val.tsv"),
        ("webvision-mini", "webvision/info/val_filelist.txt"),
    ],
)
def test_missing_list_is_named(name: str, file: str, copy: Path) -> None:
    (copy / file).unlink()
    with pytest.raises(InputError, match=f"{Path(file).name} is (missing|not in).*metalabelnet datasets {name}"):
        load(name, copy, read_options=SMALL)


@pytest.mark.parametrize("name", DATASETS)
def test_command_prints_source_and_layout(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", name]) == 0
    out = capsys.readouterr().out
    assert DATASETS[name].source in out
    assert DATASETS[name].layout.strip().splitlines()[-1] in out


def test_unknown_name_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "clothing"]) == 2
    assert "clothing1m" in capsys.readouterr().err
