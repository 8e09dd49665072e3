"""Images that are not JPEGs: they train beside JPEGs, by rules that are the same everywhere."""

import logging
import struct
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features

from entry_point.config.data_config import DataConfig
from entry_point.data import errors
from entry_point.data.batch import Batch
from entry_point.data.decode.pillow import FORMATS, read_photo, rgb
from entry_point.data.loader import build_prediction_loader
from entry_point.data.metadata import UnusableImageError
from entry_point.data.sources.rows import IMAGE_SUFFIXES
from entry_point.data.sources.source import FileSource
from tests.entry_point.data.decode.image_files import chunk, file_of, shown, tensor, turned
from tests.entry_point.data.engines.every_engine import DALI, Way, pipeline_of
from tests.entry_point.data.loaders import epoch_of, loader_of, source_of

RED, GREEN = (255, 0, 0), (0, 255, 0)


def damage_of(content: bytes) -> str:
    """Why the image cannot be decoded; empty if it can."""
    try:
        read_photo(tensor(content))
    except UnusableImageError as error:
        return str(error)
    return ""


def epoch(root: Path, engine: Way, split: str = "train", **data: Any) -> list[Batch]:
    return epoch_of(loader_of(root, engine, split, **data))


def test_every_format_has_suffixes_and_every_suffix_a_format() -> None:
    Image.init()
    known = {suffix: Image.registered_extensions()[suffix] for suffix in IMAGE_SUFFIXES}
    assert set(known.values()) == set(FORMATS)


@pytest.mark.parametrize("engine", ["threads", DALI])
def test_a_mixed_folder_gives_the_samples_of_its_parts(
    engine: Way, photo_folder: Path, mixed_folder: Path
) -> None:
    """JPEGs those of a folder of JPEGs, others those of Pillow; in training and in validation."""
    for split in ("train", "val"):
        found, jpegs, photos = (
            epoch(mixed_folder, engine, split),
            epoch(photo_folder, engine, split),
            epoch(mixed_folder, "pillow", split),
        )
        names = [path.name for path in sorted((mixed_folder / split).glob("*/*"))]
        for one, of_jpegs, of_photos in zip(found, jpegs, photos, strict=True):
            assert torch.equal(one.indices, of_jpegs.indices)
            assert torch.equal(one.labels, of_jpegs.labels)
            assert one.images.is_contiguous(memory_format=torch.channels_last)
            for i, index in enumerate(one.indices.tolist()):
                expected = of_jpegs if names[index].endswith(".jpg") else of_photos
                assert torch.equal(one.images[i], expected.images[i]), names[index]


@pytest.mark.parametrize("engine", ["threads", "pillow"])
def test_values_of_12_bits_in_16_are_those_of_8_bits_where_a_setting_says_so(
    engine: Way, tmp_path: Path
) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (80, 90))
    for form, image in (
        ("wide", Image.fromarray(np.rint(levels * 4095 / 255).astype(np.uint16))),
        ("narrow", Image.fromarray(levels.astype(np.uint8))),
    ):
        for place in ("train/a", "train/b", "val/a", "val/b"):
            (tmp_path / form / place).mkdir(parents=True)
            for number in range(6):
                image.save(tmp_path / form / place / f"{number}.png")
    for split in ("train", "val"):
        (wide,) = epoch(tmp_path / "wide", engine, split, gray_bits=12)
        (narrow,) = epoch(tmp_path / "narrow", engine, split)
        assert torch.equal(wide.images, narrow.images)
    files = FileSource([tmp_path / "wide/val/a/1.png"], [0], ["a"])
    predicted = build_prediction_loader(
        files,
        range(1),
        DataConfig(image_size=48, resize=56, gray_bits=12),
        pipeline_of(engine, 1),
        batch_size=1,
    )
    with closing(predicted) as loader:
        assert torch.equal(next(iter(loader.epoch(0))).images, narrow.images[:1])


