"""Batches: one call decodes, crops, resizes and normalizes N images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor

from custom_op.crop import MAX_PIXELS
from custom_op.encoded_images import Packed, operator_arguments
from custom_op.jpeg_errors import JpegError, raising_jpeg_error
from custom_op.load import load


class DecodeOptions(TypedDict, total=False):
    """Keyword arguments of all batch functions, see `decode_crop_resize_batch`."""

    indexes: Sequence[Tensor] | Packed | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    num_threads: int
    color: Literal["rgb", "ycbcr"]
    apply_orientation: bool
    max_pixels: int
    stale_indexes: Tensor | None


class BatchOptions(DecodeOptions, total=False):
    """Those of the functions that return one tensor."""

    flip: Tensor | None
    augment: Tensor | None
    dtype: torch.dtype
    out: Tensor | None


def decode_crop_resize_batch(
    jpegs: Sequence[Tensor] | Packed, boxes: Tensor, size: int, **options: Unpack[BatchOptions]
) -> Tensor:
    """Decodes one crop of every image and resizes it to `size` x `size`, with the GIL released.

    With boxes `(N, V, 4)` it cuts V views of every image, one after the other, and reads the file's
    headers, tables and index once. The result then is `(N, V, 3, size, size)`, and `flip` and
    `augment` have a dimension more, too. `decode_views_masked` cuts views of several sizes.

    Resizing is torch's antialiased bilinear filter for uint8, within 1 level. Only the pixels of
    the crop are decoded, and its rows are filtered while they are in cache.

    Args:
        jpegs: a list of uint8 `(bytes,)` tensors; or a tuple of one uint8 buffer and int64 offsets
            and lengths, both `(N,)`, so that images in a memory-mapped file need no copy.
        boxes: int64 `(N, 4)` or `(N, V, 4)`: top, left, height, width. In upright pixels, see
            `apply_orientation`.
        size: height and width of every result.
        indexes: what `index_jpeg` returned for each image, in the same form as `jpegs`; empty for
            an image without. An index that does not fit its file is ignored. Default: none.
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
        color: "rgb" (default), or "ycbcr" to skip the conversion to RGB (full-range JFIF YCbCr).
        apply_orientation: apply the EXIF orientation to boxes and pixels (default). If False, boxes
            and pixels are as stored.
        max_pixels: an image with more pixels is an error. Default: MAX_PIXELS.
        stale_indexes: bool `(N,)` to write to: True for images that were decoded while their index
            turned out not to fit the file. Decoding compares only what it uses; `is_index_of`
            compares everything. Default: none.

    Returns:
        The batch: `out`, or the new tensor.

    Raises:
        JpegError: an image cannot be decoded as requested (the message gives its position in the
            batch), a tensor has the wrong dtype, shape or device, or `augment` has a value that is
            not allowed (the message names the image, the operation and the parameter).
        ValueError: `color`, `mean` or `std` has a value that is not allowed, also `color` with
            `augment`.

    Operations give what `torchvision.transforms.v2.functional` gives for uint8 tensors, within 1
    level (hue and gaussian_blur: 2), with these differences:

    - rotate, shear_x and shear_y with bilinear=0 take the nearest pixel of the exact coordinate.
      torchvision rounds coordinates to float32 first, so where one is half-way between two pixels,
      to about 1e-4 pixels, it may take the other one.
    - Fill colors are rounded to whole values. Pixels on the edge are as with torchvision's
      `fill=[red, green, blue]`, also for black, which `fill=None` blends in only once.
    """
    return _decode_batch(jpegs, boxes, size, mask_errors=False, **options)[0]


def decode_crop_resize_batch_masked(
    jpegs: Sequence[Tensor] | Packed, boxes: Tensor, size: int, **options: Unpack[BatchOptions]
) -> tuple[Tensor, Tensor]:
    """Like `decode_crop_resize_batch`, but masks images that cannot be decoded.

    Returns:
        The batch, with zeros in place of failed images; and bool `(N,)`, True for failed images. An
        image has failed if any of its views has.
    """
    return _decode_batch(jpegs, boxes, size, mask_errors=True, **options)


def _decode_batch(
    jpegs: Sequence[Tensor] | Packed,
    boxes: Tensor,
    size: int,
    *,
    mask_errors: bool,
    flip: Tensor | None = None,
    augment: Tensor | None = None,
    dtype: torch.dtype = torch.uint8,
    out: Tensor | None = None,
    **options: Unpack[DecodeOptions],
) -> tuple[Tensor, Tensor]:
    shape = (*boxes.shape[:-1], 3, size, size)
    if out is None:
        out = empty_views(boxes, size, dtype)
    elif out.shape != shape:
        raise JpegError(f"out must have the shape {shape}; got {tuple(out.shape)}")
    failed = decode_into([out], jpegs, boxes, flip, augment, mask_errors=mask_errors, **options)
    return out, failed


def empty_views(boxes: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Memory for views of one size, by pixel: `(N, 3, size, size)` or `(N, V, 3, size, size)`."""
    return torch.empty((*boxes.shape[:-1], size, size, 3), dtype=dtype).movedim(-1, -3)


