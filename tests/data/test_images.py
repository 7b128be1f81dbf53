"""Image files of every mode and size, broken files, and decompression bombs."""

import io
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
from metalabelnet.data.encoders.images import ImageEncoder
from metalabelnet.errors import InputError
from metalabelnet.input_files.image_decoding import decode_image
from metalabelnet.input_files.image_files import open_image, read_header
from photo_files import make_photo, record_decoded_sizes


def decode(path: Path, channels: int = 3, size: int = 8) -> np.ndarray:
    return images.decode(path, (channels, size, size)).numpy()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_uint8(mode: str, channels: int, tmp_path: Path) -> None:
    gray = Image.new("L", (5, 9), 200)
    suffix = {"CMYK": "tif", "YCbCr": "tif", "F": "tif", "I": "tif"}.get(mode, "png")
    if mode == "I;16":
        image = Image.fromarray(np.full((9, 5), 200 * 257, np.uint16))
    elif mode in ("I", "F"):
        image = Image.fromarray(np.full((9, 5), 200, np.int32 if mode == "I" else np.float32))
    else:
        image = gray.convert(mode) if mode in ("1", "LA", "P") else gray.convert("RGB").convert(mode)
    image.save(tmp_path / f"x.{suffix}")
    x = images.decode(tmp_path / f"x.{suffix}", (channels, 8, 8))
    assert (x.shape, x.dtype) == ((channels, 8, 8), torch.uint8)
    if mode != "1":  # black and white is dithered
        assert (x.float() - 200).abs().max() <= 3


@pytest.mark.parametrize(("largest", "at_half"), [(1.0, 127), (255.0, 127), (65535.0, 127), (float("nan"), 127)])
def test_range_of_wide_values_is_guessed(largest: float, at_half: int, tmp_path: Path) -> None:
    """TIFF files of floats may hold values in [0, 1], 8-bit or 16-bit values; NaN is black."""
    values = np.zeros((8, 8), np.float32)
    values[:, 4:] = 1.0 if np.isnan(largest) else largest
    values[4:] /= 2
    values[0, 0] = largest
    Image.fromarray(values).save(tmp_path / "f.tif")
    x = decode(tmp_path / "f.tif", channels=1)[0]
    assert x[2, 6] == 255
    assert x[6, 6] == at_half
    assert x[2, 2] == 0


