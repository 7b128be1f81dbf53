"""Packed images: the same rows and runs as from the files, whatever the number of workers; resumed after a kill."""

import dataclasses
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.cli_runner import run_cli
from helpers.tiny_data import run_outputs
from helpers.user_data import write_csv, write_photos
from metalabelnet.cli.console import format_duration
from metalabelnet.data import DataSet, ReadOptions, Rows, load
from metalabelnet.data.batches import Batches
from metalabelnet.data.files import duplicates
from metalabelnet.data.packed.decode_pool import DecodePool
from metalabelnet.data.packed.index import FILES, INDEX, PIXELS, STORES, read_index, verify_shards
from metalabelnet.data.packed.packed_tensor import PackedTensor, default_workers
from metalabelnet.data.packed.source import list_images
from metalabelnet.data.packed.writer import write_pack
from metalabelnet.errors import InputError, RunStopped
from metalabelnet.reproduction.stand_ins import STAND_INS
from metalabelnet.train import make_run, train
from photo_files import make_photo, record_decoded_sizes

PARTS = ("train", "clean", "test", "second_test")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, a table of clean labels and a folder of test images."""
    root = tmp_path_factory.mktemp("packed")
    true_label = write_photos(root / "photos")
    write_csv(root / "clean.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    shutil.copytree(root / "photos" / "birne", root / "test" / "birne")
    return root


def options(root: Path, **changes: Any) -> ReadOptions:
    values = {"clean_file": str(root / "clean.csv"), "test": str(root / "test"), **changes}
    return ReadOptions(**values)


def pack(root: Path, folder: Path, store: str = FILES, **changes: Any) -> Path:
    write_pack(list_images(str(root / "photos"), options(root)), folder, store=store, **changes)
    return folder


@pytest.fixture(scope="module")
def packed(photos: Path) -> Path:
    return pack(photos, photos / "packed")


def check_same(data: DataSet, expected: DataSet) -> None:
    for name in PARTS:
        rows, others = getattr(data, name), getattr(expected, name)
        assert (rows is None) == (others is None), name
        if rows is not None:
            check_same_rows(rows, others)
    assert data.classes == expected.classes
    assert data.index_size == expected.index_size
    assert data.encoder_config == expected.encoder_config
    assert data.is_split == expected.is_split


def check_same_rows(rows: Rows, others: Rows) -> None:
    assert isinstance(rows.x, PackedTensor)
    assert torch.equal(rows.x[torch.arange(len(rows))], others.x[torch.arange(len(others))])
    assert rows.ids == others.ids
    for name in ("given", "true", "index"):
        assert torch.equal(getattr(rows, name), getattr(others, name)), name


@pytest.mark.parametrize("store", STORES)
def test_rows_of_a_pack_equal_those_of_its_folder(store: str, photos: Path, tmp_path: Path) -> None:
    folder = pack(photos, tmp_path / "pack", store, shard_bytes=4000)
    assert len(read_index(folder).shards) > 3
    expected = load(str(photos / "photos"), tmp_path, read_options=options(photos))
    for workers in (0, 2) if store == FILES else (0,):
        check_same(load(str(folder), read_options=ReadOptions(workers=workers)), expected)
    verify_shards(folder, read_index(folder))


def test_images_of_another_size_and_color(photos: Path, packed: Path, tmp_path: Path) -> None:
    expected = load(str(photos / "photos"), tmp_path, read_options=options(photos, image_size=5))
    data = load(str(packed), read_options=ReadOptions(image_size=5, workers=0))
    check_same_rows(data.train, expected.train)
    external = load(str(packed), read_options=ReadOptions(external_net=True, workers=0))
    assert external.train.x.shape[1:] == (3, 224, 224)
    decoded = pack(photos, tmp_path / "decoded", PIXELS)
    with pytest.raises(InputError, match=r"decoded images of 3 channels and 8×8 pixels, and 3 channels and 5×5 pixels"):
        load(str(decoded), read_options=ReadOptions(image_size=5))


def test_packed_jpegs_are_decoded_at_a_fraction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At half, a quarter or an eighth of their size, if as many pixels as are needed remain; the same by workers."""
    sizes = {"a/1.jpg": (95, 96), "a/2.jpg": (96, 97), "b/3.jpg": (192, 250), "b/4.jpg": (400, 390)}
    for name, size in sizes.items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(make_photo(*size))
    write_pack(list_images(str(tmp_path / "photos"), ReadOptions(image_size=48)), tmp_path / "pack")
    decoded_sizes = record_decoded_sizes(monkeypatch)
    x = load(str(tmp_path / "pack"), read_options=ReadOptions(image_size=48, workers=0)).train.x
    pixels = x[torch.arange(4)]
    assert decoded_sizes == [(95, 96), (48, 49), (48, 63), (50, 49)]
    by_workers = load(str(tmp_path / "pack"), read_options=ReadOptions(image_size=48, workers=2)).train.x
    assert torch.equal(by_workers[torch.arange(4)], pixels)


