"""Readers of benchmarks and .npz files: data, downloads, and one-line error messages for broken files."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import pickle
import socket
import struct
import sys
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from metalabelnet.data import DATASETS, UNLABELED, data_folder, load
from metalabelnet.data.benchmarks import cifar, digits, fashion_mnist
from metalabelnet.data.benchmarks.download import fetch
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metalabelnet.data import DataSet

DRAW = np.random.default_rng(0)


def images(*shape: int) -> np.ndarray:
    return DRAW.integers(0, 256, shape, dtype=np.uint8)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


# Names and folders


def test_unknown_name_suggests_the_closest_and_paths() -> None:
    with pytest.raises(InputError, match=r"'cifar11'.*did you mean 'cifar10'.*fashion-mnist.*\.npz"):
        load("cifar11")


@pytest.mark.parametrize("name", ["data.npz", "some/data.npz", "some/data.csv"])
def test_missing_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.\w+.*(no such file|does not exist)"):
        load(str(tmp_path / name))


def test_unsupported_path(tmp_path: Path) -> None:
    (tmp_path / "data.doc").write_text("a,b\n")
    with pytest.raises(InputError, match=r"data\.doc is not a supported kind of data"):
        load(str(tmp_path / "data.doc"))


def test_data_folder_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METALABELNET_DATA", "/elsewhere")
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == Path("/elsewhere")
    monkeypatch.setenv("METALABELNET_DATA", "")
    assert data_folder() == Path.home() / ".cache" / "metalabelnet"


def test_every_benchmark_has_a_summary_and_a_reference() -> None:
    assert list(DATASETS)[:4] == ["digits", "fashion-mnist", "cifar10", "cifar100"]
    assert list(DATASETS)[4:] == ["clothing1m", "food101n", "webvision", "webvision-mini"]
    for benchmark in DATASETS.values():
        assert "\n" not in benchmark.summary
        assert any(year.strip(",").isdigit() for year in benchmark.reference.split())


# digits


def test_digits_are_scaled_to_uint8() -> None:
    pytest.importorskip("sklearn")
    data = load("digits")
    assert data.train.x.shape == (1797, 1, 8, 8)
    assert data.train.x.dtype == torch.uint8
    assert len(data.train.x.unique()) == 17
    assert data.train.x.unique()[[0, 1, -1]].tolist() == [0, 16, 255]
    assert data.train.x[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0 0 5 13 9 1 0 0 of 16
    assert data.train.given[:11].tolist() == [*range(10), 0]
    assert torch.equal(data.train.given, data.train.true)
    assert data.test is None
    assert data.classes == tuple("0123456789")


def test_digits_from_a_file_need_no_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    from_sklearn = load("digits").train
    digits.write(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    from_file = load("digits", tmp_path / "data").train
    for name in ("x", "given", "true", "index"):
        assert torch.equal(getattr(from_file, name), getattr(from_sklearn, name))
    assert (from_file.classes, from_file.ids) == (from_sklearn.classes, from_sklearn.ids)


def test_digits_file_with_other_content_is_refused(tmp_path: Path) -> None:
    x = np.zeros((1797, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "digits.npz", x_train=x, y_train=np.zeros(1797, np.int64))
    with pytest.raises(InputError, match=r"digits\.npz: not the data set digits; delete the file"):
        load("digits", tmp_path)


def test_digits_without_scikit_learn_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"metalabelnet\[digits\]"):
        load("digits")


# Fashion-MNIST


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A tiny copy in tmp_path; an installed Debian package is hidden."""
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "debian")
    arrays = {
        "train-images-idx3-ubyte": images(12, 28, 28),
        "train-labels-idx1-ubyte": np.arange(12, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": images(3, 28, 28),
        "t10k-labels-idx1-ubyte": np.array([9, 0, 4], dtype=np.uint8),
    }
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(idx(array))
    return arrays


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("place", [".", "fashion-mnist", "debian"])
def test_fashion_mnist_from_each_place(
    packed: bool, place: str, tmp_path: Path, fashion: dict[str, np.ndarray]
) -> None:
    for name in fashion:
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        (tmp_path / place).mkdir(exist_ok=True)
        target = tmp_path / place / (f"{name}.gz" if packed else name)
        target.write_bytes(gzip.compress(content) if packed else content)
    data = load("fashion-mnist", tmp_path)
    assert data.test is not None
    assert np.array_equal(data.train.x[:, 0], fashion["train-images-idx3-ubyte"])
    assert np.array_equal(data.test.x[:, 0], fashion["t10k-images-idx3-ubyte"])
    assert data.train.given.tolist() == data.train.true.tolist() == [*range(10), 0, 1]
    assert data.test.given.tolist() == [9, 0, 4]
    assert data.classes[9] == "Ankle boot"


def broken_idx(name: str) -> bytes:
    good = idx(np.arange(12, dtype=np.uint8) % 10)
    return {
        "truncated": good[:-1],
        "longer": good + b"0",
        "header only in part": good[:6],
        "another type": good[:2] + b"\x0d" + good[3:],
        "images": idx(images(12, 28, 28)),
        "empty": b"",
    }[name]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("truncated", "has 19 bytes, but its header states 20"),
        ("longer", "has 21 bytes, but its header states 20"),
        ("header only in part", "has 6 bytes"),
        ("another type", "starts with 00000d01, but .* 00000801"),
        ("images", "starts with 00000803, but .* 00000801"),
        ("empty", "starts with nothing"),
    ],
)
def test_broken_idx_file_is_named(
    packed: bool, damage: str, says: str, tmp_path: Path, fashion: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "train-labels-idx1-ubyte"
    path.unlink()
    if packed:
        path = path.with_name(f"{path.name}.gz")
    path.write_bytes(gzip.compress(broken_idx(damage)) if packed else broken_idx(damage))
    with pytest.raises(InputError, match=f"{path.name}: {says}"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(bytes(99))[:-9], b"no gzip", gzip.compress(b"")[:12] + b"?"],
    ids=["cut", "other", "wrong"],
)
def test_broken_gz_file_is_named(content: bytes, tmp_path: Path, fashion: dict[str, np.ndarray]) -> None:
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\.gz: cannot be read"):
        load("fashion-mnist", tmp_path)


