"""Image files in memory, for the tests."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import torch
from PIL import Image

from entry_point.data.decode.pillow import read_photo


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def tensor(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8))


def shown(content: bytes) -> np.ndarray[Any, Any]:
    """The pixels that training sees."""
    return np.asarray(read_photo(tensor(content)))


def chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    """A part of a PNG."""
    crc = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)
