"""Data files from strangers: foreign image formats, pipes, absurd array headers, too few file handles, wide tables.

Each is refused in one line that names the file and the reason, or is read within bounds.
"""

import contextlib
import io
import os
import resource
import shutil
import signal
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, GifImagePlugin, Image, TiffImagePlugin
from safetensors.torch import save_file

from cli_runner import run_cli
from metalabelnet.data import ReadOptions, load
from metalabelnet.data.benchmarks import cifar, fashion_mnist
from metalabelnet.data.encoders import encoder_from_json, images
from metalabelnet.data.files import listing, npz, npz_arrays, table_file
from metalabelnet.errors import InputError
from metalabelnet.inference.predict import Predictor
from metalabelnet.input_files.image_files import FORMATS, read_header
from metalabelnet.nets.external import read_weights
from metalabelnet.noise.cifar_n import FILES, read_human_labels
from metalabelnet.noise.feature_dependent import read_probabilities
from metalabelnet.noise.from_file import load_lines, load_npy
from metalabelnet.report.thumbnails import thumbnail_from_file
from metalabelnet.review.sample_display import SampleDisplay
from user_data import QUICK, TABLE_COLUMNS, table_rows, write_csv, write_photos

Capture = pytest.CaptureFixture[str]
MAX_MESSAGE_CHARACTERS = 300
SECONDS_UNTIL_HANG = 10


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos`, `checked.csv` and `run`, trained on them."""
    folder = tmp_path_factory.mktemp("images")
    true_label = write_photos(folder / "photos", count=30, unlabeled=2)
    write_csv(folder / "checked.csv", ["id", "label"], [*true_label[6:15], *true_label[30:32]])
    assert run_main(f"train {folder}/photos --clean {folder}/checked.csv {QUICK} --out {folder}/run") == 0
    return folder


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `table.csv` and `run`, trained on it."""
    folder = tmp_path_factory.mktemp("table")
    write_csv(folder / "table.csv", TABLE_COLUMNS, table_rows(60))
    assert run_main(f"train {folder}/table.csv --clean-column checked {QUICK} --out {folder}/run") == 0
    return folder


@pytest.fixture
def photos(image_run: Path, tmp_path: Path) -> Path:
    """A copy of the photos with their clean set beside them."""
    shutil.copy(image_run / "checked.csv", tmp_path)
    return Path(shutil.copytree(image_run / "photos", tmp_path / "photos"))


def run_main(arguments: str) -> int:
    from metalabelnet.cli import main

    return main(arguments.split())


def input_error(arguments: str, capsys: Capture) -> str:
    """Run a command that must fail with exit code 2 and one line; return the line."""
    output = run_cli(arguments.split(), capsys)
    assert (output.code, output.out) == (2, ""), output.err
    assert output.err.count("\n") == 1, output.err
    assert len(output.err) <= MAX_MESSAGE_CHARACTERS + 1, output.err
    return output.err


@contextlib.contextmanager
def time_limit(*fifos: Path) -> Iterator[None]:
    """Fail after some seconds. Opens the pipes for writing then, which ends reads of them in threads."""

    def stop(*_: object) -> None:
        for fifo in fifos:
            os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
        pytest.fail(f"no result after {SECONDS_UNTIL_HANG} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_UNTIL_HANG, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def make_fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def message_of(call: Any, *arguments: Any, **options: Any) -> str:
    """Return the message of the InputError that the call raises."""
    with pytest.raises(InputError) as raised:  # noqa: PT012 (a generator raises when it is consumed)
        result = call(*arguments, **options)
        if isinstance(result, Iterator):
            list(result)
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) <= MAX_MESSAGE_CHARACTERS
    return message


# Image formats


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
FOREIGN_FORMATS = {
    "EPS": EPS,
    "PDF": b"%PDF-1.7\n1 0 obj\n",
    "PSD": b"8BPS\x00\x01" + bytes(40),
    "ICO": b"\x00\x00\x01\x00\x01\x00" + bytes(40),
    "SVG": b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>",
    "HEIC": b"\x00\x00\x00\x18ftypheic" + bytes(40),
    "AVIF": b"\x00\x00\x00\x18ftypavif" + bytes(40),
    "JPEG 2000": b"\x00\x00\x00\x0cjP  \r\n\x87\n" + bytes(40),
    "WMF": b"\xd7\xcd\xc6\x9a\x00\x00" + bytes(40),
}


@pytest.mark.parametrize("name", FOREIGN_FORMATS)
def test_foreign_format_is_named_with_the_allowed_ones(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(FOREIGN_FORMATS[name])
    for call in (read_header, lambda path: images.decode(path, (3, 8, 8)), thumbnail_from_file):
        message = message_of(call, file)
        assert message.startswith(f"is in the format {name}; convert it to one of JPEG, ")
        assert "PNG" in message
        assert "TIFF" in message
    assert f"is in the format {name}" in message_of(SampleDisplay(kind="image", items=[file]).image, 0, "small")


def test_ghostscript_is_never_called(
    image_run: Path, photos: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_a, **_k: pytest.fail("Ghostscript was called"))
    monkeypatch.setattr(EpsImagePlugin.EpsImageFile, "_open", lambda _self: pytest.fail("the EPS file was parsed"))
    file = photos / "rare" / "eps.png"
    file.write_bytes(EPS)
    assert "eps.png is in the format EPS" in input_error(f"predict {image_run}/run {file}", capsys)
    assert "eps.png is in the format EPS" in input_error(
        f"train {photos} --clean {photos.parent}/checked.csv {QUICK} --out {photos.parent}/out", capsys
    )


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "MPO"])
def test_allowed_formats_are_decided_by_content(kind: str, tmp_path: Path) -> None:
    """The suffix does not matter."""
    Image.new("RGB", (9, 9), (200, 200, 200)).save(tmp_path / "x.dat", kind)
    (tmp_path / "x.dat").rename(tmp_path / "x.png")
    assert (images.decode(tmp_path / "x.png", (3, 8, 8)).float() - 200).abs().max() <= 3
    assert kind in FORMATS


def test_only_the_first_frame_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Image.new("L", (8, 8), value) for value in (7, *range(100, 140))]
    for kind in ("GIF", "TIFF", "WEBP", "PNG"):
        first = frames[0].convert("RGB" if kind == "WEBP" else "L")
        options = {"lossless": True} if kind == "WEBP" else {}
        first.save(tmp_path / kind, kind, save_all=True, append_images=frames[1:], **options)
    seen: list[int] = []
    for plugin in (GifImagePlugin.GifImageFile, TiffImagePlugin.TiffImageFile):
        monkeypatch.setattr(plugin, "seek", lambda _self, frame: seen.append(frame))
    for kind in ("GIF", "TIFF", "WEBP", "PNG"):
        read_header(tmp_path / kind)
        assert (images.decode(tmp_path / kind, (1, 8, 8)) == 7).all()
        thumbnail_from_file(tmp_path / kind)
    assert set(seen) <= {0}


def test_encoder_of_a_run_folder_cannot_ask_for_a_huge_image() -> None:
    for shape in ([3, 10**6, 10**6], [3, -8, 8], [3, 8.5, 8], [3, 8], ["3", "8", "8"], [10**9, 8, 8]):
        config = {"kind": "image", "shape": shape, "column": None}
        assert "encoder.json is damaged" in message_of(encoder_from_json, config, Path("encoder.json"))


_NUMBER = {"name": "a", "mean": 0.0, "deviation": 1.0, "missing_indicator": False}
_TEXT = {"kind": "text", "column": "a", "terms": ["x", "y"], "idf": [1.0, 2.0], "width": 2}


@pytest.mark.parametrize(
    "config",
    [
        *({"kind": "table", "columns": columns} for columns in (5, None, [5], [[]], [{}], ["values"])),
        {"kind": "table", "columns": [{"name": "a", "values": 5}]},
        {"kind": "table", "columns": [{"name": "a", "values": [1, 2]}]},
        {"kind": "table", "columns": [_NUMBER | {"name": ["a"]}]},
        {"kind": "table", "columns": [_NUMBER | {"mean": "0"}]},
        {"kind": "table", "columns": [_NUMBER | {"mean": float("nan")}]},
        {"kind": "table", "columns": [_NUMBER | {"mean": 10**400}]},
        {"kind": "table", "columns": [_NUMBER | {"deviation": float("inf")}]},
        {"kind": "table", "columns": [_NUMBER | {"missing_indicator": "no"}]},
        {"kind": "table", "columns": [_NUMBER | {"number_format": "roman"}]},
        {"kind": "table", "columns": [_NUMBER | {"number_format": []}]},
        _TEXT | {"terms": ["x", "x"]},
        _TEXT | {"terms": ["x", 5]},
        _TEXT | {"terms": 5},
        _TEXT | {"idf": [1.0, float("nan")]},
        _TEXT | {"idf": [1.0, None]},
        _TEXT | {"width": "2"},
        _TEXT | {"column": None},
        {"kind": "text", "column": "a", "width": 10**15, "encoder": "model"},
        {"kind": "text", "column": "a", "width": 5, "encoder": ["model"]},
        {"kind": "text", "column": "a", "width": 5},
        {"kind": "image", "shape": [3, 8, 8], "column": 5},
        {"kind": ["image"]},
    ],
)
def test_damaged_encoder_of_a_run_folder(config: dict[str, Any]) -> None:
    message = message_of(encoder_from_json, config, Path("encoder.json"))
    assert "encoder.json is damaged" in message or "unknown kind of encoder" in message


# Pipes and devices


FIFO_READERS = {
    "x.npz": lambda path: npz.read(path),
    "stream.npz": lambda path: npz.stream_samples(path, ("a", "b")),
    "x.csv": table_file.column_names,
    "x.parquet": table_file.column_names,
    "labels.npy": lambda path: load_npy(path, "label file"),
    "labels.txt": lambda path: load_lines(path, "label file"),
    "weights.pt": read_weights,
    "weights.safetensors": read_weights,
    "CIFAR-10_human.pt": lambda path: read_human_labels(path, FILES["cifar10n"], "worse_label"),
    "x.png": lambda path: images.decode(path, (3, 8, 8)),
    "header.png": read_header,
    "thumbnail.png": thumbnail_from_file,
    "train-images-idx3-ubyte": lambda path: fashion_mnist.read_idx(path, axes=3),
}


@pytest.mark.parametrize("name", FIFO_READERS)
def test_fifo_is_not_opened(name: str, tmp_path: Path) -> None:
    fifo = make_fifo(tmp_path / name)
    with time_limit(fifo):
        assert "is a named pipe, not a regular file" in message_of(FIFO_READERS[name], fifo)


def test_device_and_folder_are_not_read(tmp_path: Path) -> None:
    for name, reader in FIFO_READERS.items():
        link = tmp_path / name
        link.symlink_to("/dev/zero")
        assert "is a device, not a regular file" in message_of(reader, link)
        link.unlink()
        link.mkdir()
        assert "is a folder, not a regular file" in message_of(reader, link)


def test_npz_fifo_has_no_clean_set(tmp_path: Path) -> None:
    fifo = make_fifo(tmp_path / "x.npz")
    with time_limit(fifo):
        assert not npz.has_clean_set(fifo)


def test_cifar_fifo(tmp_path: Path) -> None:
    folder = tmp_path / cifar.CIFAR10.folder
    folder.mkdir()
    fifo = make_fifo(folder / "data_batch_1")
    with time_limit(fifo):
        assert "data_batch_1 is a named pipe" in message_of(cifar.read, cifar.CIFAR10, tmp_path)


def test_fifo_among_images(image_run: Path, photos: Path, capsys: Capture) -> None:
    fifo = make_fifo(photos / "rare" / "pipe.png")
    clean = photos.parent / "checked.csv"
    with time_limit(fifo):
        message = input_error(f"train {photos} --clean {clean} {QUICK} --out {photos.parent}/out", capsys)
        assert "rare/pipe.png is a named pipe, not a regular file" in message
        assert not (photos.parent / "out").exists()
        assert "pipe.png is a named pipe" in input_error(f"predict {image_run}/run {photos}", capsys)
        assert "pipe.png is a named pipe" in input_error(f"predict {image_run}/run {fifo}", capsys)
        data = load(str(photos), read_options=ReadOptions(clean_file=str(clean), on_error="skip"))
    assert any("rare/pipe.png is a named pipe" in note for note in data.notes)


@pytest.mark.parametrize(
    "arguments",
    [
        "train {0}/x.npz",
        "train {0}/x.csv --clean-column checked",
        "train {1}/photos --clean {0}/x.csv",
        "train digits --noise file:{0}/x.npy",
        "train digits --noise matrix:{0}/x.csv",
        "train digits --noise feature:0.4 --noise-probs {0}/x.npy",
        "predict {1}/run {0}/x.npz",
        "predict {1}/run {0}/x.csv",
    ],
)
def test_fifo_in_commands(arguments: str, image_run: Path, tmp_path: Path, capsys: Capture) -> None:
    fifos = [make_fifo(tmp_path / f"x.{suffix}") for suffix in ("npz", "csv", "npy")]
    with time_limit(*fifos):
        message = input_error(arguments.format(tmp_path, image_run), capsys)
    assert "is a named pipe, not a regular file" in message


# Array headers


def header_bytes(shape: str, descr: str = "'<f4'", *, version: int = 1) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text) + 1)
    return b"\x93NUMPY" + bytes((version, 0)) + size + text + b"\n"


ARRAY_ATTACKS = {
    "terabytes": (header_bytes("(1000000000, 1000)") + bytes(4000), "needs 4,000,000,000,000 bytes, but has 4,000"),
    "long row": (header_bytes("(1, 1000000000000)") + bytes(4000), "needs 4,000,000,000,000 bytes, but has 4,000"),
    "negative": (header_bytes("(-5, 4)") + bytes(80), "shape (-5, 4)"),
    "two negatives": (header_bytes("(-5, -4)") + bytes(80), "shape (-5, -4)"),
    "absurd": (header_bytes(f"({2**70}, 0)"), "shape ("),
    "many axes": (header_bytes(f"({'1, ' * 200})") + bytes(4), "200 axes"),
    "zero bytes per value": (header_bytes(f"({2**50},)", "'<U0'"), "values of no bytes"),
    "huge strings": (header_bytes("(5, 5)", "'<U400000000'") + bytes(80), "bytes, but has 80"),
    "objects": (header_bytes("(5, 4)", "'|O'") + bytes(80), "Object arrays cannot be loaded"),
    "structured": (header_bytes("(5, 4)", "[('a', '<f4')]") + bytes(80), "cannot be read"),
    "deep header": (header_bytes("-" * 9000 + "1"), "cannot be read"),
    "deep type": (header_bytes("(1, 1)", "[" * 150 + "]" * 150), "cannot be read"),
    "long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + bytes(100), "header of 4,294,967,295 bytes"),
    "version 9": (header_bytes("(5, 4)").replace(b"\x01\x00", b"\x09\x09", 1) + bytes(80), "cannot be read"),
    "truncated": (header_bytes("(5, 4)") + bytes(79), "needs 80 bytes, but has 79"),
    "no header": (b"", "cannot be read"),
}


@pytest.mark.parametrize("name", ARRAY_ATTACKS)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_array_header_in_npz(name: str, compression: int, tmp_path: Path) -> None:
    content, expected = ARRAY_ATTACKS[name]
    file = tmp_path / "x.npz"
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("x_train.npy", content)
        archive.writestr("y_train.npy", _npy(np.arange(5) % 2))
    for call in (lambda: npz.read(file), lambda: npz.stream_samples(file, ("a", "b"))[2]):
        message = message_of(call)
        assert "x_train cannot be read" in message
        assert expected in message


@pytest.mark.parametrize("name", ARRAY_ATTACKS)
def test_array_header_in_npy(name: str, tmp_path: Path) -> None:
    content, expected = ARRAY_ATTACKS[name]
    file = tmp_path / "x.npy"
    file.write_bytes(content)
    message = message_of(read_probabilities, file, 5, 4)
    assert "this is not a .npy array of numbers" in message
    assert expected.replace("cannot be read", "array") in message


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _patch_sizes(file: Path, claimed: int) -> None:
    """Replace the uncompressed size of the first member, in its local header and in the central directory."""
    content = bytearray(file.read_bytes())
    struct.pack_into("<I", content, 22, claimed)
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, claimed)
    file.write_bytes(content)


def test_zip_member_that_claims_more_than_it_can_hold(tmp_path: Path) -> None:
    """Deflate shrinks at most 1,032 times."""
    file = tmp_path / "x.npz"
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.writestr("x_train.npy", header_bytes("(1000000, 1000)") + bytes(4000))
        _patch_sizes(file, 4_000_000_000)
        for call in (lambda: npz.read(file, classes=("a", "b")), lambda: npz.stream_samples(file, ("a", "b"))[2]):
            message = message_of(call)
            assert "x_train cannot be read" in message
            assert "claims" in message


def test_zip_member_that_expands_beyond_its_claim(tmp_path: Path) -> None:
    """Ten MiB of zeros in ten kB, which claim to be 84 bytes."""
    file = tmp_path / "x.npz"
    content = header_bytes("(1, 2)") + bytes(10 << 20)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", content)
    _patch_sizes(file, len(content) - (10 << 20) + 8)
    for call in (lambda: npz.read(file, classes=("a", "b")), lambda: npz.stream_samples(file, ("a", "b"))[2]):
        tracemalloc.start()
        assert "x_train cannot be read" in message_of(call)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20


def test_zip_with_other_compression_is_refused(tmp_path: Path) -> None:
    """bzip2 and LZMA expand without a useful bound; numpy writes neither."""
    file = tmp_path / "x.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x_train.npy", _npy(np.zeros((4, 4))))
    for call in (lambda: npz.read(file, classes=("a", "b")), lambda: npz.stream_samples(file, ("a", "b"))[2]):
        assert "LZMA" in message_of(call).upper()


def test_damaged_zip_files_give_one_line(tmp_path: Path) -> None:
    """Cut at many places, and with one byte changed at many places."""
    good = io.BytesIO()
    np.savez_compressed(good, x_train=np.arange(40.0).reshape(10, 4), y_train=np.arange(10) % 2)
    content, file = good.getvalue(), tmp_path / "x.npz"
    damaged = [content[:k] for k in range(0, len(content), 7)]
    damaged += [content[:k] + bytes((content[k] ^ 255,)) + content[k + 1 :] for k in range(0, len(content), 3)]
    for variant in damaged:
        file.write_bytes(variant)
        with contextlib.suppress(InputError):
            npz.read(file)
        with contextlib.suppress(InputError):
            list(npz.stream_samples(file, ("a", "b"))[2])
        npz.has_clean_set(file)


def test_many_members_are_not_all_listed(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    with zipfile.ZipFile(file, "w") as archive:
        for k in range(500):
            archive.writestr(f"array_{k}.npy", b"")
    assert "x_train is missing; the file has array_0" in message_of(npz.read, file)


def test_array_that_does_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of zeros compresses a thousandfold: a small file may need more memory than there is."""
    file = tmp_path / "x.npz"
    np.savez_compressed(file, x_train=np.zeros((1000, 1000)))

    monkeypatch.setattr(npz_arrays, "total_memory_bytes", lambda: 5_000_000)
    assert "x_train needs 8,000,128 bytes, more than there is memory" in message_of(npz.read, file, classes=("a", "b"))


def test_compressed_idx_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(bytes((0, 0, 8, 3)) + struct.pack(">III", 1, 1, 1) + bytes(64 << 20), 1))
    monkeypatch.setattr(fashion_mnist, "MAX_BYTES", 1000)
    tracemalloc.start()
    assert "x.gz: has more than 1,000 bytes" in message_of(fashion_mnist.read_idx, file, axes=3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


# Too few file handles


@contextlib.contextmanager
def no_file_handles() -> Iterator[None]:
    """Allow no further open file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_too_many_open_files_is_not_a_broken_image(image_run: Path) -> None:
    file = image_run / "photos" / "rare" / "0.png"
    images.decode(file, (3, 8, 8))
    encoder = images.ImageEncoder((3, 8, 8), None)
    with no_file_handles():
        message = message_of(encoder.encode, [file])
    assert "0.png cannot be opened: too many open files" in message
    assert "ulimit -n" in message
    assert "repair" not in message


def test_too_many_open_files_is_not_skipped(image_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --on-error skip, sound images must not be left out."""
    options = ReadOptions(clean_file=str(image_run / "checked.csv"), on_error="skip")
    load(str(image_run / "photos"), read_options=options)
    encode = images.ImageEncoder.encode

    def encode_without_handles(self: images.ImageEncoder, items: Any) -> Iterator[torch.Tensor | str]:
        with no_file_handles():
            yield from encode(self, items)

    monkeypatch.setattr(images.ImageEncoder, "encode", encode_without_handles)
    message = message_of(load, str(image_run / "photos"), read_options=options)
    assert "too many open files" in message


@pytest.mark.parametrize("name", FIFO_READERS)
def test_too_many_open_files_is_named_by_every_reader(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if name.endswith("safetensors"):
        save_file({"a": torch.zeros(2)}, file)
    else:
        file.write_bytes(b"anything")
    with contextlib.suppress(InputError, KeyError):  # what is imported on first use needs handles too
        FIFO_READERS[name](file)
    with no_file_handles():
        assert "too many open files" in message_of(FIFO_READERS[name], file)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_image_is_not_called_broken(tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    Image.new("L", (8, 8)).save(file)
    file.chmod(0)
    result = next(images.ImageEncoder((1, 8, 8), None).encode([file]))
    assert result == "cannot be opened (Permission denied)"


# Wide tables and large folders


def test_columns_are_limited(tmp_path: Path, table_run: Path, capsys: Capture) -> None:
    file = tmp_path / "wide.csv"
    names = ",".join(f"c{k}" for k in range(1_000_000))
    file.write_text(f"{names},label\n{','.join('1' * 1_000_000)},a\n")
    start = time.monotonic()
    for arguments in (f"train {file} --out {tmp_path}/out", f"predict {table_run}/run {file}"):
        message = input_error(arguments, capsys)
        assert "wide.csv: 1,000,001 columns, more than the limit of 100,000" in message
    assert time.monotonic() - start < SECONDS_UNTIL_HANG


def test_allowed_number_of_columns_is_read_quickly(tmp_path: Path) -> None:
    """Guessing the roles of columns was quadratic in their number."""
    file = tmp_path / "wide.csv"
    count = 30_000
    lines = [",".join([*(f"c{k}" for k in range(count)), "label"])]
    lines += [",".join([*("word" if k % 2 else str(n) for k in range(count)), "ab"[n % 2]]) for n in range(4)]
    file.write_text("\n".join(lines))
    start = time.monotonic()
    columns = listing.find_columns(file, listing.Columns(), None)
    rows = listing.from_table(file, columns)
    listing.drop_columns(columns, rows, list(range(0, count, 2)))
    assert time.monotonic() - start < SECONDS_UNTIL_HANG


def test_endless_first_line_is_limited(tmp_path: Path) -> None:
    """A sparse file takes no space on disk."""
    file = tmp_path / "x.csv"
    with file.open("wb") as opened:
        opened.truncate(1 << 33)
    tracemalloc.start()
    assert "longer than" in message_of(table_file.column_names, file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 29


def test_listing_reports_its_count(photos: Path, image_run: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    options = ReadOptions(clean_file=str(photos.parent / "checked.csv"))
    load(str(photos), read_options=options, on_samples=lambda *call: calls.append(call))
    listed = [call for call in calls if call[0] == f"listing {photos}"]
    assert listed[-1][1:] == (33, 0)
    headers = [call for call in calls if call[0].startswith("reading headers of")]
    assert headers[-1][1] == headers[-1][2] > 0
    counts: list[int] = []
    assert len(list(Predictor(image_run / "run").predict([photos], on_listed=counts.append))) == 33
    assert counts[-1] == 33


def test_table_rows_are_counted(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "t.csv", TABLE_COLUMNS, table_rows(60))
    calls: list[tuple[str, int, int]] = []
    load(str(file), read_options=ReadOptions(clean_column="checked"), on_samples=lambda *call: calls.append(call))
    assert (f"listing {file}", 60, 0) in calls


def test_links_that_multiply_folders_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two links in each of n folders make 2ⁿ paths."""
    for k in range(30):
        folder = tmp_path / f"d{k}"
        folder.mkdir()
        for name in ("a", "b"):
            (folder / name).symlink_to(tmp_path / f"d{k + 1}")
    monkeypatch.setattr(listing, "MAX_FOLDERS", 500)
    assert "more than 500 folders" in message_of(listing.image_files, tmp_path / "d0")


# Options of predict without use


def test_unused_column_options_are_refused(image_run: Path, table_run: Path, capsys: Capture, tmp_path: Path) -> None:
    photo = image_run / "photos" / "rare" / "0.png"
    for source in (image_run / "photos", photo):
        for option in ("image", "id"):
            message = input_error(f"predict {image_run}/run {source} --{option} col", capsys)
            assert f"--{option} col names a column of a table, and no input is a table; leave it out" in message
    message = input_error(f"predict {image_run}/run {photo} --text col", capsys)
    assert "--text col: this run was trained on images, not on texts; leave it out" in message
    message = input_error(f"predict {table_run}/run {table_run}/table.csv --image col", capsys)
    assert "--image col: this run was trained on tables, not on images; leave it out" in message
    np.savez(tmp_path / "x.npz", x_train=np.zeros((2, 5)))
    assert "--image col: " in input_error(f"predict {table_run}/run {tmp_path}/x.npz --image col", capsys)
    paths = write_csv(tmp_path / "paths.csv", ["name", "where"], [["one", str(photo)]])
    assert run_cli(["predict", f"{image_run}/run", str(paths), "--image", "where", "--id", "name"], capsys).code == 0


def test_unused_net_is_refused(table_run: Path, capsys: Capture) -> None:
    message = input_error(f"predict {table_run}/run {table_run}/table.csv --net my_nets:make", capsys)
    assert "--net my_nets:make: " in message
    assert "was trained with --net auto, not with a network of your own" in message
    assert "leave it out" in message
