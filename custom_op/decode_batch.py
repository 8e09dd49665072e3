"""Batches: N images decoded, cropped, resized and normalised by one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from custom_op.crop import MAX_PIXELS
from custom_op.jpeg_errors import JpegError
from custom_op.load import load

Packed = tuple[Tensor, Tensor, Tensor]
"""`(buffer, offsets, lengths)`: images in one uint8 tensor, at int64 offsets in bytes."""


@overload
def decode_crop_resize_batch(
    jpegs: Sequence[Tensor] | Packed,
    boxes: Tensor,
    size: int,
    *,
    flip: Tensor | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.uint8,
    out: Tensor | None = None,
    num_threads: int = 0,
    on_error: Literal["raise"] = "raise",
    color: Literal["rgb", "ycbcr"] = "rgb",
    scaled_decode: bool = False,
    apply_orientation: bool = True,
    max_pixels: int = MAX_PIXELS,
) -> Tensor: ...


@overload
def decode_crop_resize_batch(
    jpegs: Sequence[Tensor] | Packed,
    boxes: Tensor,
    size: int,
    *,
    flip: Tensor | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.uint8,
    out: Tensor | None = None,
    num_threads: int = 0,
    on_error: Literal["mask"],
    color: Literal["rgb", "ycbcr"] = "rgb",
    scaled_decode: bool = False,
    apply_orientation: bool = True,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Tensor, Tensor]: ...


def decode_crop_resize_batch(
    jpegs: Sequence[Tensor] | Packed,
    boxes: Tensor,
    size: int,
    *,
    flip: Tensor | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.uint8,
    out: Tensor | None = None,
    num_threads: int = 0,
    on_error: Literal["raise", "mask"] = "raise",
    color: Literal["rgb", "ycbcr"] = "rgb",
    scaled_decode: bool = False,
    apply_orientation: bool = True,
    max_pixels: int = MAX_PIXELS,
) -> Tensor | tuple[Tensor, Tensor]:
    """Decodes one crop of every image and resizes it to `size` x `size`, GIL released.

    Resizing is torch's antialiased bilinear filter for uint8, within 1 level. Only the pixels of
    the crop are decoded, and its rows are filtered while they are in cache.

    Args:
        jpegs: a list of uint8 `(bytes,)` tensors; or a tuple of one uint8 buffer and int64 offsets
            and lengths, both `(N,)`, so that images in a memory-mapped file need no copy.
        boxes: int64 `(N, 4)`: top, left, height, width. In upright pixels, see `apply_orientation`.
        size: height and width of every result.
        flip: bool `(N,)`, which results to mirror left to right.
        mean, std: per channel, for values from 0 to 1: `(value / 255 - mean) / std`. For floating
            dtypes only; without them values are scaled to 0 ... 1.
        dtype: uint8, float32, float16 or bfloat16.
        out: where to write, `(N, 3, size, size)`, contiguous or channels_last, pinned or not; its
            dtype counts. By default a new channels_last tensor.
        num_threads: how many threads work on the batch, the caller among them; 0 for one per CPU.
            The result does not depend on it.
        on_error: "raise" a JpegError that names the image's position, or "mask": return which
            images failed beside the batch, and leave their slots zero.
        color: "ycbcr" leaves out the conversion to RGB (full-range JFIF YCbCr).
        scaled_decode: decode at 1/2, 1/4 or 1/8 of the size while that is at least twice `size`:
            much faster for large crops, but not the same pixels.
        apply_orientation: apply the EXIF orientation to boxes and pixels. If False, boxes and
            pixels are as stored.
        max_pixels: images of more pixels are refused.

    Returns:
        The batch, or `(batch, failed)` with bool `(N,)` when `on_error="mask"`.
    """
    load()
    images, offsets, lengths = _unpack(jpegs)
    if out is None:
        count = len(images) if offsets is None else len(offsets)
        out = torch.empty(
            (count, 3, size, size), dtype=dtype, memory_format=torch.channels_last
        )  # fmt: skip
    _check_choices(on_error, color, mean, std, out.dtype)
    if len(images) == 0:
        return (out, torch.empty(0, dtype=torch.bool)) if on_error == "mask" else out
    try:
        failed = torch.ops.custom_op.decode_crop_resize_batch.default(
            images,
            offsets,
            lengths,
            boxes,
            size,
            flip=flip,
            affine=_affine(mean, std),
            mask_errors=on_error == "mask",
            apply_orientation=apply_orientation,
            scaled_decode=scaled_decode,
            ycbcr=color == "ycbcr",
            max_pixels=max_pixels,
            num_threads=num_threads,
            out=out,
        )
    except RuntimeError as error:
        raise JpegError(str(error)) from None
    return (out, failed) if on_error == "mask" else out


def _unpack(
    jpegs: Sequence[Tensor] | Packed,
) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
    if isinstance(jpegs, tuple):
        buffer, offsets, lengths = jpegs
        return [buffer], offsets, lengths
    return list(jpegs), None, None


def _check_choices(
    on_error: str,
    color: str,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    dtype: torch.dtype,
) -> None:
    if on_error not in ("raise", "mask"):
        raise ValueError(f'on_error={on_error!r}: must be "raise" or "mask"')
    if color not in ("rgb", "ycbcr"):
        raise ValueError(f'color={color!r}: must be "rgb" or "ycbcr"')
    if dtype == torch.uint8 and (mean is not None or std is not None):
        raise ValueError("mean and std need a floating dtype; got uint8")
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) != 3:
            raise ValueError(f"{name}={values!r}: must be 3 numbers, one per channel")
    if std is not None and min(std) <= 0:
        raise ValueError(f"std={std!r}: must be greater than 0")


def _affine(mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """Float32 `(2, 3)`: the scale and the bias that normalise a value from 0 to 255."""
    shift = torch.tensor(mean or (0.0, 0.0, 0.0), dtype=torch.float64)
    spread = torch.tensor(std or (1.0, 1.0, 1.0), dtype=torch.float64)
    return torch.stack((1 / (255 * spread), -shift / spread)).float()
