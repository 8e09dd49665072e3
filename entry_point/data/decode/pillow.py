"""Decodes, crops and resizes images of all formats with Pillow.

Most pipelines make samples this way, so it is the baseline, and the reference for the operator's
pixels. It also decodes images that are not JPEGs: always the first frame, upright, with 8 bits for
each of red, green and blue.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from custom_op import MAX_PIXELS
from entry_point.data.decode.allocation import Allocate, empty_images
from entry_point.data.errors import log_once
from entry_point.data.metadata import (
    BoundedFile,
    TooManyPixelsError,
    UnusableImageError,
    orientation,
    strip,
)
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "PPM", "TIFF")
"""Pillow's names for IMAGE_SUFFIXES. Its other formats are rare or slow; some start programs."""
MOST_PIXELS = MAX_PIXELS
"""Most pixels of an image, 750 MB of RGB; the same as for JPEGs in the operator."""
Image.MAX_IMAGE_PIXELS = MOST_PIXELS // 2
"""Pillow rejects more than twice this, even where it allocates before `open_image` can check."""
warnings.filterwarnings("ignore", module=r"PIL\.")
_BITS_PER_SAMPLE, _EXTRA_SAMPLES = 258, 338
"""TIFF tag numbers."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transpose that makes an image upright, by EXIF orientation."""
_TRANSPOSING = [_TURNS[orientation] for orientation in (5, 6, 7, 8)]
BACKGROUND = "white"
"""Color behind transparent pixels; most such images were made for white pages."""


class PillowDecoder:
    """Decodes images of all FORMATS without the operator, see BatchDecoder."""

    has_threads = uses_indexes = False

    def __init__(self, gray_bits: int = 16) -> None:
        """`gray_bits`: see DataConfig."""
        self._gray_bits = gray_bits

    def sizes(self, encoded: Encoded) -> tuple[Ints, Ints]:
        """See BatchDecoder. Reads the headers."""
        heights, widths = np.array([upright_size_of(file) for file in encoded.files]).T
        return heights, widths

    def decode(
        self, encoded: Encoded, plan: CropPlan, allocate: Allocate
    ) -> tuple[Tensor, dict[int, str]]:
        """See BatchDecoder."""
        images, everywhere = empty_images(allocate, len(plan), plan.side), range(len(encoded))
        damage = decode_with_pillow(encoded.files, everywhere, plan, images, self._gray_bits)
        return images, damage | encoded.unreadable

    def close(self) -> None:
        """Do nothing: this decoder has no threads."""


def decode_with_pillow(
    files: Sequence[Tensor],
    positions: Sequence[int],
    plan: CropPlan,
    images: Tensor,
    gray_bits: int,
) -> dict[int, str]:
    """Write the samples of the files at these positions into a batch's `images`.

    Decodes one file at a time, because a batch of whole photos takes gigabytes. Returns why files
    cannot be decoded, by position; damage after the header is found only here.
    """
    each, damage = len(plan) // len(files), dict[int, str]()
    for i in positions:
        samples = range(i * each, (i + 1) * each)
        boxes = plan.boxes[samples]
        try:
            photo = read_photo(files[i], int((boxes[:, 0] + boxes[:, 2]).max()), gray_bits)
        except UnusableImageError as error:
            damage[i] = str(error)
            continue
        for sample in samples:
            _cut(photo, plan, sample, images[sample])
    return damage


def _cut(photo: Image.Image, plan: CropPlan, sample: int, out: Tensor) -> None:
    """Write a sample to `out`, as torchvision's `resized_crop` and `hflip` make it."""
    top, left, height, width = plan.boxes[sample].tolist()
    # Crop before resizing, so that pixels outside the box do not affect its edges.
    cut = photo.crop((left, top, left + width, top + height))
    cut = cut.resize((plan.side, plan.side), Image.Resampling.BILINEAR)
    if plan.flips[sample]:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    # NumPy copies, because torch's copy would start threads in each thread of the pipeline.
    np.copyto(out.permute(1, 2, 0).numpy(), np.asarray(cut))
    if plan.operations is not None:
        from entry_point.data.decode.augment_reference import augmented  # torchvision: a second

        out.copy_(augmented(out, plan.operations[sample]))


def read_photo(file: Tensor, rows: int | None = None, gray_bits: int = 16) -> Image.Image:
    """Returns the whole upright image as RGB, see `rgb`; rows after the first `rows` may be black.

    Raises UnusableImageError if it cannot be decoded.
    """
    with decoding():
        image = open_image(file.numpy().data)
        turn = _turn(image)
        if image.format == "PNG" and "interlace" not in image.info and turn is None and rows:
            # Rows are stored in order, so `load` can stop after these.
            extents = 0, 0, image.width, rows
            image.tile = [part._replace(extents=extents) for part in image.tile]
        image.load()
        return rgb(image if turn is None else image.transpose(turn), gray_bits)[0]


