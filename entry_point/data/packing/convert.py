"""Converts images of other formats, and images to be shrunk, to JPEG."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from entry_point.config.packing_config import OptimizeConfig

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
"""Pillow identifies a file by its content, and some of its other formats start programs."""
_MOST_PIXELS = 89_478_485
"""256 MB of RGB, where Pillow starts to warn of decompression bombs."""
_LONGEST_SIDE = 65_500
"""The longest side that libjpeg writes."""
_ORIENTATION_TAG = 0x0112


class RejectedError(Exception):
    """A file that cannot be packed; the message says why."""


def to_jpeg(original: bytes, options: OptimizeConfig) -> tuple[bytes, str]:
    """A JPEG without chroma subsampling and with the same orientation; and what it lost, if any.

    Raises RejectedError.
    """
    try:
        image = Image.open(io.BytesIO(original), formats=_FORMATS)
        _require_one_image(image)
        orientation = image.getexif().get(_ORIENTATION_TAG)
        rgb, lost = _to_rgb(image)
        if options.max_side is not None:
            rgb.thumbnail((options.max_side, options.max_side), Image.Resampling.LANCZOS)
        if max(rgb.size) > _LONGEST_SIDE:
            raise RejectedError(
                f"{rgb.width}x{rgb.height} pixels: a JPEG side has at most {_LONGEST_SIDE}, "
                "shrink it with max_side"
            )
        exif = Image.Exif()
        valid = isinstance(orientation, int) and 1 <= orientation <= 8
        exif[_ORIENTATION_TAG] = orientation if valid else 1
        file = io.BytesIO()
        rgb.save(file, "JPEG", quality=options.quality, subsampling="4:4:4", exif=exif)
    except (RejectedError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise RejectedError(f"not an image in one of the formats {', '.join(_FORMATS)}") from error
    except Exception as error:  # Pillow's parsers raise any type for a damaged file
        raise RejectedError(f"cannot be decoded: {error}") from error
    return file.getvalue(), lost


def _require_one_image(image: Image.Image) -> None:
    if image.width * image.height > _MOST_PIXELS:
        raise RejectedError(f"{image.width}x{image.height}: more than {_MOST_PIXELS} pixels")
    # Additional images in a JPEG file are previews and the like.
    if image.format not in ("JPEG", "MPO") and (frames := getattr(image, "n_frames", 1)) > 1:
        raise RejectedError(f"holds {frames} images: save each one in a separate file")


def _to_rgb(image: Image.Image) -> tuple[Image.Image, str]:
    # Older releases of Pillow read 16-bit PNGs as 32-bit integers.
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PNG"):
        levels = np.rint(np.asarray(image, dtype=np.float32) / 257).astype(np.uint8)
        return Image.fromarray(levels).convert("RGB"), "16 bits became 8"
    if image.mode in ("I", "F"):
        raise RejectedError("has 32 bits per pixel without a defined range: convert it to 8 or 16")
    transparent = image.has_transparency_data
    return image.convert("RGB"), "transparency dropped" if transparent else ""