def test_fashion_mnist_of_another_size_is_refused(tmp_path: Path, fashion: dict[str, np.ndarray]) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images(12, 8, 8)))
    with pytest.raises(InputError, match="8×8, not 28×28"):
        load("fashion-mnist", tmp_path)


def test_missing_fashion_mnist_names_folders_and_sources(tmp_path: Path, fashion: dict[str, np.ndarray]) -> None:
    empty = tmp_path / "empty"
    with pytest.raises(InputError, match="dataset-fashion-mnist") as caught:
        load("fashion-mnist", empty)
    for words in (str(empty), str(tmp_path / "debian"), "METALABELNET_DATA"):
        assert words in str(caught.value)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="but not t10k-labels-idx1-ubyte"):
        load("fashion-mnist", tmp_path)


@pytest.mark.skipif(
    not fashion_mnist.DEBIAN_FOLDER.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed"
)
def test_the_real_fashion_mnist(tmp_path: Path) -> None:
    data = load("fashion-mnist", tmp_path)
    assert data.test is not None
    assert data.train.x.shape == (60000, 1, 28, 28)
    assert data.test.x.shape == (10000, 1, 28, 28)
    assert data.train.given.bincount().tolist() == [6000] * 10
    assert data.test.given.bincount().tolist() == [1000] * 10


# CIFAR