def upright_size_of(file: Tensor) -> tuple[int, int]:
    """Returns the upright height and width in pixels; 1 x 1 if the header cannot be read."""
    try:
        with decoding():
            image = open_image(file.numpy().data)
    except UnusableImageError:
        return 1, 1
    return image.size if _turn(image) in _TRANSPOSING else image.size[::-1]


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Returns the transpose that makes the image upright; None for TIFF, which Pillow orients."""
    return _TURNS.get(orientation(image))


@contextmanager
def decoding() -> Iterator[None]:
    """Turn errors of Pillow's parsers, which may have any type, into UnusableImageError."""
    try:
        yield
    except (UnusableImageError, MemoryError):
        raise
    except Exception as error:
        raise UnusableImageError(f"cannot be decoded: {error}") from error


def open_image(content: bytes | bytearray | memoryview) -> ImageFile.ImageFile:
    """Returns the first frame, not decoded yet, with only the metadata that `orientation` needs.

    Raises UnusableImageError, or an error of any other type for a damaged file.
    """
    if not len(content):
        raise UnusableImageError("empty file")
    stripped = strip(content)
    file = BoundedFile(stripped.content)
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError as error:
        message = f"not an image in one of the formats {', '.join(FORMATS)}"
        raise UnusableImageError(message) from error
    except Image.DecompressionBombError as error:
        raise TooManyPixelsError(f"more than {MOST_PIXELS} pixels: shrink it") from error
    file.left = math.inf
    if image.width * image.height > MOST_PIXELS:
        size = f"{image.width}x{image.height}"
        raise TooManyPixelsError(f"{size}: more than {MOST_PIXELS} pixels: shrink it")
    if any(part.codec_name in Image.DECODERS for part in image.tile):
        message = "which Pillow decodes in Python, in up to minutes: convert it to PNG"
        raise UnusableImageError(
            f"{image.format} in the rare form {image.tile[0].codec_name}, {message}"
        )
    if stripped.exif:
        image.info["exif"] = stripped.exif
    if stripped.xmp:
        image.info["xmp"] = stripped.xmp
    if stripped.frames > 1:
        image.n_frames = stripped.frames  # type: ignore[attr-defined]
    return image


def is_self_explaining(image: Image.Image) -> bool:
    """Returns whether the pixels can be interpreted without the file's header; if not, `rgb`
    interprets them.

    A TIFF stores 12-bit values in 16 bits. A fourth byte of BMP or TIFF pixels that is 0 everywhere
    is unused, as browsers treat it, and is not opacity, unless the TIFF declares it.
    """
    tags = getattr(image, "tag_v2", {})
    if image.mode == "RGBA" and (image.format == "BMP" or (tags and _EXTRA_SAMPLES not in tags)):
        return image.getchannel("A").getextrema() != (0, 0)
    return tags.get(_BITS_PER_SAMPLE) != (12,)


def rgb(image: Image.Image, gray_bits: int = 16) -> tuple[Image.Image, str]:
    """Returns the image with 8 bits for each of red, green and blue, and a text on its losses.

    16-bit gray values, of which `gray_bits` are used, are divided so that white stays white: by 257
    if all bits are used. Of 16-bit colors, Pillow keeps the upper 8 bits. Transparent pixels get
    the BACKGROUND instead of the color in the file. Raises UnusableImageError for 32
    bits per value.
    """
    explains_itself = is_self_explaining(image)
    # Pillow reads PGM, and before release 11 also PNG, of 16 bits as 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        bits = gray_bits if explains_itself else 12
        values, scale = np.asarray(image, dtype=np.float32), (2**bits - 1) / 255
        if bits == 16 and 255 < values.max() < 4096:
            message = "a gray image of 16 bits has no value above 4095, so it is nearly black: if "
            log_once(logging.WARNING, f"{message}its values have 12 bits, set data.gray_bits=12")
        levels = np.rint(values / scale).clip(max=255)
        return Image.fromarray(levels.astype(np.uint8)).convert("RGB"), f"{bits} bits became 8"
    if image.mode in ("I", "F"):
        raise UnusableImageError(
            "has 32 bits per pixel without a defined range: convert it to 8 or 16"
        )
    # Without a change of mode, `convert` would still copy.
    if not image.has_transparency_data or not explains_itself:
        return image if image.mode == "RGB" else image.convert("RGB"), ""
    whole = Image.new("RGB", image.size, BACKGROUND)
    layer = image.convert("RGBA")
    whole.paste(layer, mask=layer)
    return whole, f"transparency replaced by {BACKGROUND}"
