"""Image files: every mode and size, and those that are broken or a bomb."""

import resource
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from metalabelnet.data import DataSet, ReadOptions, load
from metalabelnet.data.encoders import images
from metalabelnet.errors import InputError


def decoded(path: Path, channels: int = 3, size: int = 8) -> np.ndarray:
    return images.decode(path, (channels, size, size)).numpy()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_bytes(mode: str, channels: int, tmp_path: Path) -> None:
    grey = Image.new("L", (5, 9), 200)
    suffix = {"CMYK": "tif", "YCbCr": "tif", "F": "tif", "I": "tif"}.get(mode, "png")
    if mode == "I;16":
        image = Image.fromarray(np.full((9, 5), 200 * 257, np.uint16))
    elif mode in ("I", "F"):
        image = Image.fromarray(np.full((9, 5), 200, np.int32 if mode == "I" else np.float32))
    else:
        image = grey.convert(mode) if mode in ("1", "LA", "P") else grey.convert("RGB").convert(mode)
    image.save(tmp_path / f"x.{suffix}")
    x = images.decode(tmp_path / f"x.{suffix}", (channels, 8, 8))
    assert (x.shape, x.dtype) == ((channels, 8, 8), torch.uint8)
    if mode != "1":  # black and white is dithered
        assert (x.float() - 200).abs().max() <= 3


@pytest.mark.parametrize(("most", "at_half"), [(1.0, 127), (255.0, 127), (65535.0, 127), (float("nan"), 127)])
def test_wide_values_by_their_size(most: float, at_half: int, tmp_path: Path) -> None:
    """Fractions of 1, bytes and 16 bits, as TIFF files of floating-point numbers have them; what is NaN is black."""
    values = np.zeros((8, 8), np.float32)
    values[:, 4:] = 1.0 if np.isnan(most) else most
    values[4:] /= 2
    values[0, 0] = most
    Image.fromarray(values).save(tmp_path / "f.tif")
    x = decoded(tmp_path / "f.tif", channels=1)[0]
    assert x[2, 6] == 255
    assert x[6, 6] == at_half
    assert x[2, 2] == 0


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (decoded(tmp_path / "clear.png") == 255).all()
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([0, 0, 255] * 256)
    palette.save(tmp_path / "palette.gif", transparency=0)
    assert (decoded(tmp_path / "palette.gif") == 255).all()
    palette.save(tmp_path / "blue.png")
    assert decoded(tmp_path / "blue.png")[:, 0, 0].tolist() == [0, 0, 255]


def test_an_image_is_turned_as_the_camera_held_it(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4] = 255  # bright above
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter: bright on the right
    image.save(tmp_path / "turned.png", exif=exif)
    x = decoded(tmp_path / "turned.png")[0]
    assert (x[:, 4:] == 255).all()
    assert (x[:, :4] == 0).all()


def test_a_single_pixel_and_a_thread(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (10, 20, 30)).save(tmp_path / "pixel.png")
    assert (decoded(tmp_path / "pixel.png").reshape(3, -1).T == (10, 20, 30)).all()
    Image.new("RGB", (1, 3000), (10, 20, 30)).save(tmp_path / "thread.png")
    assert (decoded(tmp_path / "thread.png").reshape(3, -1).T == (10, 20, 30)).all()


@pytest.mark.parametrize(
    ("sides", "size", "expected"),
    [((1, 1), None, 8), ((30, 500), None, 28), ((4000, 3000), None, 64), ((4000, 3000), 96, 96), ((64, 64), None, 64)],
)
def test_the_size_is_chosen_by_the_images(sides: tuple[int, int], size: int | None, expected: int) -> None:
    assert images.choose_shape([(*sides, False)], size, external_net=False) == (3, expected, expected)
    assert images.choose_shape([(*sides, True)], size, external_net=False) == (1, expected, expected)
    assert images.choose_shape([(*sides, True)], size, external_net=True) == (3, size or 224, size or 224)


# Broken ones


def bomb(path: Path, side: int = 17_321) -> Path:
    """A PNG of 300 million pixels in a megabyte: a true one, whose rows are all black."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(1 + side)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve good images of two classes, all of them different, and a list of four clean ones."""
    random = np.random.default_rng(0)
    for k in range(12):
        (tmp_path / "photos" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (10, 10, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / "ab"[k % 2] / f"{k}.png")
    (tmp_path / "clean.csv").write_text("id,label\na/0.png,a\nb/1.png,b\na/2.png,a\nb/3.png,b\n")
    return tmp_path


def read(folder: Path, **how: Any) -> DataSet:
    return load(str(folder / "photos"), read_options=ReadOptions(clean_file=str(folder / "clean.csv"), **how))


@pytest.fixture(scope="module")
def the_bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bomb(tmp_path_factory.mktemp("bomb") / "bomb.png")


def break_one(folder: Path, kind: str, the_bomb: Path) -> str:
    """Add a broken image; give what must be said of it."""
    path = folder / "photos" / "a" / "broken one.jpg"
    if kind == "truncated":
        Image.effect_noise((200, 200), 50).save(path)
        path.write_bytes(path.read_bytes()[:3000])
        return "a/broken one.jpg cannot be decoded (image file is truncated"
    if kind == "text":
        path.write_text("dear Ada")
        return "a/broken one.jpg is not an image"
    if kind == "empty":
        path.write_bytes(b"")
        return "a/broken one.jpg is not an image"
    shutil.copy(the_bomb, path)
    return "a/broken one.jpg has 300,017,041 pixels, more than the 89,478,485 that are decoded"


@pytest.mark.parametrize("kind", ["truncated", "text", "empty", "bomb"])
def test_a_broken_image_is_named_and_skipped_if_asked(kind: str, folder: Path, the_bomb: Path) -> None:
    says = break_one(folder, kind, the_bomb)
    with pytest.raises(InputError) as raised:
        read(folder)
    assert says in str(raised.value)
    assert "--on-error skip" in str(raised.value)
    data = read(folder, on_error="skip")
    assert len(data.train) == 8
    assert any(note.startswith(f"1 of 13 samples left out: {says}") for note in data.notes)
    assert data.train.ids == ("a/10.png", "a/4.png", "a/6.png", "a/8.png", "b/11.png", "b/5.png", "b/7.png", "b/9.png")


def test_an_image_of_300_million_pixels_takes_no_memory(folder: Path, the_bomb: Path) -> None:
    path = Path(shutil.copy(the_bomb, folder / "photos" / "a"))
    assert path.stat().st_size < 3_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"bomb\.png has 300,017,041 pixels"):
        read(folder)
    assert len(read(folder, on_error="skip").train) == 8
    with pytest.raises(InputError, match="300,017,041 pixels"), images._opened(path):
        pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB; decoded it has 300,000


def test_two_of_pillows_own_bounds(tmp_path: Path) -> None:
    """Between Pillow's warning and its error lie images it would decode."""
    with pytest.raises(InputError, match=r"100,000,000 pixels|10000×10000 pixels"):
        list(map(_raise, images.map_in_threads(images.read_header, [bomb(tmp_path / "x.png", 10_000)])))


def _raise(result: object) -> None:
    if isinstance(result, Exception):
        raise result


def test_images_beside_the_classes_are_refused(folder: Path) -> None:
    Image.new("L", (3, 3)).save(folder / "photos" / "lost.png")
    with pytest.raises(InputError, match=r"lost\.png lies beside the folders of the classes"):
        read(folder)
