"""Keeps metadata of image files from Pillow, bounds what it may read, and finds the orientation.

Metadata changes no pixel, but Pillow refuses images for it (a PNG whose ICC profile has more than
1 MiB, a TIFF whose resolution is a text) and reads it in Python: 25 MB of it take many seconds. So
Pillow sees only what describes pixels in a PNG or a TIFF, and reads the header of any file in a
bounded number of steps. `kMaxSegments` in custom_op/csrc is the bound of the operator.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass

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


class BoundedFile(io.BytesIO):
    """An image file; reads end once a parser has read too many blocks: each in up to three."""

    left: float = MOST_BLOCKS
    """Reads that are left. Once the header has been read, it may be infinite."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Raises UnusableImageError."""
        self.left -= 1
        _refuse_blocks(self.left < 0)
        return super().read(size)


@dataclass
class Stripped:
    """An image file without metadata."""

    content: bytes | bytearray | memoryview
    exif: bytes = b""
    xmp: bytes = b""
    frames: int = 1
    """That a PNG announces; only the first is in `content`."""


def strip(content: bytes | bytearray | memoryview) -> Stripped:
    """Other formats than PNG and TIFF stay as they are.

    Raises UnusableImageError for a file with too many blocks.
    """
    view = memoryview(content)
    if view[:8] == _PNG:
        return _strip_png(view)
    return Stripped(_without_tags(view) if view[:2] in (b"II", b"MM") else content)


def orientation(image: Image.Image) -> int:
    """EXIF, 1 to 8; 1 if there is none, or it is invalid.

    As Pillow's `getexif`, which fails on malformed EXIF. Without it, XMP counts, but not that of a
    JPEG, which the operator does not read.
    """
    found = _exif_orientation(image.info.get("exif", b""))
    if found is None:
        text = b"" if image.format in ("JPEG", "MPO") else image.info.get("xmp", b"")
        xmp = re.search(rb'tiff:Orientation(?:="|>)([0-9])', text)
        found = int(xmp[1]) if xmp else 1
    return found if 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
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


def _refuse_blocks(too_many: bool) -> None:
    if too_many:
        raise UnusableImageError(f"has more than {MOST_BLOCKS} blocks of metadata or pixels")


# PNG

_PNG = b"\x89PNG\r\n\x1a\n"
_CHUNKS_OF_PIXELS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_EXIF_AS_TEXT, _XMP = b"Raw profile type exif\0", b"XML:com.adobe.xmp\0"


def _strip_png(content: memoryview) -> Stripped:
    """Drops all frames of an animated PNG but the first, which other readers show."""
    most = MOST_BLOCKS + len(content) // _BYTES_PER_BLOCK
    kept, texts, stripped = [content[:8]], dict[bytes, bytes](), Stripped(b"")
    at, kind, count = 8, b"", 0
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
        _refuse_blocks(count > most)
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


# TIFF

_BIG_TIFF = 43
_TAGS_OF_PIXELS = {
    *(256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 284, 292, 293, 317, 320, 322, 323),
    *(324, 325, 332, 338, 339, 347, 512, 513, 514, 515, 517, 518, 519, 520, 521, 529, 530, 531),
    532,
}
"""All baseline tags about the form of pixels, those of compressions, and the orientation."""


def _without_tags(content: memoryview) -> bytearray:
    """Give all tags but those of pixels a type that readers skip."""
    stripped, values = bytearray(content), 0
    with suppress(struct.error):  # too short: Pillow says so
        order = "<" if content[:1] == b"I" else ">"
        is_big = struct.unpack_from(f"{order}H", content, 2)[0] == _BIG_TIFF
        at, place, number, entry = (8, "Q", "Q", "HHQ8x") if is_big else (4, "I", "H", "HHI4x")
        (start,) = struct.unpack_from(order + place, content, at)
        (entries,) = struct.unpack_from(order + number, content, start)
        _refuse_blocks(entries > MOST_BLOCKS)
        first, size = start + struct.calcsize(order + number), struct.calcsize(order + entry)
        for at in range(first, first + entries * size, size):
            tag, _, count = struct.unpack_from(order + entry, content, at)
            if tag in _TAGS_OF_PIXELS:
                values += count
                _refuse_blocks(values > 2 * MOST_BLOCKS)  # the places and the sizes of strips
            else:
                struct.pack_into(f"{order}H", stripped, at + 2, 0)
    return stripped
