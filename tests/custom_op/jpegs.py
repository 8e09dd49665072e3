"""JPEGs of every kind that the operator reads, made from a photograph."""

import ctypes
import io
import random
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from skimage import data as photographs
from torch import Tensor

import custom_op
from custom_op.toolchain import find_toolchain

Pixels = NDArray[np.uint8]

SAMPLINGS = {
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
    "uneven": ((2, 2), (2, 1), (1, 2)),
    "grey": ((1, 1),),
    "grey, factors 2x2": ((2, 2),),
}
"""Horizontal and vertical sampling factors of each component."""

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "optimised": {"optimise": True},
    "restart 1": {"restart_interval": 1},
    "restart 3": {"restart_interval": 3},
    "restart 1000": {"restart_interval": 1000},
    "progressive": {"progressive": True},
    "progressive, restart 2": {"progressive": True, "restart_interval": 2},
    "separate scans": {"separate_scans": True},
    "arithmetic": {"arithmetic": True},
}
"""Settings of `encode` for each kind of coding."""


class _Settings(ctypes.Structure):
    """Those of encoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("height", "width", "components", "quality")),
        ("horizontal", ctypes.c_int * 4),
        ("vertical", ctypes.c_int * 4),
        *((name, ctypes.c_int) for name in ("restart_interval", "progressive", "arithmetic")),
        *((name, ctypes.c_int) for name in ("optimise", "separate_scans", "adobe", "wide_tables")),
    )


@cache
def _encoder() -> ctypes.CDLL:
    toolchain = find_toolchain()
    source = str(Path(__file__).with_name("encoder.cpp"))
    flags = [flag for flag in toolchain.compile_flags if not flag.startswith("-fvisibility")]
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/encoder.so"
        subprocess.run(
            [toolchain.compiler, *flags, "-shared", source, "-o", library, *toolchain.link_flags],
            check=True,
        )
        functions = ctypes.CDLL(library)
    functions.encode.restype = ctypes.POINTER(ctypes.c_ubyte)
    return functions


@cache
def photograph() -> Pixels:
    """A cat, (300, 451, 3), with detail at all scales. Tests must not change it."""
    return photographs.chelsea()


def picture(height: int, width: int, seed: int = 0) -> Pixels:
    """The photograph, tiled to (height, width, 3), with noise so that no coefficient stays zero."""
    source = photograph()
    repeats = (-(-height // source.shape[0]), -(-width // source.shape[1]), 1)
    pixels = np.tile(source, repeats)[:height, :width].astype(np.int16)
    noise = np.random.default_rng(seed).integers(-12, 13, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


def encode(
    pixels: Pixels,
    sampling: str = "4:2:0",
    quality: int = 85,
    *,
    factors: tuple[tuple[int, int], ...] | None = None,
    **kind: int,
) -> bytes:
    """Encodes (height, width, 3) as color or grayscale, (height, width, 4) as CMYK."""
    factors = factors or SAMPLINGS[sampling]
    if len(factors) == 1 and pixels.ndim == 3:
        pixels = pixels[:, :, 1]
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        factors = (*factors[:3], factors[0])
    height, width = pixels.shape[:2]
    settings = _Settings(
        height=height, width=width, components=len(factors), quality=quality, **kind
    )
    settings.horizontal[: len(factors)] = [horizontal for horizontal, _ in factors]
    settings.vertical[: len(factors)] = [vertical for _, vertical in factors]
    size = ctypes.c_ulong()
    functions = _encoder()
    contiguous = np.ascontiguousarray(pixels)
    data = functions.encode(
        ctypes.byref(settings), contiguous.ctypes.data_as(ctypes.c_char_p), ctypes.byref(size)
    )
    if not data:
        raise ValueError(f"libjpeg refuses sampling={sampling}, {kind}")
    try:
        return ctypes.string_at(data, size.value)
    finally:
        functions.release(data)


def tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def with_exif_orientation(
    data: bytes, orientation: int, *, big_endian: bool = False, long: bool = False
) -> bytes:
    """Inserts an EXIF segment before all others, with a thumbnail after the orientation.

    The orientation is a SHORT or, against the standard, a LONG.
    """
    order = "big" if big_endian else "little"

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, order)  # type: ignore[arg-type]

    tiff = (b"MM\0*" if big_endian else b"II*\0") + number(8, 4) + number(1, 2)
    kind, size = (4, 4) if long else (3, 2)
    tiff += number(0x0112, 2) + number(kind, 2) + number(1, 4) + number(orientation, size)
    tiff += bytes(4 - size) + number(0, 4)
    payload = b"Exif\0\0" + tiff + encode(picture(8, 8))
    segment = b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload
    return data[:2] + segment + data[2:]


def markers(data: bytes) -> list[tuple[int, int]]:
    """`(marker, offset)` of every marker, including those in entropy-coded data."""
    found, at = [(data[1], 0)], 2
    while at + 4 <= len(data):
        if data[at] != 0xFF or data[at + 1] in (0, 0xFF):
            at += 1
            continue
        found.append((data[at + 1], at))
        lone = 0xD0 <= data[at + 1] <= 0xD9
        at += 2 if lone else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return found


def offset(data: bytes, wanted: int) -> int:
    """Of the first marker of a kind."""
    return next(at for marker, at in markers(data) if marker == wanted)


def decoded(data: Tensor) -> Tensor:
    """The whole image, uint8 (3, height, width), from an independent decoder: Pillow's."""
    with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def whole(data: Tensor) -> Tensor:
    """The same from the operator."""
    return custom_op.decode_and_crop_jpeg(data, 0, 0, *custom_op.jpeg_size(data))


def random_box(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height, width; small boxes and boxes at the edges of the image are frequent."""
    crop_height = rng.randint(1, rng.choice((min(4, height), height)))
    crop_width = rng.randint(1, rng.choice((min(4, width), width)))
    top = rng.choice((0, height - crop_height, rng.randint(0, height - crop_height)))
    left = rng.choice((0, width - crop_width, rng.randint(0, width - crop_width)))
    return top, left, crop_height, crop_width


def assert_crops_equal(
    data: Tensor, expected: Tensor, rng: random.Random, count: int, index: Tensor | None = None
) -> None:
    """Random crops of a file are those of the whole image."""
    for _ in range(count):
        top, left, height, width = box = random_box(rng, *expected.shape[1:])
        crop = custom_op.decode_and_crop_jpeg(data, *box, index=index)
        assert torch.equal(crop, expected[:, top : top + height, left : left + width]), box


def random_picture(rng: random.Random) -> Pixels:
    """A photograph, or black and white noise, which overflows the range of samples most.

    Mostly small; some are only a few pixels, or up to 4096 pixels, wide or high.
    """
    height, width = rng.randint(1, 120), rng.randint(1, 160)
    kind = rng.randrange(50)
    if kind < 8:
        height, width = rng.randint(1, 18), rng.randint(1, 18)
    elif kind == 8:
        width = rng.randint(161, 4096)
    elif kind == 9:
        height = rng.randint(121, 4096)
    seed = rng.randrange(1 << 30)
    if rng.randrange(5):
        return picture(height, width, seed)
    levels = np.random.default_rng(seed).integers(0, 2, (height, width, 3), dtype=np.uint8)
    return 255 * levels
