"""Opens and decodes the images of requests, to the same pixels as `entry_point.predict`.

Requests are untrusted: format and number of pixels are checked in the header, before any memory
is allocated. One thread decodes one image.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import custom_op
from entry_point.data.decode.decode import is_jpeg, upright_sizes
from entry_point.data.decode.pillow import PillowDecoder, decoding, open_image
from entry_point.data.metadata import TooManyPixelsError, UnusableImageError
from entry_point.data.plan.crops import CropPlan, CropPlanner
from entry_point.data.plan.samples import Ints, Samples
from entry_point.data.sources.source import Encoded
from entry_point.model_folder import Model
from entry_point.serving.forms import RequestError

BYTES_PER_PIXEL = {"JPEG": 8, "PNG": 13, "GIF": 13, "AVIF": 15}
"""Memory that decoding takes, measured. The operator keeps the coefficients of progressive JPEGs,
2 bytes for each of up to four components; 16-bit PNGs take most among Pillow's formats."""
_MOST_BYTES_PER_PIXEL = 21
"""For all other formats; WebP rotated by its EXIF data and TIFF with floats take most."""
_MEGA = 10**6
MAX_PIXELS = 89_478_485
"""Most pixels of one image in a request, 256 MB of RGB. Datasets may hold larger images."""
SMALL_BYTES = 200 * _MEGA
"""Images that need more memory than this are decoded one after another."""
_PIXELS_PER_BYTE = 8
"""Most pixels per byte of a request: photos have 2 to 8."""
_ALONE = Samples.of(0, np.zeros(1, np.int64))


class Photo(NamedTuple):
    """A decoded image: the model's view of it, and the upright image's size in pixels."""

    view: Tensor
    """uint8 `(1, 3, image_size, image_size)`, channels_last."""
    height: int
    width: int


@dataclass(frozen=True)
class RequestImage:
    """An encoded image whose header has been read."""

    file: Tensor
    """uint8 `(bytes,)`."""
    is_jpeg: bool
    sizes: tuple[Ints, Ints]
    """Upright height and width in pixels, of one each."""
    memory: int
    """Bytes that decoding takes."""


class ImageDecoder:
    """Decodes images to the model's input. Threads may share it."""

    def __init__(self, model: Model, max_payload_mb: int) -> None:
        data = model.config.data
        self._planner = CropPlanner(data, train=False, seed=0)
        self._pillow = PillowDecoder(data.gray_bits)
        self._most_pixels = max(MAX_PIXELS, _PIXELS_PER_BYTE * max_payload_mb * 2**20)

    def open(self, contents: Sequence[bytes | bytearray]) -> list[RequestImage]:
        """Returns the images of a request; raises RequestError if any exceeds a limit."""
        images, together = [], 0
        for number, content in enumerate(contents):
            try:
                images.append(self._open(content))
            except RequestError as error:
                raise numbered(error, number) from error
            together += int(np.prod(images[-1].sizes))
            if together > self._most_pixels:
                message = f"must have at most {self._most_pixels // _MEGA} megapixels"
                raise RequestError(413, f"the images of a request together: {message}")
        return images

    def _open(self, content: bytes | bytearray) -> RequestImage:
        # torch makes a tensor without a copy from writable memory only.
        writable = content if isinstance(content, bytearray) else bytearray(content)
        file = torch.frombuffer(writable, dtype=torch.uint8) if writable else torch.empty(0).byte()
        kind = "JPEG" if is_jpeg(file) else _format_of(file)
        sizes = upright_sizes(Encoded([file]))
        if (pixels := int(sizes[0][0] * sizes[1][0])) > MAX_PIXELS:
            raise _too_many_pixels()
        memory = pixels * BYTES_PER_PIXEL.get(kind, _MOST_BYTES_PER_PIXEL)
        return RequestImage(file, kind == "JPEG", sizes, memory)

    def decode(self, image: RequestImage) -> Photo:
        """Raises RequestError."""
        heights, widths = image.sizes
        plan = self._planner.plan(_ALONE, heights, widths)
        try:
            decode = _decode_jpeg if image.is_jpeg else self._decode_with_pillow
            return Photo(decode(image.file, plan), int(heights[0]), int(widths[0]))
        except (custom_op.JpegError, UnusableImageError) as error:
            reason = str(error).removeprefix("image 0 of the batch: ").partition("\n")[0]
            raise RequestError(400, f"cannot be read as an image: {reason}") from error

    def _decode_with_pillow(self, file: Tensor, plan: CropPlan) -> Tensor:
        allocate = partial(torch.empty, dtype=torch.uint8)
        images, damage = self._pillow.decode(Encoded([file]), plan, allocate)
        if damage:
            raise UnusableImageError(damage[0])
        return images

    def warm_up(self) -> Photo:
        """Decode samples of the usual formats; returns the last. They are gradients: models that
        divide by an image's standard deviation would answer NaN for a single color."""
        ramp = Image.linear_gradient("L").transpose(Image.Transpose.ROTATE_90).convert("RGB")
        for kind in ("JPEG", "PNG"):
            out = io.BytesIO()
            ramp.resize((640, 480)).save(out, kind)
            photo = self.decode(*self.open([out.getvalue()]))
        return photo


def _decode_jpeg(file: Tensor, plan: CropPlan) -> Tensor:
    # Not OperatorDecoder, which is made for batches: each of its torch calls releases the GIL, and
    # getting it back takes longer than the call itself.
    boxes = torch.from_numpy(plan.boxes)
    return custom_op.decode_crop_resize_batch([file], boxes, plan.side).images


def _format_of(file: Tensor) -> str:
    """Returns Pillow's name of the format. Raises RequestError."""
    try:
        with decoding(), open_image(file.numpy().data) as image:
            return str(image.format)
    except TooManyPixelsError as error:
        raise _too_many_pixels() from error
    except UnusableImageError as error:
        raise RequestError(400, f"is not an image that can be read: {error}") from error


def _too_many_pixels() -> RequestError:
    most = f"at most {MAX_PIXELS // _MEGA} megapixels"
    return RequestError(413, f"has too many pixels; {most}")


def numbered(error: RequestError, number: int) -> RequestError:
    """Returns the error, with the number of the image in its request."""
    return RequestError(error.status, f"image {number}: {error}")
