"""Pillow decodes images of every format, and torchvision makes the samples.

It is how samples are usually made: the baseline, the reference of the operator's pixels, and what
decodes the images that are no JPEGs. The rules for those are here: an image is its first frame,
upright, with 8 bits for each of red, green and blue.
"""

from __future__ import annotations

import contextlib
import io
import struct
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.decode.augment_reference import augmented
from entry_point.data.decode.decoder import Decoded
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "PPM", "TIFF")
"""Pillow's names of IMAGE_SUFFIXES. Its other formats are rare or slow; some start programs."""
MOST_PIXELS = 89_478_485
"""256 MB of RGB, where Pillow starts to warn of decompression bombs."""
_BIG_TIFF, _MOST_TAGS = 43, 4096
_PARTS_OF_TIFF, _MOST_PARTS = (273, 324), 100_000
"""The tags that list the strips or tiles. Photos have at most a strip for each row."""
_ERRORS = (OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError)
"""Exceptions that Pillow raises for files it cannot read."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the transpose that makes the image upright."""
_TRANSPOSING = [_TURNS[orientation] for orientation in (5, 6, 7, 8)]
_TEXTS_WITH_ORIENTATION = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
"""What texts of a PNG begin with where Pillow looks for the orientation."""

BACKGROUND = "white"
"""Behind transparent pixels: that of most pages that such images were made for."""


class PillowDecoder:
    """Decodes images of all FORMATS, one after the other: a batch of whole photos takes gigabytes.

    So what is damaged behind its header is known only once it is decoded.
    """

    uses_indexes = False

    def open(self, encoded: Encoded) -> OpenedPhotos:
        """Reads the headers."""
        sizes = [_upright_size(encoded.files[i]) for i in range(len(encoded))]
        heights, widths = np.array(sizes).T
        return OpenedPhotos(encoded, (heights, widths))

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(frozen=True)
class OpenedPhotos:
    """See Opened."""

    encoded: Encoded
    sizes: tuple[Ints, Ints]

    def decode(self, plan: CropPlan, allocate: Allocate) -> Decoded:
        images = empty_images(allocate, len(plan), plan.side)
        each = len(plan) // len(self.encoded)
        damage: dict[int, str] = {}
        for i in range(len(self.encoded)):
            samples = range(i * each, (i + 1) * each)
            boxes = plan.boxes[samples]
            try:
                photo = read_photo(self.encoded.files[i], int((boxes[:, 0] + boxes[:, 2]).max()))
            except UnusableImageError as error:
                damage[i] = str(error)
                continue
            for sample in samples:
                _cut(photo, plan, sample, images[sample])
        return Decoded(images, damage | self.encoded.unreadable)


def _cut(photo: Image.Image, plan: CropPlan, sample: int, out: Tensor) -> None:
    size, box = [plan.side, plan.side], plan.boxes[sample].tolist()
    cut = functional.resized_crop(photo, *box, size, InterpolationMode.BILINEAR)
    if plan.flips[sample]:
        cut = functional.hflip(cut)
    # NumPy, since torch's copy would start threads in each of the pipeline's.
    np.copyto(out.permute(1, 2, 0).numpy(), np.asarray(cut))
    if plan.operations is not None:
        out.copy_(augmented(out, plan.operations[sample]))


def read_photo(file: Tensor, rows: int | None = None) -> Image.Image:
    """The whole upright image as RGB; rows after the first `rows` may be black.

    Raises UnusableImageError if it cannot be decoded.
    """
    content = file.numpy().data
    try:
        image = open_image(content)
        turn = _turn(image, content)
        if turn is None and rows is not None:
            _decode_only(image, rows)
        image.load()
        return rgb(image if turn is None else image.transpose(turn))[0]
    except _ERRORS as error:
        raise UnusableImageError(str(error)) from error


def _upright_size(file: Tensor) -> tuple[int, int]:
    """Height and width; 1 x 1 if the header cannot be read."""
    content = file.numpy().data
    try:
        image = open_image(content)
        transposed = _turn(image, content) in _TRANSPOSING
    except _ERRORS:
        return 1, 1
    return image.size if transposed else image.size[::-1]


def _turn(image: Image.Image, content: memoryview) -> Image.Transpose | None:
    """What makes the image upright, as ImageOps.exif_transpose, which fails on malformed tags."""
    if image.format == "TIFF":  # Pillow turns it on its own
        return None
    if image.format == "PNG" and _exif_follows_pixels(content):
        image.load()
    exif = Image.Image.getexif(image)  # PNG's own decodes the pixels, in case EXIF follows them
    return _TURNS.get(exif.get(ExifTags.Base.Orientation, 1))


