"""Pillow's photos: sizes from headers, one photo at a time, PNGs as far as the crop reaches."""

import io
import multiprocessing
import resource
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin
from torch import Tensor
from torchvision.transforms.v2 import functional

from entry_point.config.data_config import DataConfig
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.decode import OperatorDecoder, upright_sizes
from entry_point.data.decode.pillow import PillowDecoder, read_photo
from entry_point.data.plan.crops import CropPlan, CropPlanner
from entry_point.data.plan.samples import Samples
from entry_point.data.sources.source import Encoded
from tests.entry_point.data.decode.image_files import chunk, file_of, shown, tensor, turned

MODES_OF_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
MODES = {
    "PNG": MODES_OF_PNG,
    "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "AVIF": ("RGB", "RGBA"),
    "JPEG": ("L", "RGB", "CMYK"),
    "GIF": ("1", "L", "P", "RGB"),
    "BMP": ("1", "L", "P", "RGB"),
    "PPM": ("1", "L", "RGB"),
}


def noise(mode: str, height: int, width: int) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 4), dtype=np.uint8)
    if mode == "I;16":
        return Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    return Image.fromarray(values).convert(mode)


def decoded(files: list[bytes], seed: int = 0, views: int = 1) -> tuple[Tensor, dict[int, str]]:
    """Random crops of them."""
    planner = CropPlanner(DataConfig(image_size=32, resize=36, views=views), True, seed)
    encoded, decoder = Encoded([tensor(file) for file in files]), PillowDecoder()
    count = np.arange(len(files))
    plan = planner.plan(Samples.of(0, count, 0 * count, views), *decoder.sizes(encoded))
    return decoder.decode(encoded, plan, reused_memory)


def cut(
    file: bytes, box: tuple[int, int, int, int], side: int = 16, flip: bool = False
) -> tuple[Tensor, dict[int, str]]:
    plan = CropPlan(side, np.array([box]), np.array([flip]), None)
    return PillowDecoder().decode(Encoded([tensor(file)]), plan, reused_memory)


@given(
    st.sampled_from([(kind, mode) for kind, modes in MODES.items() for mode in modes]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_the_size_by_the_header_is_that_of_the_upright_image(
    form: tuple[str, str], height: int, width: int, orientation: int
) -> None:
    kind, mode = form
    file = file_of(noise(mode, height, width), kind, exif=turned(orientation))
    heights, widths = PillowDecoder().sizes(Encoded([tensor(file)]))
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    assert read_photo(tensor(file)).size == shown.size == (widths[0], heights[0])


@given(st.data(), st.integers(1, 24), st.booleans())
def test_a_sample_is_what_torchvision_crops_resizes_and_flips(
    draw: st.DataObject, side: int, flip: bool
) -> None:
    photo = noise("RGB", 30, 40)
    top, left = draw.draw(st.integers(0, 29)), draw.draw(st.integers(0, 39))
    box = top, left, draw.draw(st.integers(1, 30 - top)), draw.draw(st.integers(1, 40 - left))
    expected = functional.resized_crop(photo, *box, [side, side])
    expected = functional.hflip(expected) if flip else expected
    (sample,), _ = cut(file_of(photo, "PNG"), box, side, flip)
    assert torch.equal(sample, functional.pil_to_tensor(expected))


def late(orientation: int) -> dict[str, bytes]:
    """Chunks after a PNG's pixels that turn it; in a text, as ImageMagick writes it."""
    exif = turned(orientation).tobytes()
    text = f"\nexif\n{len(exif):8d}\n{exif.hex()}\n".encode()
    xmp = f'<x tiff:Orientation="{orientation}"/>'.encode()
    return {
        "eXIf": chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")),
        "tEXt": chunk(b"tEXt", b"Raw profile type exif\0" + text),
        "zTXt": chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text)),
        "iTXt": chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp),
    }


@pytest.mark.parametrize("name", ["eXIf", "tEXt", "zTXt", "iTXt"])
@pytest.mark.parametrize("before", [{}, {"exif": turned(8)}], ids=["alone", "after another"])
def test_a_png_is_turned_by_what_follows_its_pixels(name: str, before: dict[str, Any]) -> None:
    content = file_of(noise("RGB", 5, 7), "PNG", **before)
    content = content[:-12] + late(6)[name] + content[-12:]
    loaded = Image.open(io.BytesIO(content))
    loaded.load()
    expected = np.asarray(ImageOps.exif_transpose(loaded))
    heights, widths = PillowDecoder().sizes(Encoded([tensor(content)]))
    assert np.array_equal(shown(content), expected)
    assert (heights[0], widths[0]) == expected.shape[:2] == (7, 5)


