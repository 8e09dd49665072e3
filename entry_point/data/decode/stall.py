"""The published stall workload: a random crop, a random mask, YCbCr, division by 255.

Each pixel is masked with probability 0.25, together with its four neighbors; masked pixels are 0 in
RGB. Color is JFIF's full-range YCbCr. The same samples come in two forms: as published, floats made
one by one on the CPU; or YCbCr from the decoder, masked in batches on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from entry_point.data.decode.allocation import Allocate, empty_floats
from entry_point.data.decode.made_images import MadeImages, MakeImages
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.plan.philox import WORD32, philox32
from entry_point.data.sources.source import Source
from entry_point.data.spans import span

RGB_TO_YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.168735892, -0.331264108, 0.5),
    (0.5, -0.418687589, -0.081312411),
)
BLACK = (0, 128, 128)
"""In YCbCr; also the offset to add after the matrix product."""

_MASK_STREAM = 5


@dataclass(frozen=True)
class SampleBySample:
    """Turns another maker's RGB pixels into the stall workload's floats, one sample at a time."""

    make_images: MakeImages
    dtype: torch.dtype = torch.float32
    """Type of the result. It is computed in float32."""

    def __call__(
        self, source: Source, planner: CropPlanner, epoch: int, indices: Ints, allocate: Allocate
    ) -> MadeImages:
        """As MakeImages, but floats from 0 to 1, of one view."""
        made = self.make_images(source, planner, epoch, indices, allocate)
        images = made.images
        masks: list[Tensor | None] = [None] * len(indices)
        with span("mask and colour"):
            if planner.train:
                side = images.shape[3]
                kept = kept_pixels(planner.seed, epoch, torch.from_numpy(indices), side)
                masks = list(kept.squeeze(3))
            samples = empty_floats(allocate, len(images), images.shape[3], self.dtype)
            for sample, image, mask in zip(samples, images, masks, strict=True):
                _fill(sample, image, mask)
        return replace(made, images=samples)


def _fill(sample: Tensor, image: Tensor, kept: Tensor | None) -> None:
    """Fill floats (3, S, S) with `image` as YCbCr; uint8 RGB, masked where `kept` (S, S) is 0."""
    pixels = image.contiguous().float()
    if kept is not None:
        pixels *= kept.float()
    torch.div(rgb_to_ycbcr(pixels), 255, out=sample)


def rgb_to_ycbcr(image: Tensor) -> Tensor:
    """JFIF's full-range YCbCr of float RGB (3, H, W) or (N, 3, H, W), 0..255."""
    matrix = torch.tensor(RGB_TO_YCBCR, device=image.device, dtype=image.dtype)
    offset = torch.tensor(BLACK, device=image.device, dtype=image.dtype).unsqueeze(1)
    return (matrix @ image.flatten(-2)).add_(offset).view(image.shape)


def mask_ycbcr(images: Tensor, seed: int, epoch: int, indices: Tensor) -> Tensor:
    """Mask uint8 (N, 3, S, S) YCbCr images, channels_last, of the samples `indices`, int64 (N,)."""
    pixels = images.permute(0, 2, 3, 1)
    black = _black_row(images.shape[3], images.device)
    kept = kept_pixels(seed, epoch, indices, images.shape[3], channels=3).neg_()  # 0 or 255
    masked = pixels.bitwise_xor(black).bitwise_and_(kept).bitwise_xor_(black)
    return masked.permute(0, 3, 1, 2)


def kept_pixels(seed: int, epoch: int, indices: Tensor, side: int, channels: int = 1) -> Tensor:
    """1 where a sample's pixel is not masked, else 0: uint8 (N, side, side, channels).

    The mask is a function of (seed, epoch, sample index) and the same on every device.
    """
    masked = _dilated(_masked_bits(seed, epoch, indices, side))
    octets = masked.to(torch.int32).view(torch.uint8)
    kept = _octet_to_pixels(channels, octets.device).index_select(0, octets.flatten().int())
    return kept.view(torch.uint8).view(len(indices), side, -1, channels)[:, :, :side]


def _masked_bits(seed: int, epoch: int, indices: Tensor, side: int) -> Tensor:
    """Bits that are 1 with probability 0.25, 32 pixels per word: int64 (N, side, words)."""
    blocks = -(-side // 64)
    place = torch.arange(side * blocks, device=indices.device)
    counter = torch.empty((4, len(indices), len(place)), dtype=torch.int64, device=indices.device)
    counter[0] = place
    counter[1] = epoch
    counter[2] = (indices & WORD32).unsqueeze(1)
    counter[3] = (indices >> 32).unsqueeze(1)
    words = philox32((seed, _MASK_STREAM), counter.view(4, -1))
    # A pixel is masked if both of its two random bits are 1.
    bits = torch.stack([words[0] & words[1], words[2] & words[3]], 1)
    inside = (side - 32 * torch.arange(2 * blocks, device=indices.device)).clamp(0, 32)
    return bits.view(len(indices), side, 2 * blocks) & ((1 << inside) - 1)


def _dilated(bits: Tensor) -> Tensor:
    """The masked pixels and their neighbors above, below, left and right."""
    wide = (bits | (bits << 1) | (bits >> 1)) & WORD32
    wide[:, :, 1:] |= bits[:, :, :-1] >> 31
    wide[:, :, :-1] |= (bits[:, :, 1:] & 1) << 31
    wide[:, 1:] |= bits[:, :-1]
    wide[:, :-1] |= bits[:, 1:]
    return wide


@cache  # creating a constant on a GPU synchronizes with it
def _black_row(side: int, device: torch.device) -> Tensor:
    return torch.tensor(BLACK, device=device, dtype=torch.uint8).repeat(side, 1)


@cache
def _octet_to_pixels(channels: int, device: torch.device) -> Tensor:
    """8 mask bits -> the bytes of 8 pixels, 1 where not masked: int64 (256, channels)."""
    bits = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
    kept = (1 - bits).to(torch.uint8).repeat_interleave(channels, 1)
    return kept.view(torch.int64).to(device)