@pytest.mark.parametrize("name", STAND_INS)
def test_named_data_sets_are_read_from_their_pack(name: str, tmp_path: Path) -> None:
    STAND_INS[name](tmp_path / "files")
    small = ReadOptions(image_size=8, split="paper", workers=0)
    write_pack(list_images(name, small, tmp_path / "files"), tmp_path / "pack", store=PIXELS)
    data = load(name, tmp_path / "pack", read_options=small)
    check_same(data, load(name, tmp_path / "files", read_options=small))
    with pytest.raises(InputError, match="was packed for the split paper, not general: use --split paper, or pack"):
        load(name, tmp_path / "pack", read_options=dataclasses.replace(small, split="general"))
    other = next(other for other in STAND_INS if other != name)
    with pytest.raises(InputError, match=f"is a pack of {name}, not of {other}"):
        load(other, tmp_path / "pack", read_options=small)


def test_batches_do_not_depend_on_the_number_of_workers(packed: Path) -> None:
    def batches(workers: int) -> Batches:
        data = load(str(packed), read_options=ReadOptions(workers=workers))
        assert data.clean is not None
        return Batches(
            train=data.train,
            clean=data.clean,
            size=9,
            augment="flip-crop",
            augment_clean=True,
            dtype=torch.float32,
            seed=3,
        )

    expected = [*batches(0).epoch(1, labeled_only=False)]
    for workers in (2,):
        found = batches(workers)
        for batch, same in zip(found.epoch(1, labeled_only=False), expected, strict=True):
            assert torch.equal(batch.x, same.x)
            assert torch.equal(batch.clean_x, same.clean_x)
            assert torch.equal(batch.index, same.index)
        last = [*found.epoch(1, labeled_only=False, start=len(expected) - 1)]
        assert torch.equal(last[0].x, expected[-1].x)


