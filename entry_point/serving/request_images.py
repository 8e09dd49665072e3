"""Decodes the images of requests, before they join a batch.

Requests come from strangers. Formats and pixels are checked by the headers before any memory is
taken. An image that takes long or much memory waits for others of its kind only: they have a
thread of their own. The pixels are those of `entry_point.predict`.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import custom_op
from entry_point.config.data_config import Crop, DataConfig
from entry_point.config.serve_config import ServerConfig
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.metadata import TooManyPixelsError
from entry_point.data.decode.operator import OperatorDecoder
from entry_point.data.decode.pillow import FORMATS, MOST_PIXELS, PillowDecoder, open_image
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.samples import Samples
from entry_point.data.sources.source import Encoded
from entry_point.serving.formats import RequestError

T = TypeVar("T")


class Photo(NamedTuple):
    """A decoded image: the model's view of it, and the upright image's size in pixels."""

    view: Tensor
    """uint8 `(3, image_size, image_size)`."""
    height: int
    width: int


_OPERATOR_BYTES_PER_PIXEL = 8
"""Memory that the operator takes of progressive JPEGs, whose coefficients it holds: 2 for each of
up to four components. Others take less than 1."""
BYTES_PER_PIXEL = {"JPEG": 13, "MPO": 13, "PNG": 13, "GIF": 13, "AVIF": 15}
"""Memory that Pillow takes, measured: progressive JPEGs and 16-bit PNGs take most."""
_MOST_BYTES_PER_PIXEL = 21
"""Of the other formats: WebP that its EXIF data turns, TIFF with floats."""

_ALONE = Samples.of(0, np.zeros(1, np.int64))
_JPEG = b"\xff\xd8\xff"
_MEGA = 10**6
MAX_PIXELS = 89_478_485
"""Of one image: 256 MB of RGB. Datasets may hold larger ones."""
_SMALL_BYTES = 200 * _MEGA
"""One image per thread may take this; larger ones are decoded one after another."""
_PIXELS_PER_BYTE = 8
"""Of a whole request: photos have 2 to 8 pixels per byte."""
MOST_LARGE = 64
"""Large images that may wait or be decoded: a quarter of the queue. The rest is for small ones."""


@dataclass(frozen=True)
class RequestImage:
    """An encoded image with what its header states."""

    content: bytes | bytearray
    memory: int
    """Bytes that decoding takes."""
    for_operator: bool


def check_images(contents: Sequence[bytes | bytearray], config: ServerConfig) -> list[RequestImage]:
    """The images of one request; raises RequestError unless all are within the limits."""
    most = max(MAX_PIXELS, _PIXELS_PER_BYTE * config.max_payload_mb * 2**20)
    images, together = [], 0
    for number, content in enumerate(contents):
        try:
            kind, pixels, for_operator = _read_header(content)
            if pixels > MAX_PIXELS:
                must = f"at most {MAX_PIXELS // _MEGA} megapixels"
                raise RequestError(413, f"has too many pixels; {must}")
        except RequestError as error:
            raise numbered(error, number) from error
        together += pixels
        if together > most:
            must = f"must have at most {most // _MEGA} megapixels"
            raise RequestError(413, f"the images of a request together: {must}")
        each = BYTES_PER_PIXEL.get(kind, _MOST_BYTES_PER_PIXEL)
        memory = pixels * (_OPERATOR_BYTES_PER_PIXEL if for_operator else each)
        images.append(RequestImage(content, memory, for_operator))
    return images


def numbered(error: RequestError, number: int) -> RequestError:
    """The error, with the number of the image in its request."""
    return RequestError(error.status_code, f"image {number}: {error}")


def _read_header(content: bytes | bytearray) -> tuple[str, int, bool]:
    """The format, the number of pixels, and whether the operator decodes it."""
    if content.startswith(_JPEG):
        height, width, _ = custom_op.jpeg_headers([_tensor(content)])[0].tolist()
        if height:
            return "JPEG", height * width, True
    try:
        with open_image(content) as image:
            return str(image.format), image.width * image.height, False
    except TooManyPixelsError:
        return "", 2 * MOST_PIXELS, False
    except Exception as error:  # Pillow raises errors of many types for damaged files
        formats = ", ".join(FORMATS)
        raise RequestError(400, f"is not an image that can be read; send {formats}") from error


class RequestImages:
    """Decodes encoded images to what the model takes, in threads."""

    def __init__(
        self,
        image_size: int,
        resize: int,
        config: ServerConfig,
        cores: int,
        crop: Crop = "center",
    ) -> None:
        data = DataConfig(image_size=image_size, resize=resize, crop=crop)
        self._planner, self._side = CropPlanner(data, train=False, seed=0), image_size
        self._config = config
        threads = max(2, cores)
        self.share = threads // 2
        """Images of one request to decode at the same time: others find a free thread."""
        self._small = ThreadPoolExecutor(threads, "decode")
        self._large = ThreadPoolExecutor(1, "decode-large")
        self._large_waiting = 0
        self._unfinished: set[Future[object]] = set()

    async def check(self, contents: Sequence[bytes | bytearray]) -> list[RequestImage]:
        """See `check_images`."""
        return await self._run(self._small, lambda: check_images(contents, self._config))

    async def decode(self, image: RequestImage) -> Photo:
        """Raises RequestError."""
        if image.memory <= _SMALL_BYTES:
            return await self._run(self._small, lambda: self._decode(image))
        if self._large_waiting >= MOST_LARGE:
            raise RequestError(503, "too many large images at once; try again later")
        self._large_waiting += 1
        try:
            return await self._run(self._large, lambda: self._decode(image))
        finally:
            self._large_waiting -= 1

    def warm_up(self) -> None:
        """Decode what real requests may be like."""
        Image.init()
        for kind in ("JPEG", "PNG"):
            out = io.BytesIO()
            Image.new("RGB", (640, 480), "gray").save(out, kind)
            (image,) = check_images([out.getvalue()], self._config)
            self._decode(image)

    def stop(self) -> bool:
        """Decode nothing more; returns whether nothing is being decoded."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)
        return not self._unfinished

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        future = pool.submit(work)
        self._unfinished.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._unfinished.discard)
        return await asyncio.wrap_future(future)

    def _decode(self, image: RequestImage) -> Photo:
        decoder = OperatorDecoder() if image.for_operator else PillowDecoder()
        opened = decoder.open(Encoded([_tensor(image.content)]))
        heights, widths = opened.sizes
        decoded = opened.decode(self._planner.plan(_ALONE, heights, widths), reused_memory)
        if decoded.damage:
            reason = decoded.damage[0].partition("\n")[0]
            raise RequestError(400, f"cannot be read as an image: {reason}")
        return Photo(decoded.images[0], int(heights[0]), int(widths[0]))


def _tensor(content: bytes | bytearray) -> Tensor:
    """The bytes as uint8 `(bytes,)`, without a copy if they can be written to."""
    writable = content if isinstance(content, bytearray) else bytearray(content)
    return torch.frombuffer(writable, dtype=torch.uint8) if writable else torch.empty(0).byte()
