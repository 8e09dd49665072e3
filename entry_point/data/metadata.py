"""Takes metadata out of image files before Pillow reads them, and finds the orientation.

Metadata changes no pixel, but Pillow refuses images for it (a PNG whose ICC profile or text has
more than 1 MiB, a TIFF whose resolution is a text) and reads it in Python: 25 MB of empty blocks
take it minutes or a gigabyte. So Pillow gets the blocks that its decoders need. Here is decided how
much a file may hold before its first pixel; `kMaxSegments` in custom_op/csrc is the same for JPEGs.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image


class UnusableImageError(ValueError):
    """An image that cannot be decoded, or that a rule refuses; the message says why."""


class TooManyPixelsError(UnusableImageError):
    """An image that would take too much memory."""


MOST_BLOCKS = 100_000
"""Chunks, segments, strips and the like of a file. Photos have some dozens, and as many strips or
chunks of pixels as rows."""
_BYTES_PER_BLOCK = 1024
"""A PNG may have one chunk more for each: encoders write 8 kB."""
_MOST_TEXT = 1 << 24
"""Bytes of a compressed text in which the orientation is looked for."""


@dataclass
class Stripped:
    """An image file without metadata."""

    content: bytes | bytearray | memoryview
    exif: bytes = b""
    xmp: bytes = b""
    frames: int = 1
    """That a PNG announces; only the first is in `content`."""


def strip(content: bytes | bytearray | memoryview) -> Stripped:
    """Other formats stay as they are: WebP and AVIF, whose libraries skip metadata, and BMP.

    Raises UnusableImageError for a file with too many blocks, or a form of PPM that is not read.
    """
    view = memoryview(content)
    start = bytes(view[:8])
    for magic, stripped in _FORMATS.items():
        if start.startswith(magic):
            return stripped(view)
    return Stripped(content)


def orientation(image: Image.Image) -> int:
    """EXIF, 1 to 8; 1 if there is none, or it is invalid.

    As Pillow's `getexif`, which fails on malformed EXIF: without it, XMP counts.
    """
    found = exif_orientation(image.info.get("exif", b""))
    if found is None:
        xmp = re.search(rb'tiff:Orientation(?:="|>)([0-9])', image.info.get("xmp", b""))
        found = int(xmp[1]) if xmp else 1
    return found if 1 <= found <= 8 else 1


def exif_orientation(exif: bytes) -> int | None:
    """Returns what EXIF says in a SHORT or a LONG, by the rules of
    custom_op/csrc/jpeg/header.cpp."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    with suppress(struct.error):  # it ends too early
        if order is None:
            return None
        (start,) = struct.unpack_from(f"{order}4xI", tiff)
        (entries,) = struct.unpack_from(f"{order}H", tiff, start)
        for at in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, at)
            if tag == 0x0112:
                value = {3: "H", 4: "I"}.get(kind)
                return struct.unpack_from(f"{order}8x{value}", tiff, at)[0] if value else 1
    return None


def _refuse_blocks(count: int, most: int = MOST_BLOCKS) -> None:
    if count > most:
        raise UnusableImageError(f"has more than {most} blocks of metadata or pixels")


# PNG

_CHUNKS_OF_PIXELS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_EXIF_AS_TEXT, _XMP = b"Raw profile type exif\0", b"XML:com.adobe.xmp\0"


def _strip_png(content: memoryview) -> Stripped:
    """Of an animated PNG, the first frame is left: the one that other readers show."""
    kept, texts, most = [content[:8]], dict[bytes, bytes](), len(content) // _BYTES_PER_BLOCK
    stripped, at, kind, count = Stripped(b""), 8, b"", 0
    while at + 8 <= len(content) and kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", content, at)
        data, end = content[at + 8 : at + 8 + length], at + 12 + length
        if kind in _CHUNKS_OF_PIXELS:
            kept.append(content[at:end])
        elif kind == b"eXIf":
            stripped.exif = bytes(data)
        elif kind == b"acTL" and len(data) >= 4:
            (stripped.frames,) = struct.unpack_from(">I", data)
        elif kind in (b"tEXt", b"zTXt", b"iTXt"):
            keyword = bytes(data[:22])
            for name in (_EXIF_AS_TEXT, _XMP):
                if keyword.startswith(name):
                    texts[name] = kind + bytes(data[len(name) :])
        at, count = end, count + 1
        _refuse_blocks(count, MOST_BLOCKS + most)
    stripped.content = b"".join(kept)
    if not stripped.exif and _EXIF_AS_TEXT in texts:  # as ImageMagick writes it: in hexadecimal
        with suppress(ValueError):
            lines = _text(texts[_EXIF_AS_TEXT]).decode("latin-1").split("\n")
            stripped.exif = bytes.fromhex("".join(lines[3:]))
    stripped.xmp = _text(texts.get(_XMP, b""))
    return stripped