@pytest.mark.parametrize(
    ("kind", "count", "value", "upright"),
    [
        (3, 1, b"\6\0\0\0", (40, 24)),
        (3, 1, b"\0\0\0\0", (24, 40)),
        (3, 1, b"\x09\0\0\0", (24, 40)),
        (2, 3, b"up\0\0", (24, 40)),
        (4, 1, b"\0\0\1\0", (24, 40)),
    ],
    ids=["6", "0", "9", "a text", "65536"],
)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_an_invalid_orientation_counts_as_upright_and_other_invalid_exif_not(
    form: str, kind: int, count: int, value: bytes, upright: tuple[int, int]
) -> None:
    """A numeric tag holds text: Pillow reads such EXIF but fails to write it."""
    orientation, rows_per_strip = 0x112, 0x117
    entries = struct.pack("<HHI4s", orientation, kind, count, value)
    entries += struct.pack("<HHI4s", rows_per_strip, 2, 4, b"odd")
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + entries + bytes(4)
    content = file_of(noise("RGB", 24, 40), form, exif=exif)
    assert shown(content).shape[:2] == upright
    heights, widths = upright_sizes(Encoded([tensor(content)]))
    assert (heights[0], widths[0]) == upright


def interlaced(pixels: np.ndarray[Any, Any]) -> bytes:
    """A PNG of RGB pixels, in the seven passes of Adam7."""
    height, width, _ = pixels.shape
    steps = [
        *((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4)),
        *((2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)),
    ]
    rows = b"".join(
        b"\0" + row.tobytes() for y, x, down, across in steps for row in pixels[y::down, x::across]
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def animated(mode: str) -> bytes:
    frames = [noise(mode, 60, 80), noise(mode, 60, 80).transpose(Image.Transpose.ROTATE_180)]
    return file_of(frames[0], "PNG", save_all=True, append_images=frames[1:], loop=0)


def png(mode: str, **options: Any) -> bytes:
    return file_of(noise(mode, 60, 80), "PNG", **options)


PNGS: dict[str, Callable[[], bytes]] = {
    **{mode: partial(png, mode) for mode in MODES_OF_PNG},
    **{f"orientation {turn}": partial(png, "RGB", exif=turned(turn)) for turn in (2, 3, 6)},
    "transparent": partial(png, "P", transparency=3),
    "interlaced": lambda: interlaced(np.asarray(noise("RGB", 60, 80))),
    "animated": lambda: animated("RGB"),
    "animated with alpha": lambda: animated("RGBA"),
}


@pytest.mark.parametrize("kind", PNGS)
def test_the_crops_of_a_png_are_those_of_the_whole_image(kind: str) -> None:
    file = PNGS[kind]()
    whole = file_of(read_photo(tensor(file)), "BMP")
    for seed in range(20):
        (found, damage), (expected, _) = (decoded([each], seed, 2) for each in (file, whole))
        assert not damage and torch.equal(found, expected)


def test_a_png_is_damaged_where_it_ends_before_the_crop_does() -> None:
    file = file_of(noise("RGB", 100, 100), "PNG")
    half = file[: len(file) // 2]
    upper, damage = cut(half, (10, 10, 30, 80))
    assert not damage and torch.equal(upper, cut(file, (10, 10, 30, 80))[0])
    assert cut(half, (10, 10, 80, 80))[1]


def _decode_large(files: list[bytes], peaks: Path) -> None:
    decoded(files[:2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not decoded(files)[1]
    peaks.write_text(str((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))


def test_a_batch_takes_the_memory_of_one_photo(tmp_path: Path) -> None:
    """Whole photos of a batch would be 256 MB here, and gigabytes of scans."""
    file = file_of(Image.new("RGB", (2000, 2000), "red"), "PNG")
    process = multiprocessing.get_context("forkserver").Process(
        target=_decode_large, args=([file] * 16, tmp_path / "peak")
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert float((tmp_path / "peak").read_text()) < 64


@pytest.mark.parametrize(
    ("form", "is_turned"),
    [("PNG", True), ("WEBP", True), ("AVIF", True), ("TIFF", False), ("JPEG", False)],
)
def test_an_orientation_in_xmp_alone_counts_where_the_documents_say(
    form: str, is_turned: bool
) -> None:
    xmp = b'<x xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    given: dict[str, Any] = {"xmp": xmp}
    if form == "PNG":
        given = {"pnginfo": (text := PngImagePlugin.PngInfo())}
        text.add_itxt("XML:com.adobe.xmp", xmp.decode())
    elif form == "TIFF":
        given = {"tiffinfo": (directory := TiffImagePlugin.ImageFileDirectory_v2())}
        directory.tagtype[700] = 1
        directory[700] = xmp
    content = file_of(Image.new("RGB", (40, 24)), form, **given)
    assert ImageOps.exif_transpose(Image.open(io.BytesIO(content))).size == (24, 40)
    upright = (40, 24) if is_turned else (24, 40)
    assert shown(content).shape[:2] == upright
    for decoder in (PillowDecoder(), OperatorDecoder()):
        heights, widths = decoder.sizes(Encoded([tensor(content)]))
        assert (heights[0], widths[0]) == upright
