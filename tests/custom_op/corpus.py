"""Small odd JPEGs: seeds for fuzzing and for the tests of hostile input.

`python -m tests.custom_op.corpus FOLDER` writes them, and photographs, to a folder.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.custom_op.jpegs import (
    KINDS,
    SAMPLINGS,
    encode,
    markers,
    offset,
    picture,
    with_exif_orientation,
)

_SOF0, _DHT, _SOS, _DRI = 0xC0, 0xC4, 0xDA, 0xDD


def odd_files() -> Iterator[tuple[str, bytes]]:
    """`(name, data)`, all below 4 kB."""
    small = picture(24, 40)
    for sampling in SAMPLINGS:
        yield f"sampling {sampling}", encode(small, sampling, 40)
    for kind, settings in KINDS.items():
        yield f"kind {kind}", encode(small, quality=40, **settings)
    for height, width in ((1, 1), (1, 70), (70, 1), (17, 3)):
        yield f"size {height}x{width}", encode(picture(height, width), quality=40)
    cmyk = np.concatenate([small, small[:, :, :1]], axis=2)
    for adobe in (0, 1):
        yield f"cmyk {adobe}", encode(cmyk, "4:4:4", 40, adobe=adobe)
    yield from _damaged(encode(small, quality=40, restart_interval=2))
    yield from unusual_headers(encode(small, quality=40, restart_interval=2))
    progressive = encode(small, quality=40, progressive=True)
    last_scan = progressive.rindex(b"\xff\xda")
    yield "progressive, last scan missing", progressive[:last_scan] + b"\xff\xd9"
    yield "orientation little-endian", with_exif_orientation(encode(small, quality=30), 6)
    yield (
        "orientation big-endian",
        with_exif_orientation(encode(small, quality=30), 3, big_endian=True),
    )


def photographs() -> Iterator[tuple[str, bytes]]:
    """`(name, data)` of sound files of some hundred pixels, of every sampling and coding."""
    for quality in (30, 97):
        photo = picture(201 + quality, 333 - quality, quality)
        for sampling in SAMPLINGS:
            yield f"photo {quality} {sampling}", encode(photo, sampling, quality)
        for kind, settings in KINDS.items():
            yield f"photo {quality} {kind}", encode(photo, quality=quality, **settings)


def unusual_headers(good: bytes) -> Iterator[tuple[str, bytes]]:
    """`(name, data)` of sound files whose header libjpeg warns about."""
    scan, frame, tables = offset(good, _SOS), offset(good, _SOF0), offset(good, _DHT)
    tail = scan + 2 + int.from_bytes(good[scan + 2 : scan + 4], "big") - 3
    for values in ("000000", "013f00", "003e00", "003f10", "003f01", "ffffff"):
        data = good[:tail] + bytes.fromhex(values) + good[tail + 3 :]
        yield f"scan parameters {values}", data
    for garbage in (b"\x12", b"\x12\x34\xff\0\x56", bytes(50), b"\xff\0"):
        for name, at in (("the frame", frame), ("the tables", tables), ("the scan", scan)):
            yield f"{garbage[:5].hex()} before {name}", good[:at] + garbage + good[at:]
    yield "fill bytes before the scan", good[:scan] + b"\xff\xff\xff" + good[scan:]
    yield "restart marker before the scan", good[:scan] + b"\xff\xd3" + good[scan:]
    adobe = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x07"
    yield "Adobe transform 7", good[:2] + adobe + good[20:]
    jfif = b"\xff\xe0\0\x10JFIF\0\x07\x01\0\0\x01\0\x01\0\0"
    yield "JFIF 7.1", good[:2] + jfif + good[2:]


def _damaged(good: bytes) -> Iterator[tuple[str, bytes]]:
    for marker, at in markers(good):
        yield f"cut at {marker:02x} {at}", good[: at + 3]
    frame = offset(good, _SOF0)
    for height, width in ((65500, 65500), (0, 40), (24, 0), (25, 40), (240, 40), (24, 400)):
        size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        yield f"lies {height}x{width}", good[: frame + 5] + size + good[frame + 9 :]
    tables, scan, interval = offset(good, _DHT), offset(good, _SOS), offset(good, _DRI)
    yield "tables before the frame", good[:2] + good[tables:scan] + good[2:tables] + good[scan:]
    yield "no tables", good[:tables] + good[scan:]
    yield "two frames", good[:frame] + good[frame : frame + 19] + good[frame:]
    yield "no interval", good[:interval] + good[interval + 6 :]
    yield "wrong interval", good[: interval + 4] + b"\x00\x03" + good[interval + 6 :]
    restarts = [at for marker, at in markers(good) if 0xD0 <= marker <= 0xD7]
    first, second = restarts[0], restarts[1]
    yield "restart lost", good[:first] + good[first + 2 :]
    yield "restart doubled", good[:first] + good[first : first + 2] + good[first:]
    yield "segment lost", good[:first] + good[second:]
    yield "restarts out of order", good[: first + 1] + b"\xd5" + good[first + 2 :]


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (*odd_files(), *photographs()):
        stem = "".join(c if c.isalnum() else "-" for c in name)
        (folder / f"{stem}.jpg").write_bytes(data)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
