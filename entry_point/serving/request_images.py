"""Decodes the images of requests, before they join a batch.

Requests come from strangers. Formats and pixels are checked by the headers before any memory is
taken. One image is decoded by one thread, and large images one after another, so that they never
hold all threads. The pixels are those of `entry_point.predict`.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import custom_op
from entry_point.config.data_config import Crop, DataConfig
from entry_point.data.decode.pillow import PillowDecoder, decoding, open_image
from entry_point.data.metadata import TooManyPixelsError, UnusableImageError
from entry_point.data.plan.crops import CropPlanner, upright_size
from entry_point.data.plan.samples import Ints, Samples
from entry_point.data.sources.source import Encoded
from entry_point.serving.formats import RequestError

_OPERATOR_BYTES_PER_PIXEL = 8
"""Memory that the operator takes of progressive JPEGs, whose coefficients it holds: 2 for each of
up to four components. Others take less than 1."""
BYTES_PER_PIXEL = {"JPEG": 13, "MPO": 13, "PNG": 13, "GIF": 13, "AVIF": 15}
"""Memory that Pillow takes, measured: progressive JPEGs and 16-bit PNGs take most."""
_MOST_BYTES_PER_PIXEL = 21
"""Of the other formats: WebP that its EXIF data turns, TIFF with floats."""
_JPEG = b"\xff\xd8\xff"
_MEGA = 10**6
MAX_PIXELS = 89_478_485
"""Of one image: 256 MB of RGB. Datasets may hold larger ones."""
_SMALL_BYTES = 200 * _MEGA
"""One image per thread may take this; larger ones are decoded one after another."""
_PIXELS_PER_BYTE = 8
"""Of a whole request: photos have 2 to 8 pixels per byte."""
MOST_LARGE = 64
"""Large images that may wait: a quarter of the queue. The rest is for small ones."""
_ALONE = Samples.of(0, np.zeros(1, np.int64))


class Photo(NamedTuple):
    """A decoded image: the model's view of it, and the upright image's size in pixels."""

    view: Tensor
    """uint8 `(1, 3, image_size, image_size)`, channels_last."""
    height: int
    width: int


@dataclass(frozen=True)
class RequestImage:
    """An encoded image with what its header states."""

    file: Tensor
    """uint8 `(bytes,)`."""
    sizes: tuple[Ints, Ints] | None
    """Upright height and width of a JPEG for the operator; None: Pillow decodes the image."""
    memory: int
    """Bytes that decoding takes."""

    @property
    def is_large(self) -> bool:
        return self.memory > _SMALL_BYTES


def check_images(contents: Sequence[bytes | bytearray], max_payload_mb: int) -> list[RequestImage]:
    """Returns the images of one request; raises RequestError unless all are within the limits."""
    most = max(MAX_PIXELS, _PIXELS_PER_BYTE * max_payload_mb * 2**20)
    images, together = [], 0
    for number, content in enumerate(contents):
        try:
            image, pixels = _read_header(content)
        except RequestError as error:
            raise numbered(error, number) from error
        together += pixels
        if together > most:
            message = f"must have at most {most // _MEGA} megapixels"
            raise RequestError(413, f"the images of a request together: {message}")
        images.append(image)
    return images


def numbered(error: RequestError, number: int) -> RequestError:
    """Returns the error, with the number of the image in its request."""
    return RequestError(error.status_code, f"image {number}: {error}")


def _read_header(content: bytes | bytearray) -> tuple[RequestImage, int]:
    """Returns the image and its number of pixels."""
    # A view of the bytes: only what can be written to becomes a tensor without a copy.
    writable = content if isinstance(content, bytearray) else bytearray(content)
    file = torch.frombuffer(writable, dtype=torch.uint8) if writable else torch.empty(0).byte()
    if content.startswith(_JPEG):
        header = custom_op.jpeg_headers([file]).numpy()
        if pixels := int(header[0, 0] * header[0, 1]):
            sizes = upright_size(*header.T)
            memory = _OPERATOR_BYTES_PER_PIXEL * _within_limit(pixels)
            return RequestImage(file, sizes, memory), pixels
    try:
        with decoding(), open_image(content) as image:
            kind, pixels = str(image.format), image.width * image.height
    except TooManyPixelsError:
        kind, pixels = "", MAX_PIXELS + 1
    except UnusableImageError as error:
        raise RequestError(400, f"is not an image that can be read: {error}") from error
    memory = BYTES_PER_PIXEL.get(kind, _MOST_BYTES_PER_PIXEL) * _within_limit(pixels)
    return RequestImage(file, None, memory), pixels


def _unreadable(reason: str) -> RequestError:
    first_line = reason.partition("\n")[0]
    return RequestError(400, f"cannot be read as an image: {first_line}")


def _within_limit(pixels: int) -> int:
    if pixels > MAX_PIXELS:
        raise RequestError(413, f"has too many pixels; at most {MAX_PIXELS // _MEGA} megapixels")
    return pixels


class ImageDecoder:
    """Decodes encoded images to what the model takes, in any thread."""

    def __init__(
        self, image_size: int, resize: int, crop: Crop = "center", gray_bits: int = 16
    ) -> None:
        data = DataConfig(image_size=image_size, resize=resize, crop=crop)
        self._pillow = PillowDecoder(gray_bits)
        self._planner = CropPlanner(data, train=False, seed=0)

    def decode(self, image: RequestImage) -> Photo:
        """Raises RequestError."""
        if image.sizes is None:
            return self._decode_with_pillow(image.file)
        heights, widths = image.sizes
        plan = self._planner.plan(_ALONE, heights, widths)
        boxes = torch.from_numpy(plan.boxes)
        try:
            # Without OperatorDecoder, which is for batches: each call of torch hands the
            # interpreter to another thread and back, which takes longer than what it computes.
            decoded = custom_op.decode_crop_resize_batch(
                [image.file], boxes, plan.side, num_threads=1
            )
        except custom_op.JpegError as error:
            raise _unreadable(str(error).removeprefix("image 0 of the batch: ")) from error
        return Photo(decoded.images, int(heights[0]), int(widths[0]))

    def _decode_with_pillow(self, file: Tensor) -> Photo:
        opened = self._pillow.open(Encoded([file]))
        heights, widths = opened.sizes
        plan = self._planner.plan(_ALONE, heights, widths)
        decoded = opened.decode(plan, lambda size: torch.empty(size, dtype=torch.uint8))
        if decoded.damage:
            raise _unreadable(decoded.damage[0])
        return Photo(decoded.images, int(heights[0]), int(widths[0]))

    def warm_up(self) -> None:
        """Decode what real requests may be like."""
        Image.init()
        for kind in ("JPEG", "PNG"):
            out = io.BytesIO()
            Image.new("RGB", (640, 480), "gray").save(out, kind)
            self.decode(check_images([out.getvalue()], 1)[0])


class DecodingThreads:
    """An executor, at most one of whose threads is at work on large images."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "decode")
        self._lock = threading.Lock()
        self._has_large = False
        self._large: deque[Callable[[], None]] = deque()
        """What waits until the large image at work is decoded."""
        self._at_work = 0

    def submit(self, work: Callable[[], None], *, is_large: bool = False) -> None:
        """Have `work`, which raises nothing, done by a thread. Raises RequestError (503)."""
        with self._lock:
            if is_large and len(self._large) >= MOST_LARGE:
                raise RequestError(503, "too many large images at once; try again later")
            if is_large and self._has_large:
                self._large.append(work)
                return
            self._has_large |= is_large
        self._pool.submit(self._run, work, is_large)

    def _run(self, work: Callable[[], None], is_large: bool) -> None:
        with self._lock:
            self._at_work += 1
        work()
        with self._lock:
            self._at_work -= 1
            following = self._large.popleft() if is_large and self._large else None
            if is_large and following is None:
                self._has_large = False
        if following is not None:
            self._pool.submit(self._run, following, is_large)

    def stop(self) -> bool:
        """Start nothing more; returns whether no thread is at work."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not self._at_work
