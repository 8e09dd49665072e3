"""The images of a batch of requests: the operator decodes all JPEGs in one call, Pillow the rest.

The pixels are those of `entry_point.predict`. Requests come from strangers, so size and format are
checked before anything is decoded, and large images are decoded one after another.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import custom_op
from entry_point.config.data_config import DataConfig
from entry_point.data.decode.allocation import empty_images, reused_memory
from entry_point.data.decode.pillow_images import decode_files
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.orientation import upright_size
from entry_point.inference import RequestError

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names. Its other formats are rare, and some start other programs."""

_JPEG = b"\xff\xd8\xff"
_MEGA = 10**6
# Pillow holds a whole image in memory, up to 7 bytes per pixel.
_SMALL_PIXELS = 16 * _MEGA


class RequestImages:
    """Decodes encoded images to what the model takes, for several workers."""

    def __init__(
        self, image_size: int, resize: int, *, use_operator: bool, cores: int, max_megapixels: int
    ) -> None:
        data = DataConfig(image_size=image_size, resize=resize)
        self._planner, self._side = CropPlanner(data, train=False, seed=0), image_size
        self._use_operator = use_operator
        self._max_pixels = max_megapixels * _MEGA
        self._pool = ThreadPoolExecutor(cores, thread_name_prefix="pillow")
        self._one_large = threading.Lock()

    def decode(
        self, contents: Sequence[bytes | bytearray], threads: int
    ) -> tuple[Tensor, dict[int, Exception]]:
        """uint8 `(N, 3, image_size, image_size)`, and the error for each position that failed."""
        files = [_tensor(content) for content in contents]
        images = empty_images(reused_memory, len(files), self._side)
        errors: dict[int, Exception] = {}
        left = (
            self._decode_jpegs(files, images, errors, threads)
            if self._use_operator
            else range(len(files))
        )
        sizes = {i: self._pixels(contents[i], errors, i) for i in left}
        small = [i for i in left if i not in errors and sizes[i] <= _SMALL_PIXELS]
        large = [i for i in left if i not in errors and sizes[i] > _SMALL_PIXELS]
        one = self._decode_with_pillow
        if len(small) > 1:
            list(self._pool.map(lambda i: one(files[i], images[i : i + 1], errors, i), small))
        else:
            for i in small:
                one(files[i], images[i : i + 1], errors, i)
        for i in large:
            with self._one_large:
                one(files[i], images[i : i + 1], errors, i)
        return images, errors

    def _decode_jpegs(
        self, files: list[Tensor], images: Tensor, errors: dict[int, Exception], threads: int
    ) -> list[int]:
        """Decode what the operator can; returns the positions that are left for Pillow."""
        jpegs = [i for i, file in enumerate(files) if bytes(file[:3].numpy()) == _JPEG]
        headers = custom_op.jpeg_headers([files[i] for i in jpegs]).numpy()
        for i, (height, width, _) in zip(jpegs, headers, strict=True):
            self._check_pixels(int(height * width), errors, i)
        kept = [place for place, i in enumerate(jpegs) if headers[place, 0] and i not in errors]
        jpegs = [jpegs[place] for place in kept]
        if jpegs:
            decoded, failed = self._operator_batch(
                [files[i] for i in jpegs], headers[kept], threads
            )
            images[jpegs] = decoded
            jpegs = [i for i, bad in zip(jpegs, failed.tolist(), strict=True) if not bad]
        return [i for i in range(len(files)) if i not in errors and i not in set(jpegs)]

    def _operator_batch(
        self, files: list[Tensor], headers: np.ndarray, threads: int
    ) -> tuple[Tensor, Tensor]:
        heights, widths = upright_size(*headers.T)
        boxes, _ = self._planner.plan(0, np.arange(len(files)), heights, widths)
        return custom_op.decode_crop_resize_batch_masked(
            files,
            torch.from_numpy(boxes),
            self._side,
            out=empty_images(reused_memory, len(files), self._side),
            num_threads=threads,
            max_pixels=self._max_pixels,
        )

    def _pixels(self, content: bytes | bytearray, errors: dict[int, Exception], i: int) -> int:
        """The number of pixels that an image's header states; only checked headers count."""
        try:
            with Image.open(io.BytesIO(content)) as image:
                pixels, kind = image.width * image.height, image.format
        except Image.DecompressionBombError:
            pixels, kind = self._max_pixels + 1, "JPEG"
        except Exception:  # Pillow raises errors of many types for damaged files
            errors[i] = RequestError(400, "is not an image that Pillow can read")
            return 0
        if kind not in FORMATS:
            errors[i] = RequestError(400, f"is a {kind} file; send one of {', '.join(FORMATS)}")
        self._check_pixels(pixels, errors, i)
        return pixels

    def _check_pixels(self, pixels: int, errors: dict[int, Exception], i: int) -> None:
        if pixels > self._max_pixels:
            most = self._max_pixels // _MEGA
            errors[i] = RequestError(413, f"has too many pixels; at most {most} megapixels")

    def _decode_with_pillow(
        self, file: Tensor, image: Tensor, errors: dict[int, Exception], i: int
    ) -> None:
        decoded, damage = decode_files(
            [file], self._planner, 0, np.zeros(1, np.int64), reused_memory
        )
        image[:] = decoded
        if damage:
            reason = damage[0].partition("\n")[0]
            errors[i] = RequestError(400, f"cannot be read as an image: {reason}")


def _tensor(content: bytes | bytearray) -> Tensor:
    """The bytes as uint8 `(bytes,)`, without a copy if they can be written to."""
    writable = content if isinstance(content, bytearray) else bytearray(content)
    return torch.frombuffer(writable, dtype=torch.uint8) if writable else torch.empty(0).byte()