@pytest.mark.parametrize(("cores", "runs", "workers"), [(64, 1, 16), (64, 8, 8), (4, 1, 4), (2, 8, 1)])
def test_concurrent_runs_share_the_cores(
    cores: int, runs: int, workers: int, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
    assert default_workers(runs) == workers
    x = load(str(packed), read_options=ReadOptions(concurrent_runs=runs)).train.x
    assert isinstance(x, PackedTensor)
    assert x.pack.workers == (None if runs == 1 else workers)  # a single run decides when it starts to read


def test_run_resumes_in_the_middle_of_an_epoch(photos: Path, packed: Path, tmp_path: Path) -> None:
    """The stopped run, resumed with another number of workers, equals the run on the files, to the byte."""
    recipe = {"method": "metalabelnet", "epochs": 1, "warmup": 0, "batch_size": 8, "device": "cpu"}
    recipe |= {"recipe": "paper", "augment": "flip-crop"}
    run = make_run(str(packed), workers=0, **recipe)
    files = make_run(str(photos / "photos"), clean_file=str(photos / "clean.csv"), test=str(photos / "test"), **recipe)
    assert (run.clean, run.data_format) == ("all", "packed")
    train(files, folder=tmp_path / "files")
    calls: list[None] = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) == 3

    with pytest.raises(RunStopped):
        train(run, folder=tmp_path / "packed", stop=stop)
    train(dataclasses.replace(run, workers=2), folder=tmp_path / "packed", resume=True)
    found, expected = run_outputs(tmp_path / "packed"), run_outputs(tmp_path / "files")
    assert found["labels"] == expected["labels"]
    assert found["model"] == expected["model"]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_stopped_pack_is_continued(photos: Path, tmp_path: Path) -> None:
    whole = contents(pack(photos, tmp_path / "whole", shard_bytes=9000))
    done: list[int] = []
    folder = tmp_path / "pack"
    for limit in (50, 51, 90):  # in the second shard, at once, in the last one
        calls: list[None] = []

        def stop(calls: list[None] = calls, limit: int = limit) -> bool:
            calls.append(None)
            return len(calls) > limit - (done[-1] if done else 0)

        with pytest.raises(RunStopped, match="the finished shards of"):
            pack(photos, folder, shard_bytes=9000, stop=stop, on_samples=lambda count, _: done.append(count))
        assert not (folder / INDEX).exists()
        (folder / ".shard-00001.bin.0123456789abcdef.tmp").touch()  # as a killed process leaves it
    starts: list[int] = []
    pack(photos, folder, shard_bytes=9000, on_samples=lambda count, _: starts.append(count))
    assert starts[0] > 20
    assert contents(folder) == whole
    pack(photos, folder)  # finished: nothing is written
    assert contents(folder) == whole