def _text(chunk: bytes) -> bytes:
    """Returns the text of a chunk: its kind, and what follows its keyword. Empty if it is
    damaged."""
    kind, text, is_compressed = chunk[:4], chunk[4:], chunk[:4] == b"zTXt"
    if kind == b"iTXt":  # two flags, the language and the keyword in it
        is_compressed, text = text[:1] == b"\1", text[1:].split(b"\0", 3)[-1]
    if not is_compressed:
        return text
    with suppress(zlib.error):
        compressed = text if kind == b"iTXt" else text[1:]
        return zlib.decompressobj().decompress(compressed, _MOST_TEXT)
    return b""


# JPEG

_MARKER = re.compile(rb"\xff[\x01-\xfe]")
"""The next marker, by libjpeg's rule: FF may be repeated; FF 00 and other bytes are skipped."""
_WITHOUT_PAYLOAD = {*range(0xD0, 0xDA), *range(0xF0, 0xFE), 0x01, 0xC8}
_SOS, _APP0, _APP1, _APP14, _APP15, _COM = 0xDA, 0xE0, 0xE1, 0xEE, 0xEF, 0xFE
_SAYS_COLORS = {_APP0: (b"JFIF\0", 14), _APP14: (b"Adobe", 12)}
"""What begins the segments by which libjpeg chooses the colors, and how long these are at least."""


def _strip_jpeg(content: memoryview) -> Stripped:
    kept, stripped, at = [content[:2]], Stripped(b""), 2
    for _ in range(MOST_BLOCKS):
        if (found := _MARKER.search(content, at)) is None or found.end() + 2 > len(content):
            raise UnusableImageError("ends within its header")
        marker, at = content[found.end() - 1], found.end()
        if marker == _SOS:
            kept.append(content[at - 2 :])
            stripped.content = b"".join(kept)
            return stripped
        if marker in _WITHOUT_PAYLOAD:
            kept.append(content[at - 2 : at])
            continue
        (size,) = struct.unpack_from(">H", content, at)
        data = bytes(content[at + 2 : at + size])
        if marker == _APP1 and data.startswith(b"Exif\0\0"):
            stripped.exif = stripped.exif or data
        magic, least = _SAYS_COLORS.get(marker, (b"", 0))
        is_metadata = _APP0 <= marker <= _APP15 or marker == _COM
        if not is_metadata or (least and data.startswith(magic) and len(data) >= least):
            kept.append(content[at - 2 : at + size])
        at += max(2, size)
    raise UnusableImageError(f"has more than {MOST_BLOCKS} blocks of metadata or pixels")


# TIFF

_BIG_TIFF = 43
_PARTS_OF_TIFF = (273, 279, 324, 325)
"""The tags that list the strips or tiles, and their sizes."""
_TAGS_OF_PIXELS = {
    *(256, 257, 258, 259, 262, 266, 274, 277, 278, 284, 292, 293, 317, 320, 322, 323, 332, 338),
    *(339, 347, 512, 513, 514, 515, 517, 518, 519, 520, 521, 529, 530, 531, 532),
    *_PARTS_OF_TIFF,
}
"""All baseline tags about the form of pixels, those of compressions, and the orientation."""
_MOST_TAGS, _MOST_VALUES = 4096, 4096


def _strip_tiff(content: memoryview) -> Stripped:
    """With a new directory at the end, which has only the tags of pixels."""
    with suppress(struct.error):  # too short: Pillow says so
        order = "<" if content[:1] == b"I" else ">"
        is_big = struct.unpack_from(f"{order}H", content, 2)[0] == _BIG_TIFF
        at, place, number, entry = (8, "Q", "Q", "HHQ8x") if is_big else (4, "I", "H", "HHI4x")
        (start,) = struct.unpack_from(order + place, content, at)
        (entries,) = struct.unpack_from(order + number, content, start)
        first = start + struct.calcsize(order + number)
        size = struct.calcsize(order + entry)
        kept = dict[int, bytes]()
        for i in range(min(entries, _MOST_TAGS)):
            here = first + i * size
            tag, _, count = struct.unpack_from(order + entry, content, here)
            if tag not in _TAGS_OF_PIXELS or tag in kept:
                continue
            if tag in _PARTS_OF_TIFF and count > MOST_BLOCKS:
                reason = f"a TIFF of {count} strips or tiles: more than {MOST_BLOCKS}"
                raise TooManyPixelsError(reason)
            if tag not in _PARTS_OF_TIFF and count > _MOST_VALUES:
                raise UnusableImageError(f"a TIFF whose tag {tag} has {count} values")
            kept[tag] = bytes(content[here : here + size])
        (following,) = struct.unpack_from(order + place, content, first + entries * size)
        padding = bytes(len(content) % 2)
        header = bytes(content[:at]) + struct.pack(order + place, len(content) + len(padding))
        directory = struct.pack(order + number, len(kept)) + b"".join(kept.values())
        end = struct.pack(order + place, following)
        rest: Any = content[len(header) :]
        return Stripped(b"".join((header, rest, padding, directory, end)))
    return Stripped(content)