def published_pickle(pixels: np.ndarray, labels: list[int], key: str) -> bytes:
    """Return a batch byte for byte as Python 2 and the NumPy of 2009 pickled it."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes((len(value),)) + value

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    raw = pixels.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01"
    array += b"M" + struct.pack("<H", len(pixels)) + b"M" + struct.pack("<H", 3072) + b"\x86" + dtype
    array += b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    label_list = b"](" + b"".join(b"K" + bytes((label,)) for label in labels) + b"e"
    return b"\x80\x02}(" + text(key.encode()) + label_list + text(b"data") + array + b"u."


class CifarBatches:
    """Tiny batches in place of the published ones, and what should be read from them."""

    def __init__(self, published: cifar.CifarFiles) -> None:
        count = len(published.classes)
        self.pixels, self.labels, self.contents = {}, {}, {}
        for name in (*published.train, *published.test):
            self.pixels[name] = images(2, 3072)
            self.labels[name] = DRAW.integers(0, count, 2).tolist()
            self.contents[name] = published_pickle(self.pixels[name], self.labels[name], published.labels)
        md5s = {name: md5(content) for name, content in self.contents.items()}
        archive = self.archive(published.folder)
        self.published = dataclasses.replace(
            published,
            archive_md5=md5(archive),
            train={name: md5s[name] for name in published.train},
            test={name: md5s[name] for name in published.test},
        )

    def archive(self, folder: str) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in {**self.contents, "readme.html": b"hello"}.items():
                member = tarfile.TarInfo(f"{folder}/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    def write(self, root: Path, form: str) -> Path:
        if form == "archive":
            path = root / self.published.archive
            path.write_bytes(self.archive(self.published.folder))
            return path
        folder = root / self.published.folder
        folder.mkdir()
        for name, content in self.contents.items():
            (folder / name).write_bytes(content)
        return folder

    def check(self, data: DataSet) -> None:
        assert data.name == self.published.name
        assert data.test is not None
        for rows, names in ((data.train, self.published.train), (data.test, self.published.test)):
            pixels = np.concatenate([self.pixels[name] for name in names])
            assert rows.x.dtype == torch.uint8
            # Red, green and blue one after the other, each row by row, as the data set's page says.
            assert np.array_equal(rows.x[:, 0], pixels[:, :1024].reshape(-1, 32, 32))
            assert np.array_equal(rows.x[:, 2], pixels[:, 2048:].reshape(-1, 32, 32))
            assert rows.given.tolist() == [label for name in names for label in self.labels[name]]
            assert torch.equal(rows.given, rows.true)
            assert rows.classes == self.published.classes


@pytest.fixture(params=["CIFAR10", "CIFAR100"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CifarBatches:
    fixture = CifarBatches(getattr(cifar, request.param))
    monkeypatch.setattr(cifar, request.param, fixture.published)
    monkeypatch.setattr(cifar, "BASE_URL", "http://127.0.0.1:9/")  # prevents downloads
    return fixture


def test_cifar_names_its_classes() -> None:
    assert len(set(cifar.CIFAR10.classes)) == 10
    assert len(set(cifar.CIFAR100.classes)) == 100
    assert list(cifar.CIFAR100.classes) == sorted(cifar.CIFAR100.classes)  # as published


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_cifar_from_the_published_files(form: str, batches: CifarBatches, tmp_path: Path) -> None:
    batches.write(tmp_path, form)
    batches.check(load(batches.published.name, tmp_path))


def test_cifar_from_the_environment_variable(
    batches: CifarBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches.write(tmp_path, "folder")
    monkeypatch.setenv("METALABELNET_DATA", str(tmp_path))
    batches.check(load(batches.published.name))


def test_cifar_prefers_npz_to_folder_to_archive(batches: CifarBatches, tmp_path: Path) -> None:
    (tmp_path / batches.published.archive).write_bytes(b"never read")
    folder = batches.write(tmp_path, "folder")
    batches.check(load(batches.published.name, tmp_path))
    for file in folder.iterdir():
        file.write_bytes(b"never read")
    x = images(4, 32, 32, 3)
    path = tmp_path / f"{batches.published.name}.npz"
    np.savez(path, x_train=x, y_train=[3, 1, 0, 9], x_test=x[:1], y_test=[2])
    data = load(batches.published.name, tmp_path)
    assert data.test is not None
    assert np.array_equal(data.train.x, x.transpose(0, 3, 1, 2))
    assert data.train.true.tolist() == data.train.given.tolist() == [3, 1, 0, 9]
    assert data.test.given.tolist() == [2]
    assert data.classes == batches.published.classes
    assert data.name == batches.published.name


class Intruder:
    """Unpickling this creates a file."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.at),)


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize("which", ["first", "last"])
def test_pickle_with_another_md5_is_not_executed(form: str, which: str, batches: CifarBatches, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    bomb = pickle.dumps(Intruder(trace))
    pickle.loads(bomb)
    assert trace.exists(), "the crafted pickle must have an effect, or this test shows nothing"
    trace.rmdir()
    name = list(batches.contents)[0 if which == "first" else -1]
    batches.contents[name] = bomb
    path = batches.write(tmp_path, form)
    with pytest.raises(InputError, match=f"{path.name}: {name} has MD5 {md5(bomb)}.*not loaded"):
        load(batches.published.name, tmp_path)
    assert not trace.exists()


def test_incomplete_cifar(batches: CifarBatches, tmp_path: Path) -> None:
    name = list(batches.contents)[-1]
    del batches.contents[name]
    folder = batches.write(tmp_path, "folder")
    with pytest.raises(InputError, match=f"{name}.*unpack {batches.published.archive} again"):
        load(batches.published.name, tmp_path)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    archive = batches.write(tmp_path, "archive")
    with pytest.raises(InputError, match=f"{batches.published.folder}/{name} is missing"):
        load(batches.published.name, tmp_path)
    for content in (archive.read_bytes()[:-2000], b"no archive"):
        archive.write_bytes(content)
        with pytest.raises(InputError, match=f"{archive.name}: cannot be read"):
            load(batches.published.name, tmp_path)


@pytest.mark.parametrize(
    ("shape", "test", "says"),
    [
        ((28, 28, 3), True, r"\(3, 28, 28\), not \(3, 32, 32\)"),
        ((32, 32, 3), False, "x_test and y_test"),
    ],
)
def test_cifar_npz_of_another_shape_is_refused(shape: tuple[int, ...], test: bool, says: str, tmp_path: Path) -> None:
    arrays = {"x_train": images(3, *shape), "y_train": np.arange(3)}
    if test:
        arrays |= {"x_test": images(3, *shape), "y_test": np.arange(3)}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    with pytest.raises(InputError, match=says):
        load("cifar10", tmp_path)


@pytest.mark.skipif(
    not (data_folder() / "cifar10.npz").is_file(), reason="METALABELNET_DATA names no folder with cifar10.npz"
)
def test_the_real_cifar10() -> None:
    data = load("cifar10")
    assert data.test is not None
    assert data.train.x.shape == (50000, 3, 32, 32)
    assert data.test.x.shape == (10000, 3, 32, 32)
    assert data.train.x.dtype == torch.uint8
    assert data.train.given.bincount().tolist() == [5000] * 10
    assert data.test.given.bincount().tolist() == [1000] * 10
    assert torch.equal(data.train.given, data.train.true)


# Download


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        if self.path.endswith("short"):  # announces more bytes than it sends
            self._headers_buffer = [
                b"Content-Length: 99999999\r\n" if line.startswith(b"Content-Length") else line
                for line in self._headers_buffer
            ]
        super().end_headers()


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL of its files."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path_factory.mktemp("server")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder)) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()
        thread.join()


def test_download_reports_progress(server: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = server
    content = DRAW.bytes(2_500_000)
    (folder / "file").write_bytes(content)
    calls: list[tuple[str, int, int]] = []
    target = tmp_path / "new" / "folder" / "file"
    fetch(address + "file", target, md5(content), lambda *call: calls.append(call))
    assert target.read_bytes() == content
    assert list(target.parent.iterdir()) == [target]
    assert len(calls) > 2
    assert {(what, total) for what, _, total in calls} == {("file", 2_500_000)}
    done = [bytes_done for _, bytes_done, _ in calls]
    assert done == sorted(done)
    assert done[-1] == 2_500_000


@pytest.mark.parametrize(
    ("name", "says"),
    [("other", "MD5 .* discarded"), ("short", "interrupted after 4 of 99999999"), ("nothing", "404")],
)
def test_failed_download_leaves_nothing_behind(name: str, says: str, server: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = server
    (folder / "other").write_bytes(b"abcd")
    (folder / "short").write_bytes(b"abcd")
    with pytest.raises(InputError, match=says):
        fetch(address + name, tmp_path / "file", md5(b"good"))
    assert list(tmp_path.iterdir()) == []


def test_interrupted_download_leaves_nothing_behind(server: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = server
    (folder / "file").write_bytes(b"abcd")

    def interrupt(*call: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(address + "file", tmp_path / "file", md5(b"abcd"), interrupt)
    assert list(tmp_path.iterdir()) == []


def test_cifar_is_downloaded_once(
    server: tuple[Path, str], batches: CifarBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = server
    archive = batches.write(folder, "archive")
    # Of the archive as written: a gz file contains its creation time.
    published = dataclasses.replace(batches.published, archive_md5=md5(archive.read_bytes()))
    monkeypatch.setattr(cifar, published.name.upper(), published)
    monkeypatch.setattr(cifar, "BASE_URL", address)
    calls: list[tuple[str, int, int]] = []
    batches.check(load(published.name, tmp_path, lambda *call: calls.append(call)))
    assert calls[-1] == (published.archive, *[archive.stat().st_size] * 2)
    calls.clear()
    archive.unlink()
    batches.check(load(published.name, tmp_path, lambda *call: calls.append(call)))
    assert calls == []


def test_without_network_the_message_names_alternatives(
    batches: CifarBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.setattr(cifar, "BASE_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/")
        with pytest.raises(InputError, match="cannot be downloaded") as caught:
            load(batches.published.name, tmp_path)
    published = batches.published
    for words in (
        f"{published.name}.npz",
        published.folder,
        published.archive,
        str(tmp_path),
        "METALABELNET_DATA",
    ):
        assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_download_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot be downloaded.*file"):
        fetch("http://127.0.0.1:9/a", tmp_path / "file" / "a", "")


# .npz

Y = np.array([0, 1, 2, -1])


def save_npz(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "mine.npz", **arrays)
    return str(folder / "mine.npz")


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((4, 5, 6), None),
        ((4, 5, 6, 1), (0, 3, 1, 2)),
        ((4, 5, 6, 3), (0, 3, 1, 2)),
        ((4, 5, 6, 4), (0, 3, 1, 2)),
        ((4, 3, 6, 4), (0, 3, 1, 2)),
        ((4, 1, 5, 6), (0, 1, 2, 3)),
        ((4, 3, 5, 6), (0, 1, 2, 3)),
        ((4, 4, 5, 6), (0, 1, 2, 3)),
    ],
)
def test_npz_images_of_every_shape(shape: tuple[int, ...], order: tuple[int, ...] | None, tmp_path: Path) -> None:
    x = images(*shape)
    rows = load(save_npz(tmp_path, x_train=x, y_train=Y)).train
    assert rows.is_image
    assert rows.x.dtype == torch.uint8
    assert rows.x.is_contiguous()
    assert np.array_equal(rows.x, x[:, None] if order is None else x.transpose(order))


@pytest.mark.parametrize("dtype", ["float64", "float16", ">f4", "int32", "uint8", "bool"])
def test_npz_tables_of_every_type(dtype: str, tmp_path: Path) -> None:
    x = DRAW.integers(0, 2, (4, 3)).astype(dtype)
    rows = load(save_npz(tmp_path, x_train=x, y_train=Y)).train
    assert not rows.is_image
    assert rows.x.dtype == torch.float32
    assert np.array_equal(rows.x, x.astype(np.float32))


@pytest.mark.parametrize("dtype", ["int64", "int8", ">i4", "float32"])
def test_npz_labels_of_every_type(dtype: str, tmp_path: Path) -> None:
    rows = load(save_npz(tmp_path, x_train=np.eye(4), y_train=Y.astype(dtype))).train
    assert rows.given.dtype == torch.int64
    assert rows.given.tolist() == Y.tolist()


def test_npz_labels_may_be_booleans(tmp_path: Path) -> None:
    assert load(save_npz(tmp_path, x_train=np.eye(2), y_train=[True, False])).train.given.tolist() == [1, 0]


def test_npz_with_every_part(tmp_path: Path) -> None:
    x = DRAW.normal(size=(9, 2))
    path = save_npz(
        tmp_path,
        x_train=x[:4],
        y_train=Y,
        true_train=[0, -1, 1, 2],
        x_test=x[4:6],
        y_test=[1, 0],
        x_clean=x[6:],
        y_clean=[2, 1, 0],
        classes=["cat", "dog", "élan", "fox"],
    )
    data = load(path)
    assert data.name == "mine"
    assert data.test is not None
    assert data.clean is not None
    assert data.classes == data.test.classes == data.clean.classes == ("cat", "dog", "élan", "fox")
    assert data.train.given.tolist() == [0, 1, 2, UNLABELED]
    assert data.train.true.tolist() == [0, UNLABELED, 1, 2]
    assert data.test.given.tolist() == data.test.true.tolist() == [1, 0]
    assert data.clean.given.tolist() == data.clean.true.tolist() == [2, 1, 0]
    assert np.array_equal(data.clean.x, x[6:].astype(np.float32))


def test_npz_without_clean_set_has_true_labels(tmp_path: Path) -> None:
    benchmark = load(save_npz(tmp_path, x_train=np.eye(4), y_train=Y))
    assert benchmark.train.true.tolist() == Y.tolist()
    assert benchmark.clean is None
    assert benchmark.test is None
    noisy = load(save_npz(tmp_path, x_train=np.eye(4), y_train=Y, x_clean=np.eye(4), y_clean=[0, 1, 2, 0]))
    assert noisy.train.true.tolist() == [UNLABELED] * 4


@pytest.mark.parametrize("key", ["y_train", "true_train", "y_test", "y_clean"])
def test_npz_counts_classes_over_all_parts(key: str, tmp_path: Path) -> None:
    labels = {name: np.array([0, 1, 2, 0]) for name in ("y_train", "true_train", "y_test", "y_clean")}
    labels[key][3] = 6
    path = save_npz(tmp_path, **{f"x_{part}": np.eye(4) for part in ("train", "test", "clean")}, **labels)
    assert load(path).classes == tuple("0123456")


def test_npz_minus_one_among_names_is_unlabeled(tmp_path: Path) -> None:
    names = np.array(["dog", "cat", "dog", "cat"])
    names[2] = -1  # numpy converts it to "-1"
    data = load(save_npz(tmp_path, x_train=np.eye(4), y_train=names))
    assert data.classes == ("cat", "dog")
    assert data.train.given.tolist() == [1, 0, UNLABELED, 0]


def test_npz_labels_may_be_names(tmp_path: Path) -> None:
    parts = {f"x_{part}": np.eye(4) for part in ("train", "clean")}
    labels = {
        "y_train": np.array(["dog", "", "Kätzchen", "dog"]),
        "y_clean": np.array(["ant", "dog", "dog", "Kätzchen"]),
    }
    data = load(save_npz(tmp_path, **parts, **labels))
    assert data.classes == ("Kätzchen", "ant", "dog")
    assert data.train.given.tolist() == [2, -1, 0, 2]
    assert data.clean is not None
    assert data.clean.true.tolist() == [1, 2, 2, 0]
    with_classes = load(save_npz(tmp_path, **parts, **labels, classes=np.array(["dog", "eel", "ant", "Kätzchen"])))
    assert with_classes.classes == ("dog", "eel", "ant", "Kätzchen")
    assert with_classes.train.given.tolist() == [0, -1, 3, 0]


NAN = np.eye(4)
NAN[2, 1] = np.nan
HUGE = np.eye(4)
HUGE[3, 1] = 1e300


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"y_train": [0, 1, 0.5, 1.5]}, "y_train: row 2 is 0.5; a label is an integer", id="half"),
        pytest.param({"y_train": [0, 1, 1, np.nan]}, "y_train: row 3 is nan", id="nan label"),
        pytest.param({"y_train": [*"abab"], "true_train": Y}, "true_train is int64, but other labels", id="some names"),
        pytest.param(
            {"y_train": [*"abca"], "classes": [*"ab"]}, "unknown class 'c'.* choose from a, b", id="other names"
        ),
        pytest.param(
            {"y_train": [["a"], ["b"], ["a"], ["b"]]},
            r"shape \(N,\), one per row, not \(4, 1\)",
            id="names in a column",
        ),
        pytest.param({"y_train": [0, 1, -2, 0]}, "y_train: row 2 is -2;.*or -1 for unlabeled", id="negative"),
        pytest.param({"y_train": [0, 1, 10**9, 0]}, "y_train: row 2 is 1000000000", id="absurd"),
        pytest.param({"y_train": np.array([0, 2**64 - 1, 0, 1], np.uint64)}, "row 1 is 1844674407", id="wraps"),
        pytest.param(
            {"y_train": np.eye(4, dtype=int)}, r"y_train: .*shape \(N,\), one per row, not \(4, 4\)", id="one-hot"
        ),
        pytest.param({"y_train": [0, 1, 0]}, "4 samples but 3 labels", id="fewer labels"),
        pytest.param({"true_train": [0, 1, 0]}, "4 samples in x_train but 3 labels in true_train", id="fewer true"),
        pytest.param({"y_train": [0, 0, 0, -1]}, "at least 2 classes, not 1", id="one class"),
        pytest.param({"y_train": [-1, -1, -1, -1]}, "at least 2 classes, not 0", id="no label"),
        pytest.param({"classes": ["a", "b"]}, "row 2 has label 2; labels are 0 to 1", id="beyond the names"),
        pytest.param({"classes": ["a"]}, "at least 2 classes, not 1", id="one name"),
        pytest.param({"classes": ["a", "b", "a"]}, "two classes have the name 'a'", id="name twice"),
        pytest.param({"classes": [0, 1, 2]}, "classes is int64 .* not a list of strings", id="numbers as names"),
        pytest.param({"x_train": NAN}, "x_train: row 2 has a value that is NaN", id="nan"),
        pytest.param({"x_train": HUGE}, "x_train: row 3 has a value that is NaN or infinite", id="overflow"),
        pytest.param({"x_train": np.eye(4) * 1j}, "x_train: complex128 of shape", id="complex"),
        pytest.param({"x_train": np.zeros((4, 5, 6))}, r"x_train: float64 of shape \(4, 5, 6\)", id="float image"),
        pytest.param({"x_train": images(4, 5, 6, 2)}, r"uint8 of shape \(4, 5, 6, 2\)", id="two channels"),
        pytest.param({"x_train": np.arange(4)}, r"int64 of shape \(4,\)", id="flat"),
        pytest.param({"x_train": np.zeros((4, 0))}, r"shape \(4, 0\) is empty", id="no columns"),
        pytest.param({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, r"\(0, 4\) is empty", id="no rows"),
        pytest.param({"x_train": None}, "x_train is missing; the file has y_train", id="no x_train"),
        pytest.param({"y_train": None}, "y_train is missing; the file has x_train", id="no y_train"),
        pytest.param({"x_test": np.eye(4)}, "has x_test but no y_test; give both", id="x_test alone"),
        pytest.param({"y_test": [0]}, "has y_test but no x_test; give both", id="y_test alone"),
        pytest.param({"x_clean": np.eye(4)}, "has x_clean but no y_clean; give both", id="x_clean alone"),
        pytest.param({"y_clean": [0]}, "has y_clean but no x_clean; give both", id="y_clean alone"),
        pytest.param({"x_test": np.eye(4, 3), "y_test": Y}, r"shape \(3,\) in x_test, but \(4,\)", id="widths"),
        pytest.param({"x_clean": images(4, 2, 2), "y_clean": Y}, r"shape \(1, 2, 2\) in x_clean", id="kinds"),
        pytest.param({"x_clean": np.eye(4), "y_clean": Y}, "y_clean row 3 is -1", id="unlabeled clean row"),
        pytest.param({"x_test": np.eye(4), "y_test": Y}, "y_test row 3 is -1", id="unlabeled test row"),
        pytest.param({"y_train": np.array([0, 1, 2, "x"], object)}, "y_train cannot be read .*Object", id="object"),
    ],
)
def test_npz_error_names_the_file_and_the_fault(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    arrays = {"x_train": np.eye(4), "y_train": Y} | change
    path = save_npz(tmp_path, **{key: array for key, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=f"mine.npz.*{says}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_npz_pickle_is_not_executed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = save_npz(tmp_path, x_train=np.eye(2), y_train=np.array([Intruder(trace), 1], object))
    with pytest.raises(InputError, match="y_train cannot be read"):
        load(path)
    assert not trace.exists()
    np.load(path, allow_pickle=True)["y_train"]
    assert trace.exists(), "the crafted pickle must have an effect, or this test shows nothing"


def test_npz_that_is_broken(tmp_path: Path) -> None:
    path = Path(save_npz(tmp_path, x_train=np.eye(4), y_train=Y))
    whole = path.read_bytes()
    data_at = whole.index(np.eye(4).tobytes())
    flipped = whole[:data_at] + b"?" + whole[data_at + 1 :]
    needs_at = whole.index(b"PK\x01\x02") + 6  # in the archive's directory: the zip version to read it with
    version_99 = whole[:needs_at] + bytes((99,)) + whole[needs_at + 1 :]
    single = io.BytesIO()
    np.save(single, np.eye(4))
    for content, says in (
        (whole[:-30], "not a complete .npz"),
        (b"", "not a complete .npz"),
        (single.getvalue(), "not a complete .npz"),
        (pickle.dumps([1]), "not a complete .npz"),
        (flipped, "x_train cannot be read"),
        (b"MZ" + whole, "cannot be read"),
        (version_99, "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"mine.npz: .*{says}"):
            load(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train", b"text")
    with pytest.raises(InputError, match=r"mine\.npz: x_train"):
        load(str(path))


def test_failed_download_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be downloaded"):
        fetch("http://127.0.0.1:9/nothing", tmp_path / "new" / "file", "0" * 32)
    assert not (tmp_path / "new").exists()
