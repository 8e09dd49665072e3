"""JPEGs of every kind that the operator reads, made from a photograph."""

from __future__ import annotations

import ctypes
import io
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from skimage import data as photographs
from torch import Tensor

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
    _fields_ = (
        ("height", ctypes.c_int),
        ("width", ctypes.c_int),
        ("components", ctypes.c_int),
        ("quality", ctypes.c_int),
        ("horizontal", ctypes.c_int * 4),
        ("vertical", ctypes.c_int * 4),
        ("restart_interval", ctypes.c_int),
        ("progressive", ctypes.c_int),
        ("arithmetic", ctypes.c_int),
        ("optimise", ctypes.c_int),
        ("separate_scans", ctypes.c_int),
        ("adobe", ctypes.c_int),
        ("wide_tables", ctypes.c_int),
    )


@dataclass
class _Encoder:
    """The compiled encoder and its temporary folder."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)

    def __post_init__(self) -> None:
        toolchain = find_toolchain()
        library = f"{self.folder.name}/encoder.so"
        source = str(Path(__file__).with_name("encoder.cpp"))
        flags = [flag for flag in toolchain.compile_flags if not flag.startswith("-fvisibility")]
        subprocess.run(
            [toolchain.compiler, *flags, "-shared", source, "-o", library, *toolchain.link_flags],
            check=True,
        )
        self.functions = ctypes.CDLL(library)
        self.functions.encode.restype = ctypes.POINTER(ctypes.c_ubyte)


@cache
def _encoder() -> _Encoder:
    return _Encoder()


def photograph() -> Pixels:
    """A cat, (300, 451, 3), with detail at all scales."""
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
    functions = _encoder().functions
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


def decoded(data: Tensor) -> Tensor:
    """The whole image, uint8 (3, height, width), from an independent decoder: Pillow's."""
    with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
