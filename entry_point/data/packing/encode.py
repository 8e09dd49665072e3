"""Encodes one source file for a shard: a JPEG with a side index where possible.

JPEGs keep their bytes, or become baseline without loss. PNG, WebP and AVIF keep their bytes; other
formats become PNG without loss. Images that are shrunk become JPEGs; with `convert=jpeg`, all do.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from custom_op import (
    JpegError,
    decode_and_crop_jpeg,
    index_jpeg,
    jpeg_headers,
    jpeg_size,
    to_baseline,
)
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.decode.decode import is_jpeg
from entry_point.data.decode.pillow import decoding, is_self_explaining, open_image, rgb
from entry_point.data.errors import DataError
from entry_point.data.metadata import UnusableImageError, orientation
from entry_point.data.sources.source import Source, read_image

_PROOF_CROPS, _PROOF_WIDTH = 2, 8
_LONGEST_SIDE = 65_500
"""Longest side that libjpeg writes, in pixels."""
_ORIENTATION_TAG = 0x0112
_KEPT = {"PNG": "png", "WEBP": "webp", "AVIF": "avif"}
"""Suffixes of the formats that keep their bytes, by Pillow's name."""
_MODES_OF_PNG = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")
"""Pillow's pixel modes that a PNG can store."""
_PREVIEWS = ("JPEG", "MPO")
"""Formats in which images after the first are only previews and the like."""


class RejectedError(Exception):
    """The file cannot be packed; the message says why."""


@dataclass(frozen=True)
class Encoded:
    data: bytes
    how: str
    """`indexed` (unchanged, with side index), `rewritten` (as baseline, with side index), `kept`
    (unchanged, without an index), `converted` (to PNG or JPEG) or `shrunk`."""
    note: str
    """Reason why the file has no index, or a list of losses in the conversion; may be empty."""
    height: int
    """Height of the stored pixels, before the orientation is applied."""
    width: int
    orientation: int
    """EXIF orientation, 1 to 8."""
    index: bytes = b""
    """The side index; empty without one."""
    suffix: str = "jpg"


def encode(source: Source, index: int, options: OptimizeConfig) -> tuple[int, Encoded]:
    """Returns the size of an image's source file in bytes, and the encoding to store. Raises
    RejectedError and ReadError."""
    original = _read(source, index)
    return len(original), encode_file(original.numpy().tobytes(), options)


def encode_file(original: bytes, options: OptimizeConfig) -> Encoded:
    """Returns the encoding to store for the bytes of an image file. Raises RejectedError."""
    jpeg = _tensor(original)
    try:
        if is_jpeg(jpeg) and not _is_too_large(jpeg_size(jpeg), options):
            return _encode_jpeg(jpeg)
        with decoding():
            return _encode_with_pillow(original, options)
    except (JpegError, UnusableImageError) as error:
        raise RejectedError(str(error)) from error


def index_image(source: Source, index: int) -> tuple[bytes, str]:
    """Returns the side index of a JPEG, or why it has none. Raises RejectedError and ReadError."""
    jpeg = _read(source, index)
    if not is_jpeg(jpeg):
        raise RejectedError("no JPEG")
    try:
        return _verified_index(jpeg)
    except JpegError as error:
        raise RejectedError(str(error)) from error


def _read(source: Source, index: int) -> Tensor:
    try:
        original = read_image(source, index)
    except OSError as error:
        raise RejectedError(f"unreadable: {error.strerror}") from error
    except DataError as error:
        raise RejectedError(str(error)) from error
    if not len(original):
        raise RejectedError("empty file")
    return original


def _encode_jpeg(jpeg: Tensor) -> Encoded:
    try:
        baseline = to_baseline(jpeg)
    except JpegError as error:
        decode_and_crop_jpeg(jpeg, 0, 0, *jpeg_size(jpeg))
        return _describe(jpeg, "kept", str(error))
    index, reason = _verified_index(baseline)
    if not torch.equal(baseline, jpeg):
        return _describe(baseline, "rewritten", reason, index)
    return _describe(jpeg, "indexed" if index else "kept", reason, index)