def test_transparent_pixels_are_white(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (decode(tmp_path / "clear.png") == 255).all()
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([0, 0, 255] * 256)
    palette.save(tmp_path / "palette.gif", transparency=0)
    assert (decode(tmp_path / "palette.gif") == 255).all()
    palette.save(tmp_path / "blue.png")
    assert decode(tmp_path / "blue.png")[:, 0, 0].tolist() == [0, 0, 255]


def test_exif_orientation(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4] = 255  # the upper half is bright
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # rotate by 90° clockwise: the right half is bright
    image.save(tmp_path / "turned.png", exif=exif)
    x = decode(tmp_path / "turned.png")[0]
    assert (x[:, 4:] == 255).all()
    assert (x[:, :4] == 0).all()


@pytest.mark.parametrize(
    ("size", "decoded"),
    [
        ((63, 100), (63, 100)),  # half of it would be smaller than the 32 pixels that are needed
        ((64, 64), (32, 32)),
        ((65, 125), (33, 63)),
        ((511, 255), (128, 64)),
        ((256, 550), (32, 69)),
    ],
)
def test_jpeg_is_decoded_at_the_smallest_size_that_suffices(
    size: tuple[int, int], decoded: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Images of other formats are decoded whole."""
    content, decoded_sizes = make_photo(*size), record_decoded_sizes(monkeypatch)
    expected = decode_image(content, (3, 28, 28), 32)
    (tmp_path / "a.jpg").write_bytes(content)
    encoder = ImageEncoder((3, 28, 28), None, resize=32)
    (image,) = encoder.encode([tmp_path / "a.jpg"])
    assert isinstance(image, torch.Tensor)
    assert np.array_equal(image.numpy(), expected)
    assert decoded_sizes == [decoded, decoded]
    Image.open(tmp_path / "a.jpg").save(tmp_path / "b.png")
    decode_image(tmp_path / "b.png", (3, 28, 28), 32)
    assert decoded_sizes[-1] == size


def test_turned_jpeg_has_the_needed_size_after_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_sizes = record_decoded_sizes(monkeypatch)
    content = make_photo(128, 64, orientation=6)  # shown 64 wide and 128 high
    assert decode_image(content, (3, 16, 64)).shape == (3, 16, 64)
    assert decode_image(content, (3, 64, 16)).shape == (3, 64, 16)
    assert decoded_sizes == [(128, 64), (64, 32)]


@pytest.mark.parametrize("size", [(128, 130), (260, 515), (640, 520)])
def test_jpeg_decoded_at_a_fraction_equals_the_whole_one_resized(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to twice the difference between two filters of resizing; at a smaller fraction it would be more."""
    content, side, decoded_sizes = make_photo(*size), 64, record_decoded_sizes(monkeypatch)
    found = decode_image(content, (3, side, side)).astype(np.float64)
    assert decoded_sizes[-1] != size
    whole = Image.open(io.BytesIO(content)).convert("RGB")
    expected, other = (
        np.asarray(whole.resize((side, side), kind), np.float64).transpose(2, 0, 1)
        for kind in (Image.Resampling.BICUBIC, Image.Resampling.BOX)
    )
    assert expected.std() > 30
    tolerance = 2 * np.abs(other - expected).mean()
    assert np.abs(found - expected).mean() < tolerance < 2.5
    assert np.abs(found - expected).max() <= 16
    too_small = whole.resize((side // 2, side // 2)).resize((side, side))
    assert np.abs(np.asarray(too_small, np.float64).transpose(2, 0, 1) - expected).mean() > tolerance


def test_one_pixel_and_one_column(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (10, 20, 30)).save(tmp_path / "pixel.png")
    assert (decode(tmp_path / "pixel.png").reshape(3, -1).T == (10, 20, 30)).all()
    Image.new("RGB", (1, 3000), (10, 20, 30)).save(tmp_path / "column.png")
    assert (decode(tmp_path / "column.png").reshape(3, -1).T == (10, 20, 30)).all()


@pytest.mark.parametrize(
    ("sides", "size", "expected"),
    [((1, 1), None, 8), ((30, 500), None, 28), ((4000, 3000), None, 64), ((4000, 3000), 96, 96), ((64, 64), None, 64)],
)
def test_size_depends_on_the_images(sides: tuple[int, int], size: int | None, expected: int) -> None:
    assert images.choose_shape([(*sides, False)], size, external_net=False) == (3, expected, expected)
    assert images.choose_shape([(*sides, True)], size, external_net=False) == (1, expected, expected)
    assert images.choose_shape([(*sides, True)], size, external_net=True) == (3, size or 224, size or 224)


# Broken files


def bomb(path: Path, side: int = 17_321) -> Path:
    """Write a valid black PNG of 300 million pixels that takes a megabyte."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(1 + side)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve different images of two classes, and a table of four clean ones."""
    random = np.random.default_rng(0)
    for k in range(12):
        (tmp_path / "photos" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (10, 10, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / "ab"[k % 2] / f"{k}.png")
    (tmp_path / "clean.csv").write_text("id,label\na/0.png,a\nb/1.png,b\na/2.png,a\nb/3.png,b\n")
    return tmp_path


def read(folder: Path, **options: Any) -> DataSet:
    return load(str(folder / "photos"), read_options=ReadOptions(clean_file=str(folder / "clean.csv"), **options))


@pytest.fixture(scope="module")
def bomb_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bomb(tmp_path_factory.mktemp("bomb") / "bomb.png")


def break_one(folder: Path, kind: str, bomb_file: Path) -> str:
    """Add a broken image and return the expected message."""
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
    shutil.copy(bomb_file, path)
    return "a/broken one.jpg has 300,017,041 pixels, more than the limit of 89,478,485"


@pytest.mark.parametrize("kind", ["truncated", "text", "empty", "bomb"])
def test_broken_image_is_named_or_skipped(kind: str, folder: Path, bomb_file: Path) -> None:
    says = break_one(folder, kind, bomb_file)
    with pytest.raises(InputError) as raised:
        read(folder)
    assert says in str(raised.value)
    assert "--on-error skip" in str(raised.value)
    data = read(folder, on_error="skip")
    assert len(data.train) == 8
    assert any(note.startswith(f"1 of 13 samples left out: {says}") for note in data.notes)
    assert data.train.ids == ("a/10.png", "a/4.png", "a/6.png", "a/8.png", "b/11.png", "b/5.png", "b/7.png", "b/9.png")


def test_decompression_bomb_takes_no_memory(folder: Path, bomb_file: Path) -> None:
    path = Path(shutil.copy(bomb_file, folder / "photos" / "a"))
    assert path.stat().st_size < 3_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"bomb\.png has 300,017,041 pixels"):
        read(folder)
    assert len(read(folder, on_error="skip").train) == 8
    with pytest.raises(InputError, match="300,017,041 pixels"), open_image(path):
        pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB; the decoded image takes 300,000


def test_images_between_pillows_warning_and_error_limits(tmp_path: Path) -> None:
    """Pillow only warns about these."""
    with pytest.raises(InputError, match=r"100,000,000 pixels|10000×10000 pixels"):
        list(map(_raise, images.map_in_threads(read_header, [bomb(tmp_path / "x.png", 10_000)])))


def _raise(result: object) -> None:
    if isinstance(result, Exception):
        raise result


def test_images_outside_of_class_folders_are_refused(folder: Path) -> None:
    Image.new("L", (3, 3)).save(folder / "photos" / "lost.png")
    with pytest.raises(InputError, match=r"lost\.png is outside of the class folders"):
        read(folder)
