"""Decodes crops: one of a JPEG, or of all images of a batch, resized and normalized."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from custom_op.load import load

MAX_SHARE = 0.0125
"""Size of a side index at most, as a share of its file's: the default of `index_jpeg`."""
MAX_PIXELS = 250_000_000
"""Default of `max_pixels`: the largest photographs of phones have 200 million."""


class JpegError(RuntimeError):
    """The data cannot be decoded as requested; the message says why."""


@contextlib.contextmanager
def raising_jpeg_error() -> Iterator[None]:
    """torch raises all errors of the operators as RuntimeError; callers get JpegError."""
    try:
        yield
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
        index: what `index_jpeg` returned for the same file, so that decoding starts near the crop.
            The index of another file, or of an earlier version of it, is ignored.
        max_pixels: an image with more pixels raises JpegError.

    Returns:
        uint8 `(3, crop_height, crop_width)`, RGB, with channels_last strides.

    Raises:
        JpegError: the data is not a JPEG, truncated, damaged or not supported; or the box is
            outside the image.
    """
    load()
    with raising_jpeg_error():
        return torch.ops.custom_op.decode_and_crop_jpeg.default(
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
    """With `make_indexes`, for each image what `index_jpeg` returns; empty for an image that has
    failed or whose index fits."""


def decode_crop_resize_batch(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    size: int,
    *,
    indexes: Sequence[Tensor] | None = None,
    flip: Tensor | None = None,
    augment: Tensor | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.uint8,
    out: Tensor | None = None,
    num_threads: int = 0,
    max_pixels: int = MAX_PIXELS,
    mask_errors: bool = False,
    make_indexes: bool = False,
) -> DecodedBatch:
    """Decodes one crop of every image and resizes it to `size` x `size`, with the GIL released.

    With boxes `(N, V, 4)` it cuts V views of every image, one after the other, and reads the file's
    headers, tables and index once. The result then is `(N, V, 3, size, size)`, and `flip` and
    `augment` have a dimension more, too.

    Resizing is torch's antialiased bilinear filter for uint8, within 1 level. Only the pixels of
    the crop are decoded, and its rows are filtered while they are in cache.

    Args:
        jpegs: uint8 `(bytes,)` tensors.
        boxes: int64 `(N, 4)` or `(N, V, 4)`: top, left, height, width. In upright pixels: after
            the rotation that EXIF asks for, which is applied to the pixels, too.
        size: height and width of every result.
        indexes: what `index_jpeg` returned for each image; empty for an image without. An index
            that does not fit its file is ignored. Default: none.
        flip: bool `(N,)`, which results to mirror left to right. Default: none.
        augment: float32 `(N, K, 8)`: K operations for each image, applied in order to the resized
            and flipped crop; `custom_op.augment_ops` names them. Default: none. See below.
        mean, std: per channel, for values from 0 to 1: `(value / 255 - mean) / std`. For
            float32 only; by default values are scaled to the range 0 to 1.
        dtype: uint8 (default) or float32.
        out: tensor to write to, `(N, 3, size, size)`, contiguous or channels_last, pinned or not;
            its dtype replaces `dtype`. Default: a new channels_last tensor.
        num_threads: threads that work on the batch, including the caller. 0 (default): one per CPU.
            The result does not depend on it.
        max_pixels: an image with more pixels is an error. Default: MAX_PIXELS.
        mask_errors: mark images that cannot be decoded in `failed` instead of raising JpegError.
        make_indexes: make a side index of each image whose index is empty or does not fit, while
            its crop is decoded. It takes the time to pass the part of the file after the crop.

    Returns:
        The images, which are `out` if given, and what is known of each.

    Raises:
        JpegError: an image cannot be decoded as requested (the message gives its position in the
            batch), a tensor has the wrong dtype, shape or device, or `augment` has a value that is
            not allowed (the message names the image, the operation and the parameter).
        ValueError: `mean` or `std` has a value that is not allowed.

    Operations give what `torchvision.transforms.v2.functional` gives for uint8 tensors, within 1
    level (hue and gaussian_blur: 2), with these differences:

    - rotate, shear_x and shear_y with bilinear=0 take the nearest pixel of the exact coordinate.
      torchvision rounds coordinates to float32 first, so where one is half-way between two pixels,
      to about 1e-4 pixels, it may take the other one.
    - Fill colors are rounded to whole values. Pixels on the edge are as with torchvision's
      `fill=[red, green, blue]`, also for black, which `fill=None` blends in only once.
    """
    load()
    if out is None:
        out = torch.empty((*boxes.shape[:-1], size, size, 3), dtype=dtype).movedim(-1, -3)
    elif out.shape != (shape := (*boxes.shape[:-1], 3, size, size)):
        raise JpegError(f"out must have the shape {shape}; got {tuple(out.shape)}")
    _check_normalization(mean, std, out.dtype)
    if not jpegs:
        none = torch.empty(0, dtype=torch.bool)
        return DecodedBatch(out, none, none, [])
    with raising_jpeg_error():
        failed, stale, made, lengths = torch.ops.custom_op.decode_crop_resize_batch.default(
            list(jpegs),
            boxes,
            out,
            indexes=list(indexes or ()),
            flip=flip,
            augment=augment,
            affine=_affine(mean, std),
            max_pixels=max_pixels,
            num_threads=num_threads,
            mask_errors=mask_errors,
            index_share=MAX_SHARE if make_indexes else 0.0,
        )
    new_indexes = list(made.split(lengths.tolist())) if make_indexes else []
    return DecodedBatch(out, failed, stale, new_indexes)


def _check_normalization(
    mean: Sequence[float] | None, std: Sequence[float] | None, dtype: torch.dtype
) -> None:
    if dtype == torch.uint8 and (mean is not None or std is not None):
        raise ValueError("mean and std need the dtype float32; got uint8")
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) != 3:
            raise ValueError(f"{name}={values!r}: must be 3 numbers, one per channel")
    if std is not None and min(std) <= 0:
        raise ValueError(f"std={std!r}: must be greater than 0")


def _affine(mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """float32 `(2, 3)`: the scale and the bias that normalize a value from 0 to 255."""
    spread, shift = std or (1.0, 1.0, 1.0), mean or (0.0, 0.0, 0.0)
    scales = [1 / (255 * each) for each in spread]
    biases = [-value / each for value, each in zip(shift, spread, strict=True)]
    return torch.tensor([scales, biases], dtype=torch.float32)