@pytest.mark.parametrize(
    ("largest", "bits", "is_said"), [(4095, 16, True), (4096, 16, False), (4095, 12, False)]
)
def test_values_of_12_bits_that_would_be_nearly_black_are_said_once(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    largest: int,
    bits: int,
    is_said: bool,
) -> None:
    monkeypatch.setattr(errors, "_logged", {})
    levels = np.linspace(0, largest, 64).astype(np.uint16).reshape(8, 8)
    for _ in range(2):
        rgb(Image.fromarray(levels), bits)
        rgb(Image.fromarray(levels // 4096), bits)  # black is nothing to say
    line = "has no value above 4095, so it is nearly black: if its values have 12 bits, set data."
    assert caplog.text.count(line) == is_said


def test_a_mixed_folder_keeps_the_side_indexes_of_its_jpegs(mixed_folder: Path) -> None:
    epoch(mixed_folder, "threads")
    source = source_of(mixed_folder)
    jpegs = [i for i in range(len(source)) if source.key(i).endswith(".jpg")]
    indexes = source.indexes(np.arange(len(source))) or []
    assert [i for i, index in enumerate(indexes) if len(index)] == jpegs


def test_a_log_line_says_how_many_images_are_not_jpegs(
    photo_folder: Path, mixed_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = mixed_folder.parent / "labels.csv"
    files = sorted(mixed_folder.glob("*/*/*"))
    rows = (f"{file},{file.parent.name},{file.parent.parent.name}\n" for file in files)
    table.write_text("path,label,split\n" + "".join(rows))
    with caplog.at_level(logging.INFO):
        for root in (mixed_folder, photo_folder, table):
            source_of(root)
    others = sum(file.suffix != ".jpg" for file in files)
    for place in (mixed_folder, table):
        assert f"{place}: {others} of 72 images are not JPEGs" in caplog.text
    assert caplog.text.count("images are not JPEGs") == 2


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "WEBP"])
def test_lossless_formats_give_their_pixels(kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    options = {"lossless": True} if kind == "WEBP" else {}
    assert np.array_equal(shown(file_of(Image.fromarray(pixels), kind, **options)), pixels)


def test_avif_is_read() -> None:
    assert features.check("avif")
    photo = shown(file_of(Image.new("RGB", (32, 32), RED), "AVIF"))
    assert np.abs(photo.astype(int) - RED).max() < 8


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bits_are_scaled_so_that_white_stays_white(kind: str) -> None:
    levels = np.array([[0, 257, 128 * 257, 65535]], np.uint16)
    photo = shown(file_of(Image.fromarray(levels), kind))
    assert photo[0].tolist() == [[v] * 3 for v in (0, 1, 128, 255)]


def test_big_endian_16_bits_keep_their_levels() -> None:
    content = file_of(Image.new("I;16B", (2, 2), 257 * 200), "TIFF")
    assert (shown(content) == 200).all()


@pytest.mark.parametrize(
    ("mode", "color", "kind", "expected"),
    [
        ("L", 7, "PNG", (7, 7, 7)),
        ("1", 1, "PNG", (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), "TIFF", RED),
    ],
)
def test_every_kind_of_color_becomes_rgb(
    mode: str, color: Any, kind: str, expected: tuple[int, ...]
) -> None:
    assert shown(file_of(Image.new(mode, (2, 2), color), kind))[1, 1].tolist() == [*expected]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_are_mixed_with_white_by_their_opacity(mode: str) -> None:
    image = Image.new(mode, (3, 1))
    for x, alpha in enumerate((0, 128, 255)):
        image.putpixel((x, 0), (*RED, alpha) if mode == "RGBA" else (76, alpha))
    clear, half, full = shown(file_of(image, "PNG"))[0].tolist()
    assert clear == [255, 255, 255]
    assert full == ([*RED] if mode == "RGBA" else [76, 76, 76])
    assert half == [round((255 * 127 + c * 128) / 255) for c in full]


def test_a_transparent_color_of_a_palette_is_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 255, 0, *RED])
    image.putpixel((1, 0), 1)
    assert shown(file_of(image, "PNG", transparency=0)).tolist() == [[[255, 255, 255], [*RED]]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_the_exif_orientation_is_applied(kind: str) -> None:
    image = Image.new("RGB", (2, 1), RED)
    image.putpixel((1, 0), GREEN)
    options = {"lossless": True} if kind == "WEBP" else {}
    right = turned(6)  # the top is there
    assert shown(file_of(image, kind, exif=right, **options)).tolist() == [[[*RED]], [[*GREEN]]]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_of_several_images_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in (RED, GREEN)]
    options = {"lossless": True} if kind == "WEBP" else {}
    content = file_of(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (shown(content) == RED).all()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "AVIF", "TIFF", "BMP", "PPM"])
def test_a_file_that_is_cut_off_is_damaged(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content = file_of(Image.fromarray(noise), kind)
    assert damage_of(content[: len(content) * 2 // 3])


def webp_bomb() -> bytes:
    """34 bytes that claim 16383 x 16383 pixels."""
    bits = (16383 - 1) | (16383 - 1) << 14
    chunk = b"VP8L" + struct.pack("<I", 13) + b"\x2f" + struct.pack("<I", bits) + bytes(9)
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def png_bomb() -> bytes:
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99)))


def tiff_bomb() -> bytes:
    """A million tiles of 16 x 16 pixels, all at one place."""
    side, tiles = 16 * 1000, 1000 * 1000
    tags = [
        *((256, 4, 1, side), (257, 4, 1, side), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)),
        *((277, 3, 1, 1), (322, 3, 1, 16), (323, 3, 1, 16), (324, 4, tiles, 512)),
        (325, 4, tiles, 512),
    ]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    start = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    return start + bytes(512 - len(start)) + struct.pack("<I", 512) * tiles


@pytest.mark.parametrize(
    "content", [webp_bomb, png_bomb, tiff_bomb], ids=lambda make: make.__name__
)
def test_too_many_pixels_are_refused_before_they_take_memory(content: Any) -> None:
    file = content()
    damage_of(file_of(Image.new("RGB", (1, 1)), "TIFF"))
    tracemalloc.start()
    damage = damage_of(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "pixels" in damage or "1000000 strips or tiles" in damage
    assert most < 5_000_000 + 3 * len(file)


def test_other_formats_are_refused() -> None:
    for content in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>"):
        assert damage_of(content) == f"not an image in one of the formats {', '.join(FORMATS)}"
    assert damage_of(b"") == "empty file"
