"""Hides metadata of image files from Pillow, limits its reads, and finds the orientation.

Metadata does not affect pixels, but Pillow rejects some images because of it (a PNG whose ICC
profile exceeds 1 MiB, a TIFF whose resolution is a text), and parses it in Python: 25 MB take many
seconds. Pillow therefore gets only the parts of a PNG or TIFF that describe pixels, and a limited
number of reads for any header. The operator's limit is `kMaxSegments` in custom_op/csrc.
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
    """The image cannot be decoded, or is rejected; the message says why."""


class TooManyPixelsError(UnusableImageError):
    """The image has too many pixels to decode in memory."""


MOST_BLOCKS = 100_000
"""Most blocks of a file: chunks, segments, strips and the like. Photos have dozens, plus at
most one strip or chunk of pixels per row."""
_BYTES_PER_BLOCK = 1024
"""A PNG may have one more chunk per this many bytes; encoders write chunks of 8 kB."""
_MOST_TEXT = 1 << 24
"""Most bytes of a compressed text that is searched for the orientation."""


class BoundedFile(io.BytesIO):
    """An image file that allows a parser a limited number of reads; it reads a block in up to
    three."""

    left: float = MOST_BLOCKS
    """Number of reads left; may be set to infinity once the header has been read."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes. Raises UnusableImageError after too many reads."""
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
    """Number of frames of an animated PNG, of which `content` has the first."""


def strip(content: bytes | bytearray | memoryview) -> Stripped:
    """Remove the metadata of a PNG or TIFF; other formats stay as they are.

    Raises UnusableImageError for a file with too many blocks.
    """
    view = memoryview(content)
    if view[:8] == _PNG:
        return _strip_png(view)
    return Stripped(_without_tags(view) if view[:2] in (b"II", b"MM") else content)


def orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation, 1 to 8; 1 if it is missing or invalid.

    Equals Pillow's `getexif`, which fails on malformed EXIF. Without EXIF, XMP is read, except in
    JPEGs, where the operator does not read it.
    """
    found = _exif_orientation(image.info.get("exif", b""))
    if found is None:
        text = b"" if image.format in ("JPEG", "MPO") else image.info.get("xmp", b"")
        xmp = re.search(rb'tiff:Orientation(?:="|>)([0-9])', text)
        found = int(xmp[1]) if xmp else 1
    return found if 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    """Returns the orientation tag (a SHORT or a LONG) of EXIF data; None without one. Follows
    custom_op/csrc/jpeg/header.cpp."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    with suppress(struct.error):  # the EXIF ends too early
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
    """Remove metadata, and keep only the first frame of an animated PNG, as most readers do."""
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
    if not stripped.exif and _EXIF_AS_TEXT in texts:  # ImageMagick writes it in hexadecimal
        with suppress(ValueError):
            lines = _text(texts[_EXIF_AS_TEXT]).decode("latin-1").split("\n")
            stripped.exif = bytes.fromhex("".join(lines[3:]))
    stripped.xmp = _text(texts.get(_XMP, b""))
    return stripped


def _text(chunk: bytes) -> bytes:
    """Returns the text of a chunk, from its kind and the content after its keyword; empty if it is
    damaged."""
    kind, text, is_compressed = chunk[:4], chunk[4:], chunk[:4] == b"zTXt"
    if kind == b"iTXt":  # begins with two flags, the language, and the translated keyword
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
"""All baseline tags that describe pixels, the tags of compressions, and the orientation."""


def _without_tags(content: memoryview) -> bytearray:
    """Set the type of all tags that do not describe pixels to 0, which readers skip."""
    stripped, values = bytearray(content), 0
    with suppress(struct.error):  # too short, which Pillow reports
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
                _refuse_blocks(values > 2 * MOST_BLOCKS)  # offsets and sizes of strips
            else:
                struct.pack_into(f"{order}H", stripped, at + 2, 0)
    return stripped