def decode_into(
    outs: list[Tensor],
    jpegs: Sequence[Tensor] | Packed,
    boxes: Tensor,
    flip: Tensor | None,
    augment: Tensor | None,
    *,
    mask_errors: bool,
    indexes: Sequence[Tensor] | Packed | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    color: Literal["rgb", "ycbcr"] = "rgb",
    num_threads: int = 0,
    apply_orientation: bool = True,
    max_pixels: int = MAX_PIXELS,
    stale_indexes: Tensor | None = None,
) -> Tensor:
    """Writes the views of each size to its tensor; which images have failed, bool `(N,)`."""
    load()
    images, offsets, lengths = operator_arguments(jpegs)
    index_buffers, index_offsets, index_lengths = operator_arguments(indexes or [])
    _check_choices(color, mean, std, outs[0].dtype)
    if augment is not None and color != "rgb":
        raise ValueError(f'color={color!r}: must be "rgb" with augment, which changes RGB values')
    if not images:
        return torch.empty(0, dtype=torch.bool)
    with raising_jpeg_error():
        failed: Tensor = torch.ops.custom_op.decode_crop_resize_batch.default(
            images,
            offsets,
            lengths,
            boxes,
            indexes=index_buffers,
            index_offsets=index_offsets,
            index_lengths=index_lengths,
            flip=flip,
            affine=_affine(mean, std),
            mask_errors=mask_errors,
            apply_orientation=apply_orientation,
            ycbcr=color == "ycbcr",
            max_pixels=max_pixels,
            num_threads=num_threads,
            outs=outs,
            augment=augment,
            stale_indexes=stale_indexes,
        )
    return failed


def _check_choices(
    color: str,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    dtype: torch.dtype,
) -> None:
    if color not in ("rgb", "ycbcr"):
        raise ValueError(f'color={color!r}: must be "rgb" or "ycbcr"')
    if dtype == torch.uint8 and (mean is not None or std is not None):
        raise ValueError("mean and std need the dtype float32; got uint8")
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) != 3:
            raise ValueError(f"{name}={values!r}: must be 3 numbers, one per channel")
    if std is not None and min(std) <= 0:
        raise ValueError(f"std={std!r}: must be greater than 0")


def _affine(mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """float32 `(2, 3)`: the scale and the bias that normalize a value from 0 to 255."""
    shift = torch.tensor(mean or (0.0, 0.0, 0.0), dtype=torch.float64)
    spread = torch.tensor(std or (1.0, 1.0, 1.0), dtype=torch.float64)
    return torch.stack((1 / (255 * spread), -shift / spread)).float()