# GIF

_GRAPHIC_CONTROL = 0xF9


def _strip_gif(content: memoryview) -> Stripped:
    """Before its first image, only the transparent color is left."""
    with suppress(IndexError):  # it ends before an image: Pillow says so
        at = start = 13 + (3 << (content[10] & 7) + 1 if content[10] & 0x80 else 0)
        control, blocks = b"", 0
        while content[at] not in b",;":
            here, blocks = at, blocks + 1
            at += 1
            if content[here] == ord("!"):
                at += 1
                while size := content[at]:
                    at, blocks = at + 1 + size, blocks + 1
                    _refuse_blocks(blocks)
                at += 1
                if content[here + 1] == _GRAPHIC_CONTROL and content[here + 2] == 4:
                    control = bytes(content[here:at])
            _refuse_blocks(blocks)
        return Stripped(b"".join((content[:start], control, content[at:])))
    return Stripped(content)


# PPM

_LONGEST_HEADER = 1 << 16
_SPACE, _NUMBER = rb"(?:[ \t-\r]|#[^\r\n]*[\r\n])+", rb"(-?[0-9.]{1,10})"
_SIZE = _SPACE + _NUMBER + _SPACE + _NUMBER
_HEADERS_OF_PPM = re.compile(
    rb"P(?:([14])%b|([2356f])%b%b%b)[ \t-\r]" % (_SIZE, _SIZE, _SPACE, _NUMBER)
)


def _strip_ppm(content: memoryview) -> Stripped:
    """Without comments, and with values that fill 8 or 16 bits, which Pillow reads at once.

    Values are scaled as Pillow does, which takes a microsecond for each.
    """
    header = _HEADERS_OF_PPM.match(bytes(content[:_LONGEST_HEADER]))
    if header is None:
        raise UnusableImageError("not a PPM with a header of at most 64 kB")
    kind, *numbers = [each for each in header.groups() if each is not None]
    if kind in b"123":
        message = "convert it to PNG, or to binary PPM (P4 to P6)"
        raise UnusableImageError(f"plain PPM (P{kind.decode()}), whose pixels are text: {message}")
    pixels: Any = content[header.end() :]
    if kind in b"56" and numbers[2] not in (b"255", b"65535" if kind == b"5" else b"255"):
        width, height, most = map(int, numbers)
        numbers[2], pixels = _scaled(kind, width, height, most, pixels)
    start = b"P%b %b\n" % (kind, b" ".join(numbers))
    return Stripped(b"".join((start, pixels)))


def _scaled(
    kind: bytes, width: int, height: int, most: int, pixels: memoryview
) -> tuple[bytes, bytes]:
    """Returns the new largest value, and the values as bytes."""
    if not 0 < most < 65536:
        raise UnusableImageError(f"a PPM whose largest value is {most}: must be from 1 to 65535")
    wide = most > 255
    out, dtype = (65535, ">u2") if wide and kind == b"5" else (255, "u1")
    table = np.rint(np.arange(65536) / most * out).clip(max=out).astype(dtype)
    count = min(width * height * (1 if kind == b"5" else 3), len(pixels) // (1 + wide))
    values = np.frombuffer(pixels, ">u2" if wide else "u1", max(0, count))
    # By parts: indexing makes 8 bytes of each value.
    parts = np.array_split(values, len(values) // 2**20 + 1)
    return str(out).encode(), b"".join(table[part].tobytes() for part in parts)


_FORMATS: dict[bytes, Callable[[memoryview], Stripped]] = {
    b"\x89PNG\r\n\x1a\n": _strip_png,
    b"\xff\xd8\xff": _strip_jpeg,
    b"II": _strip_tiff,
    b"MM": _strip_tiff,
    b"GIF8": _strip_gif,
    **{b"P" + kind: _strip_ppm for kind in (b"1", b"2", b"3", b"4", b"5", b"6", b"f")},
}