def _verified_index(jpeg: Tensor) -> tuple[bytes, str]:
    """Returns the file's side index and "", or b"" and why it has none.

    Decodes every pixel, so that a damaged file raises JpegError. Compares the pixels with crops
    decoded with the index: narrow columns, which start at an entry in every row of MCUs.
    """
    height, width = jpeg_size(jpeg)
    whole = decode_and_crop_jpeg(jpeg, 0, 0, height, width)
    index = index_jpeg(jpeg)
    if not len(index):
        return b"", "it has restart markers, is too small, or its coding allows no side index"
    across = min(width, _PROOF_WIDTH)
    for place in range(_PROOF_CROPS):
        left = (width - across) * (place + 1) // _PROOF_CROPS
        crop = decode_and_crop_jpeg(jpeg, 0, left, height, across, index=index)
        if not torch.equal(crop, whole[:, :, left : left + across]):
            return b"", "a side index would change its pixels"
    return index.numpy().tobytes(), ""


def _describe(jpeg: Tensor, how: str, note: str, index: bytes = b"") -> Encoded:
    stored = jpeg.numpy().tobytes()
    height, width, orientation = jpeg_headers([jpeg])[0].tolist()
    return Encoded(stored, how, note, height, width, orientation, index)


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def _is_too_large(size: tuple[int, int], options: OptimizeConfig) -> bool:
    return options.max_side is not None and max(size) > options.max_side


def _encode_with_pillow(original: bytes, options: OptimizeConfig) -> Encoded:
    """Encode a JPEG whose sides are too long, or an image of another format."""
    image = open_image(original)
    too_large = _is_too_large(image.size, options)
    image.load()  # applies the orientation of a TIFF
    stored, lost = rgb(image, options.gray_bits)
    is_converted = options.convert == "jpeg" and image.format not in _PREVIEWS
    if is_converted or too_large:
        return _to_jpeg(image, stored, "converted" if is_converted else "shrunk", lost, options)
    place = image.height, image.width, orientation(image)
    if kept := _KEPT.get(str(image.format)):
        return Encoded(
            original, "kept", f"{image.format} is decoded by Pillow", *place, suffix=kept
        )
    if image.mode in _MODES_OF_PNG and is_self_explaining(image):
        stored, lost = image, ""
    else:
        lost = lost or f"{image.mode} became RGB"
    data = _saved(stored, "PNG", image)
    return Encoded(data, "converted", _with_frames(image, lost), *place, suffix="png")


def _to_jpeg(
    image: Image.Image, stored: Image.Image, how: str, lost: str, options: OptimizeConfig
) -> Encoded:
    """Encode as a JPEG without chroma subsampling, and keep the image's orientation."""
    lost = _with_frames(image, lost)
    if options.max_side is not None:
        stored.thumbnail((options.max_side, options.max_side), Image.Resampling.LANCZOS)
    if max(stored.size) > _LONGEST_SIDE:
        raise UnusableImageError(
            f"{stored.width}x{stored.height} pixels: a JPEG side has at most {_LONGEST_SIDE}, "
            "shrink it with max_side"
        )
    jpeg = _tensor(_saved(stored, "JPEG", image, quality=options.quality, subsampling="4:4:4"))
    return _describe(jpeg, how, lost, _verified_index(jpeg)[0])


def _saved(stored: Image.Image, kind: str, original: Image.Image, **options: object) -> bytes:
    """Returns the bytes of `stored` as a file, with the orientation of `original`."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[_ORIENTATION_TAG] = orientation(original)
    stored.save(file, kind, exif=exif, **options)
    return file.getvalue()


def _with_frames(image: Image.Image, lost: str) -> str:
    """Returns `lost`, and mentions the file's further images, which are lost as well."""
    if image.format in _PREVIEWS or getattr(image, "n_frames", 1) == 1:
        return lost
    return f"{lost}, all but the first of several images".removeprefix(", ")