def _exif_follows_pixels(png: memoryview) -> bool:
    """Whether EXIF, or text in which Pillow looks for the orientation, follows the pixels."""
    at, after_pixels = len(b"\x89PNG\r\n\x1a\n"), False
    while at + 8 <= len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        start = bytes(png[at + 8 : at + 32])
        if kind == b"IDAT":
            after_pixels = True
        elif after_pixels and (kind == b"eXIf" or start.startswith(_TEXTS_WITH_ORIENTATION)):
            return True
        at += 12 + length
    return False


def _decode_only(image: ImageFile.ImageFile, rows: int) -> None:
    """Let `load` stop after these rows, where the pixels of the format follow each other."""
    if image.format == "PNG" and image.info.keys().isdisjoint(("interlace", "loop")):
        extents = 0, 0, image.width, rows
        image.tile = [part._replace(extents=extents) for part in image.tile]


class UnusableImageError(ValueError):
    """An image that a rule of this file refuses; the message says why."""


class TooManyPixelsError(UnusableImageError):
    """An image that would take too much memory."""


def open_image(content: bytes | bytearray | memoryview) -> ImageFile.ImageFile:
    """The first frame, not decoded yet.

    Raises UnusableImageError, and many other types for a damaged file.
    """
    if not len(content):
        raise UnusableImageError("empty file")
    _refuse_many_parts(content)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        must = f"not an image in one of the formats {', '.join(FORMATS)}"
        raise UnusableImageError(must) from error
    except Image.DecompressionBombError as error:  # more than twice Pillow's limit
        raise TooManyPixelsError(f"more than {MOST_PIXELS} pixels") from error
    if image.width * image.height > MOST_PIXELS:
        size = f"{image.width}x{image.height}"
        raise TooManyPixelsError(f"{size}: more than {MOST_PIXELS} pixels")
    if image.format in ("JPEG", "MPO"):
        # Without EXIF, Pillow takes the orientation from XMP: no browser does, nor the operator.
        image.info.pop("xmp", None)
    return image


def _refuse_many_parts(content: bytes | bytearray | memoryview) -> None:
    """Raise TooManyPixelsError for a TIFF of too many strips or tiles: Pillow makes an object of
    each, 90 times as large as in the file, before it looks at the number of pixels."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(content[:2]))
    if order is None:
        return
    with contextlib.suppress(struct.error):  # too short: Pillow says so
        is_big = struct.unpack_from(f"{order}H", content, 2)[0] == _BIG_TIFF
        place, number, entry = (
            order + each for each in (("4xQ", "Q", "HHQ8x") if is_big else ("I", "H", "HHI4x"))
        )
        (start,) = struct.unpack_from(place, content, 4)
        (entries,) = struct.unpack_from(number, content, start)
        first, size = start + struct.calcsize(number), struct.calcsize(entry)
        for i in range(min(entries, _MOST_TAGS)):
            tag, _, count = struct.unpack_from(entry, content, first + i * size)
            if tag in _PARTS_OF_TIFF and count > _MOST_PARTS:
                reason = f"a TIFF of {count} strips or tiles: more than {_MOST_PARTS}"
                raise TooManyPixelsError(reason)


def rgb(image: Image.Image) -> tuple[Image.Image, str]:
    """The image with 8 bits for each of red, green and blue; and what it lost, if anything.

    Gray values of 16 bits are divided by 257, so that white stays white; of colors of 16 bits,
    Pillow keeps the upper 8. What is transparent shows the background, not the color that the file
    has there. Raises UnusableImageError for 32 bits per value.
    """
    # Pillow reads PGM, and before release 11 also PNG, of 16 bits as 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        levels = np.rint(np.asarray(image, dtype=np.float32) / 257).astype(np.uint8)
        return Image.fromarray(levels).convert("RGB"), "16 bits became 8"
    if image.mode in ("I", "F"):
        raise UnusableImageError(
            "has 32 bits per pixel without a defined range: convert it to 8 or 16"
        )
    if not image.has_transparency_data:  # `convert` copies also where there is nothing to do
        return image if image.mode == "RGB" else image.convert("RGB"), ""
    whole = Image.new("RGB", image.size, BACKGROUND)
    layer = image.convert("RGBA")
    whole.paste(layer, mask=layer)
    return whole, f"transparency replaced by {BACKGROUND}"
