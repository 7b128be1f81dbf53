"""Packs from strangers, with digests that match: every value is checked before it is used."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from cli_runner import run_cli
from metalabelnet.data.files.list_data import ReadOptions
from metalabelnet.data.packed.source import list_images
from metalabelnet.data.packed.writer import write_pack
from metalabelnet.errors import RunStopped
from user_data import QUICK, write_csv, write_photos

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos`, `checked.csv`, and two packs of the photos: `pack`, and `half`, which is unfinished."""
    home = tmp_path_factory.mktemp("packs")
    true_label = write_photos(home / "photos", count=30, unlabeled=2)
    write_csv(home / "checked.csv", ["id", "label"], [*true_label[6:15], *true_label[30:32]])
    source = list_images(str(home / "photos"), ReadOptions())
    write_pack(source, home / "pack")
    steps = iter(range(20))
    with pytest.raises(RunStopped):
        write_pack(source, home / "half", shard_bytes=4000, stop=lambda: next(steps, None) is None)
    assert (home / "half" / "shard-00000.json").exists()
    return home


def input_error(arguments: str, capsys: Capture) -> str:
    result = run_cli(arguments.split(), capsys)
    assert (result.code, result.out) == (2, ""), result.err
    line = result.err.splitlines()[-1]
    assert line.startswith("metalabelnet: ")
    assert len(line) <= 300
    return line


def write_content(pack: Path, name: str, content: bytes) -> None:
    """Write a file of the index with its digest."""
    (pack / name).write_bytes(content)
    index = json.loads((pack / "pack.json").read_text())
    index["digests"][name] = hashlib.sha256(content).hexdigest()
    (pack / "pack.json").write_text(json.dumps(index))


def change_table(name: str, value: int) -> Callable[[Path], None]:
    """Set a column of the first image."""

    def change(pack: Path) -> None:
        table = load((pack / "samples.safetensors").read_bytes())
        column = table[name].copy()
        column[0] = value
        write_content(pack, "samples.safetensors", save({**table, name: column}))

    return change


def without_training_images(pack: Path) -> None:
    table = load((pack / "samples.safetensors").read_bytes())
    write_content(pack, "samples.safetensors", save({**table, "part": np.full_like(table["part"], 2)}))


def change_index(**changes: Any) -> Callable[[Path], None]:
    def change(pack: Path) -> None:
        (pack / "pack.json").write_text(json.dumps(json.loads((pack / "pack.json").read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_training_images, "it has no training image"),
        (change_table("index", 2**40), "it has no training image, or too many"),
        (change_table("offset", 2**63 - 1), "an image lies outside of its shard"),
        (change_table("size", 2**63 - 1), "an image lies outside of its shard"),
        (change_table("given", -2), "the column given has a value out of range"),
        (change_index(total_samples=2**60), "more than 268,435,456 samples"),
        (change_index(digests=-1e308), "its fields are not those of a pack"),
        (change_index(encoder=[1]), "its fields are not those of a pack"),
        (change_index(shards=["shard-00000.bin"]), "its fields are not those of a pack"),
        (change_index(classes=3), "'int' object is not iterable"),
        (lambda pack: write_content(pack, "ids.json", b"[" * 200_000), "it is not JSON"),
        (lambda pack: write_content(pack, "ids.json", rb'["\ud800"]'), "it is not JSON"),
    ],
)
def test_wrong_values_are_named(
    damage: Callable[[Path], None], message: str, home: Path, tmp_path: Path, capsys: Capture
) -> None:
    pack = shutil.copytree(home / "pack", tmp_path / "pack")
    damage(pack)
    command = f"train {pack} --clean {home}/checked.csv --noise uniform:0.2 {QUICK} --workers 0 --out {tmp_path}/run"
    assert message in input_error(command, capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"digests": 0.5},
        {"digests": ["00"]},
        {"positions": [10**6]},
        {"positions": [True]},
        {"sizes": [-1]},
        {"end": 10**9},
        {"end": "9"},
        {"first": 3},
        {"failures": [None]},
        {"sha256": None},
        {"more": 1},
    ],
)
def test_wrong_description_of_a_shard_is_named(
    change: dict[str, Any], home: Path, tmp_path: Path, capsys: Capture
) -> None:
    pack = shutil.copytree(home / "half", tmp_path / "half")
    file = pack / "shard-00000.json"
    content = json.loads(file.read_text())
    for name, value in change.items():
        old = content.get(name)
        content[name] = [*value, *old[1:]] if isinstance(value, list) else value
    file.write_text(json.dumps(content))
    before = {entry.name: entry.read_bytes() for entry in pack.iterdir()}
    assert "half" in input_error(f"pack {home}/photos -o {pack}", capsys)
    assert {entry.name: entry.read_bytes() for entry in pack.iterdir()} == before


def test_missing_shard_of_an_unfinished_pack_is_named(home: Path, tmp_path: Path, capsys: Capture) -> None:
    pack = shutil.copytree(home / "half", tmp_path / "half")
    (pack / "shard-00000.bin").unlink()
    assert "shard-00000.json is damaged: remove" in input_error(f"pack {home}/photos -o {pack}", capsys)
    (pack / "shard-00000.json").write_text("[" * 200_000)
    assert "shard-00000.json is damaged: remove" in input_error(f"pack {home}/photos -o {pack}", capsys)


def test_unfinished_pack_is_continued(home: Path, tmp_path: Path, capsys: Capture) -> None:
    pack = shutil.copytree(home / "half", tmp_path / "half")
    assert run_cli(["pack", str(home / "photos"), "-o", str(pack)], capsys).code == 0


def test_folder_is_not_left_if_an_image_is_wrong(home: Path, tmp_path: Path, capsys: Capture) -> None:
    photos = shutil.copytree(home / "photos", tmp_path / "photos")
    file = sorted(photos.rglob("*.png"))[5]
    file.write_bytes(file.read_bytes()[:80])
    assert "--on-error skip" in input_error(f"pack {photos} -o {tmp_path}/new/pack", capsys)
    assert [entry.name for entry in tmp_path.iterdir()] == ["photos"]
    (tmp_path / "empty").mkdir()
    input_error(f"pack {photos} -o {tmp_path}/empty", capsys)
    assert (tmp_path / "empty").is_dir()