@pytest.mark.slow
def test_killed_pack_is_continued(photos: Path, tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from metalabelnet.data import ReadOptions
from metalabelnet.data.packed.source import list_images
from metalabelnet.data.packed.writer import write_pack
root, folder, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def kill(done, total):
    if done == last:
        os.kill(os.getpid(), signal.SIGKILL)
options = ReadOptions(clean_file=str(root / "clean.csv"), test=str(root / "test"))
write_pack(list_images(str(root / "photos"), options), folder, on_samples=kill, shard_bytes=9000)
"""
    folder = tmp_path / "pack"
    for last in (40, 70):
        command = [sys.executable, "-c", script, str(photos), str(folder), str(last)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert any(name.endswith(".tmp") for name in contents(folder))
    pack(photos, folder, shard_bytes=9000)
    assert contents(folder) == contents(pack(photos, tmp_path / "whole", shard_bytes=9000))


def test_images_that_cannot_be_decoded(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "photos", tmp_path / "photos")
    random = np.random.default_rng(1).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    truncated = tmp_path / "photos" / "birne" / "truncated.jpg"
    Image.fromarray(random).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:1500])
    (tmp_path / "photos" / "birne" / "script.png").write_bytes(b"%!PS-Adobe-3.0 (a program)")
    source = list_images(str(tmp_path / "photos"), ReadOptions(on_error="skip"))
    with pytest.raises(InputError, match=r"script\.png is in the format EPS; .*; repair it, or skip such samples with"):
        write_pack(source, tmp_path / "pack")
    index = write_pack(source, tmp_path / "pack", skip_errors=True)
    assert any("2 of 95 images left out" in note and "truncated.jpg cannot be decoded" in note for note in index.notes)
    data = load(str(tmp_path / "pack"), read_options=ReadOptions(workers=0))
    assert len(data.train) == 93
    assert data.index_size == 95


def test_duplicates_of_clean_images_are_left_out(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "photos", tmp_path / "photos")
    clean = (photos / "clean.csv").read_text().splitlines()[1].split(",")[0]
    shutil.copy(tmp_path / "photos" / clean, tmp_path / "photos" / "birne" / "copy.png")
    source = list_images(str(tmp_path / "photos"), options(photos, test=None))
    index = write_pack(source, tmp_path / "pack")
    assert any("1 training samples are identical to clean ones and are left out" in note for note in index.notes)
    data = load(str(tmp_path / "pack"), read_options=ReadOptions(workers=0))
    assert "birne/copy.png" not in data.train.ids
    assert duplicates.digests(data.train.x) == [
        bytes.fromhex(sha256_of(tmp_path / "photos" / name)) for name in data.train.ids
    ]


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_clean_labels_that_are_given_later(packed: Path, tmp_path: Path) -> None:
    """Clean labels of a table are added to those of the pack, and no image is loaded into memory."""
    data = load(str(packed), read_options=ReadOptions(workers=0))
    table = write_csv(tmp_path / "more.csv", ["id", "label"], [(data.train.ids[7], "birne")])
    more = load(str(packed), read_options=ReadOptions(workers=0, clean_file=str(table)))
    assert more.clean_labels is not None
    assert more.clean_labels.nonzero()[:, 0].tolist() != []
    assert data.clean is not None
    both = data.train.take(torch.tensor([7])).concat(data.clean)
    assert isinstance(both.x, PackedTensor)
    assert torch.equal(both.x[1:], data.clean.x[torch.arange(len(data.clean))])


def damage(file: Path, position: int = 100) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        byte = opened.read(1)
        opened.seek(position)
        opened.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(("store", "workers"), [(FILES, 0), (FILES, 2), (PIXELS, 0)])
def test_damaged_shard(store: str, workers: int, photos: Path, tmp_path: Path) -> None:
    folder = pack(photos, tmp_path / "pack", store)
    damage(folder / "shard-00000.bin")
    data = load(str(folder), read_options=ReadOptions(workers=workers))
    with pytest.raises(InputError, match=r"shard-00000\.bin is damaged \(its SHA-256 digest has changed\): restore it"):
        data.train.x.read(torch.arange(len(data.train)))
    with pytest.raises(InputError, match=r"shard-00000\.bin is damaged"):
        verify_shards(folder, read_index(folder))


def change_index(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        fields = json.loads((folder / INDEX).read_text()) | changes
        (folder / INDEX).write_text(json.dumps(fields))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_index(version=2), "has version 2, and this version of metalabelnet reads version 1: pack the images"),
        (change_index(format="other"), "has version None, and this version"),
        (change_index(store="programs"), r"pack\.json is damaged \(its fields are not those of a pack\)"),
        (change_index(shards=[{"file": "../x", "bytes": 1, "sha256": ""}]), r"entry for shard 0 is wrong"),
        (change_index(encoder={"kind": "image", "shape": [3, 10**6, 10**6], "column": None}), "cannot be read"),
        (change_index(more=1), r"pack\.json is damaged"),
        (lambda folder: (folder / INDEX).write_text("[]"), "it is not the index of a pack"),
        (lambda folder: (folder / "shard-00000.bin").unlink(), r"shard-00000\.bin is missing: restore it"),
        (lambda folder: os.truncate(folder / "shard-00000.bin", 99), r"shard-00000\.bin has 99 bytes, not"),
        (lambda folder: damage(folder / "samples.safetensors"), r"samples\.safetensors is damaged \(its SHA-256"),
        (lambda folder: damage(folder / "ids.json"), r"ids\.json is damaged \(its SHA-256 digest has changed"),
        (lambda folder: (folder / "ids.json").unlink(), r"ids\.json is missing: restore it"),
    ],
)
def test_damaged_index(change: Callable[[Path], Any], message: str, packed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packed, tmp_path / "pack")
    change(folder)
    with pytest.raises(InputError, match=message) as caught:
        load(str(folder), read_options=ReadOptions(workers=0))
    assert "\n" not in str(caught.value)


def test_folder_of_another_pack_or_of_other_files(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "pack")
    source = list_images(str(photos / "photos"), options(photos, test=None))
    with pytest.raises(InputError, match="holds a pack of other images or settings: choose another folder with -o"):
        write_pack(source, tmp_path / "pack")
    with pytest.raises(RunStopped):
        pack(photos, tmp_path / "unfinished", shard_bytes=4000, stop=iter([*[False] * 60, True]).__next__)
    with pytest.raises(InputError, match="holds an unfinished pack of other images or settings: choose another"):
        write_pack(source, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "shard-00000.json").write_text("{}")
    with pytest.raises(InputError, match=r"shard-00000\.json is damaged: remove"):
        pack(photos, tmp_path / "unfinished")
    with pytest.raises(InputError, match=r"is not empty and holds no pack, but birne: choose another folder with -o"):
        write_pack(source, photos / "test")
    for data, message in {"digits": "digits cannot be packed", str(tmp_path / "no.txt"): "cannot be packed"}.items():
        with pytest.raises(InputError, match=message):
            list_images(data, ReadOptions())


def test_tables_without_images_cannot_be_packed(tmp_path: Path) -> None:
    rows = [[str(k), str(k % 7), "ab"[k % 2]] for k in range(20)]
    table = write_csv(tmp_path / "table.csv", ["width", "height", "label"], rows)
    with pytest.raises(InputError, match=r"table\.csv has samples of the kind table: only images can be packed"):
        list_images(str(table), ReadOptions())


def test_killed_worker(packed: Path) -> None:
    data = load(str(packed), read_options=ReadOptions(workers=1))
    assert isinstance(data.train.x, PackedTensor)
    data.train.x.read(torch.arange(2))
    pool = data.train.x.pack.pool()
    assert isinstance(pool, DecodePool)
    pool._processes[0].kill()
    with pytest.raises(InputError, match=r"a process that decodes images ended \(exit code -9\): use fewer"):
        data.train.x.read(torch.arange(2))


def test_workers_end_with_the_pack(packed: Path) -> None:
    x = load(str(packed), read_options=ReadOptions(workers=1)).train.x
    assert isinstance(x, PackedTensor)
    expected = x[:3]
    copy = pickle.loads(pickle.dumps(x.take(torch.arange(3))))
    assert torch.equal(copy[:3], expected)
    pool = x.pack.pool()
    assert pool is not None
    (process,) = pool._processes
    assert process.poll() is None
    del pool, x
    assert process.poll() == 0


def test_workers_import_no_pytorch() -> None:
    code = "import sys, metalabelnet.input_files.decode_worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pack_command(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pack, verify, train, report and list the suspects for review."""
    folder, run = tmp_path / "pack", tmp_path / "run"
    words = ["pack", str(photos / "photos"), "-o", str(folder), "--decode", "--image-size", "9"]
    done = run_cli(words, capsys)
    assert (done.code, done.out.count("\n")) == (0, 2)
    assert f"{folder} is written: 0.0 MiB in 1 shard;" in done.out
    assert done.out.endswith(f"metalabelnet train {folder} --clean FILE\n")
    assert "packing" in done.err
    assert "is complete, and its digests match" in run_cli(words, capsys).out
    recipe = "--epochs 2 --warmup 1 --batch-size 16 --device cpu --recipe paper --snapshots 0"
    train_words = ["train", str(folder), "--clean", str(photos / "clean.csv"), *recipe.split(), "--out", str(run)]
    assert run_cli(train_words, capsys).code == 0
    assert run_cli(["report", str(run), "-o", str(tmp_path / "report.html")], capsys).code == 0
    assert "data:image" in (tmp_path / "report.html").read_text()
    exported = run_cli(["review", str(run), "--export", "labels"], capsys)
    assert (exported.code, exported.out.count("\n")) == (0, 94)
    damage(folder / "shard-00000.bin")
    for command in (words, [*train_words[:-1], str(tmp_path / "other")]):
        failed = run_cli(command, capsys)
        assert (failed.code, failed.out) == (2, "")
        assert failed.err.splitlines()[-1].startswith(f"metalabelnet: {folder / 'shard-00000.bin'} is damaged")


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (59, "59 s"), (61, "2 min"), (7300, "3 h")])
def test_remaining_time(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
