"""Typed functions for the operators on JPEGs: decode a crop of one image or crops of a batch, read
headers, make side indexes, rewrite as baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_op.load import FAKES, load

MAX_SHARE = 0.0125
"""Largest size of a side index, as a fraction of its file's size: the default of `index_jpeg`."""
MAX_PIXELS = 250_000_000
"""Default of `max_pixels`: the largest photos of phones have 200 million pixels."""


class JpegError(RuntimeError):
    """The data cannot be decoded as requested; the message says why."""


@contextlib.contextmanager
def _operators() -> Iterator[Any]:
    """Yields the loaded operators. Turns their errors, which torch raises as RuntimeError, into
    JpegError."""
    load()
    try:
        yield torch.ops.custom_op
    except RuntimeError as error:
        raise JpegError(str(error)) from None


def decode_and_crop_jpeg(
    data: Tensor,
    crop_y: int,
    crop_x: int,
    crop_height: int,
    crop_width: int,
    *,
    index: Tensor | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Decodes the pixels of one crop, bit-identical to decoding the whole image and cropping it.

    Args:
        data: uint8 `(bytes,)` on the CPU, one encoded JPEG. Baseline, progressive or arithmetic
            coding; color, grayscale (returned as three equal channels) or CMYK.
        crop_y, crop_x: top and left edge, in stored pixels (before any EXIF rotation).
        crop_height, crop_width: size of the crop; the box must lie inside the image.
        index: the result of `index_jpeg` for the same file, so that decoding starts near the crop.
            The index of another file, or of an earlier version of it, is ignored.
        max_pixels: an image with more pixels raises JpegError.

    Returns:
        uint8 `(3, crop_height, crop_width)`, RGB, with channels_last strides.

    Raises:
        JpegError: the data is not a JPEG, truncated, damaged or not supported; or the box is
            outside the image.
    """
    with _operators() as operators:
        return operators.decode_and_crop_jpeg.default(
            data, crop_y, crop_x, crop_height, crop_width, index=index, max_pixels=max_pixels
        )


class DecodedBatch(NamedTuple):
    """The result of `decode_crop_resize_batch` for N images."""

    images: Tensor
    """`(N, 3, size, size)`, or `(N, V, 3, size, size)`; zeros in place of failed images."""
    failed: Tensor
    """bool `(N,)`: images that cannot be decoded. An image has failed if any of its views has."""
    stale: Tensor
    """bool `(N,)`: images that were decoded although their side index does not fit the file."""
    new_indexes: list[Tensor]
    """With `make_indexes`, the result of `index_jpeg` for each image; empty for images that failed
    or whose index fits."""


def decode_crop_resize_batch(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    size: int,
    *,
    indexes: Sequence[Tensor] | None = None,
    flip: Tensor | None = None,
    augment: Tensor | None = None,
    out: Tensor | None = None,
    max_pixels: int = MAX_PIXELS,
    mask_errors: bool = False,
    make_indexes: bool = False,
) -> DecodedBatch:
    """Decodes one crop of every image and resizes it to `size` x `size`, with the GIL released.

    With boxes `(N, V, 4)` it cuts V views of every image in turn, and reads the file's headers,
    tables and index once. The result is then `(N, V, 3, size, size)`, and `flip` and `augment`
    have the additional dimension, too.

    Resizing is torch's antialiased bilinear filter for uint8, within 1 level. Only the pixels of
    the crop are decoded, and its rows are filtered while they are in cache.

    Args:
        jpegs: uint8 `(bytes,)` tensors.
        boxes: int64 `(N, 4)` or `(N, V, 4)`: top, left, height, width. In pixels of
            the upright image: the operator applies the EXIF orientation to the pixels.
        size: height and width of every result.
        indexes: the result of `index_jpeg` for each image; empty for an image without one. An
            index that does not fit its file is ignored. Default: none.
        flip: bool `(N,)`, which results to mirror left to right. Default: none.
        augment: float32 `(N, K, 8)`: K operations for each image, applied in order to the resized
            and flipped crop; `custom_op.augment_ops` names them. Default: none. See below.
        out: uint8 tensor to write to, `(N, 3, size, size)`, contiguous or channels_last, pinned or
            not, such as a part of a larger batch. Default: a new channels_last tensor.
        max_pixels: an image with more pixels is an error. Default: MAX_PIXELS.
        mask_errors: mark images that cannot be decoded in `failed` instead of raising JpegError.
        make_indexes: make a side index of each image whose index is empty or does not fit, while
            its crop is decoded. This costs the time to parse the part of the file after the crop.

    Returns:
        A DecodedBatch, whose images are `out` if given.

    Raises:
        JpegError: an image cannot be decoded as requested (the message gives its position in the
            batch), a tensor has the wrong dtype, shape or device, or `augment` has a value that is
            not allowed (the message names the image, the operation and the parameter).

    Operations give what `torchvision.transforms.v2.functional` gives for uint8 tensors, within 1
    level (hue and gaussian_blur: 2), with these differences:

    - rotate, shear_x and shear_y with bilinear=0 take the nearest pixel of the exact coordinate.
      torchvision rounds coordinates to float32 first, so where one is half-way between two pixels,
      to about 1e-4 pixels, it may take the other one.
    - Fill colors are rounded to whole values. Pixels on the edge are as with torchvision's
      `fill=[red, green, blue]`, also for black, which `fill=None` blends in only once.
    """
    if out is None:
        out = torch.empty((*boxes.shape[:-1], size, size, 3), dtype=torch.uint8).movedim(-1, -3)
    elif out.shape != (shape := (*boxes.shape[:-1], 3, size, size)):
        raise JpegError(f"out must have the shape {shape}; got {tuple(out.shape)}")
    if not jpegs:
        none = torch.empty(0, dtype=torch.bool)
        return DecodedBatch(out, none, none, [])
    with _operators() as operators:
        failed, stale, made, lengths = operators.decode_crop_resize_batch.default(
            list(jpegs),
            boxes,
            out,
            indexes=list(indexes or ()),
            flip=flip,
            augment=augment,
            max_pixels=max_pixels,
            mask_errors=mask_errors,
            index_share=MAX_SHARE if make_indexes else 0.0,
        )
    new_indexes = list(made.split(lengths.tolist())) if make_indexes else []
    return DecodedBatch(out, failed, stale, new_indexes)


def jpeg_headers(jpegs: Sequence[Tensor]) -> Tensor:
    """Returns height, width and EXIF orientation of every image; parses each header once.

    Args:
        jpegs: uint8 `(bytes,)` tensors.

    Returns:
        int64 `(N, 3)`: the stored height and width, and the orientation: 1 to 8, or 1 if the file
        has none. The row of a file whose header cannot be read is zeros, so that one damaged file
        does not fail a batch; `jpeg_size` of that file raises the reason.

    Raises:
        JpegError: a tensor of the wrong dtype, shape or device.
    """
    if not jpegs:
        return torch.empty((0, 3), dtype=torch.int64)
    with _operators() as operators:
        return operators.jpeg_headers.default(list(jpegs), mask_errors=True)


def jpeg_size(data: Tensor) -> tuple[int, int]:
    """Returns the stored `(height, width)` of one JPEG. Raises JpegError."""
    with _operators() as operators:
        height, width, _ = operators.jpeg_headers.default([data], mask_errors=False)[0].tolist()
    return height, width


def index_jpeg(
    data: Tensor, *, max_share: float = MAX_SHARE, max_pixels: int = MAX_PIXELS
) -> Tensor:
    """Indexes a JPEG, so that crops of it decode without the data before them.

    The index holds positions at which decoding can start, with the DC predictors there, as many as
    its size allows. It belongs to this file alone: its size, its header, both ends of its data and
    a few places between them, and the bytes where decoding starts, are compared with what the
    index was made of. A changed file decodes as if it had no index, and so does any file with a
    damaged index. Decoding compares only what it uses; the same file always gives the same index,
    so `torch.equal` tells whether an index is the one of a file.

    Args:
        data: uint8 `(bytes,)`, one encoded JPEG.
        max_share: largest size of the index, as a fraction of the file's size. With more entries
            less is decoded, but beyond the default they save little.
        max_pixels: an image with more pixels raises JpegError.

    Returns:
        uint8 `(bytes,)`; empty if the file cannot have an index: it has restart markers, is not
        baseline, is damaged, or is too small for one of this share (4 KB). Files with restart
        markers decode from those. With a marker per row of MCUs, or less often, that takes 18 to
        57 % longer than with an index.

    Raises:
        JpegError: the data is not a JPEG.
    """
    with _operators() as operators:
        return operators.index_jpeg.default(data, max_share=max_share, max_pixels=max_pixels)


def to_baseline(data: Tensor, *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Rewrites a progressive JPEG as a baseline one, without loss, so that it can have an index.

    The coefficients stay the same. The Huffman tables are optimized, and there are no restart
    markers. EXIF, ICC and other segments are kept. The result is decoded and compared with the
    original before it is returned. Files with arithmetic coding or several scans become baseline,
    too. A file that is baseline already is returned as it is, unchecked.

    Args:
        data: uint8 `(bytes,)`, one encoded JPEG.
        max_pixels: an image with more pixels raises JpegError.

    Returns:
        uint8 `(bytes,)`.

    Raises:
        JpegError: the file is damaged or not supported, or its pixels would change; keep the
            original.
    """
    with _operators() as operators:
        return operators.to_baseline.default(data, max_pixels=max_pixels)


# Fake kernels return the shapes of results, for tracing without data. They need only some of their
# operators' arguments.


def _fake_crop(
    data: Tensor,
    crop_y: int,  # noqa: ARG001
    crop_x: int,  # noqa: ARG001
    crop_height: int,
    crop_width: int,
    **_: object,
) -> Tensor:
    _check_bytes(data)
    return data.new_empty((crop_height, crop_width, 3)).permute(2, 0, 1)


def _fake_batch(
    jpegs: list[Tensor], boxes: Tensor, out: Tensor, *, index_share: float, **_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_bytes(*jpegs)
    shape = (len(jpegs), *boxes.shape[1:-1], 3, out.shape[-1], out.shape[-1])
    torch._check(out.shape == shape, lambda: f"out must have the shape {shape}; got {out.shape}")
    new_indexes = boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)
    lengths = boxes.new_empty(shape[0] if index_share > 0 else 0)
    failed, stale = (boxes.new_empty(shape[0], dtype=torch.bool) for _ in range(2))
    return failed, stale, new_indexes, lengths


def _fake_headers(jpegs: list[Tensor], **_: object) -> Tensor:
    _check_bytes(*jpegs)
    return jpegs[0].new_empty((len(jpegs), 3), dtype=torch.int64)


def _fake_bytes(data: Tensor, **_: object) -> Tensor:
    """Returns the fake result of an operator that returns any number of bytes."""
    _check_bytes(data)
    return data.new_empty(torch.library.get_ctx().new_dynamic_size())


def _check_bytes(*tensors: Tensor) -> None:
    right = all(data.dim() == 1 and data.dtype == torch.uint8 for data in tensors)
    torch._check(right, lambda: "every file must be a 1-D tensor of uint8")


FAKES.update(
    decode_and_crop_jpeg=_fake_crop,
    decode_crop_resize_batch=_fake_batch,
    jpeg_headers=_fake_headers,
    index_jpeg=_fake_bytes,
    to_baseline=_fake_bytes,
)
