"""Masks of classes in answers: in the size of the image, as a PNG, and drawn over the image."""

from __future__ import annotations

import io

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

_MOST_VALUES = 1 << 24
"""Most floats to compute at once, as a request's image may have many pixels."""
_SHOWN = 0.5
"""Opacity of the mask's colors in an overlay."""


def _palette() -> list[int]:
    """Returns the colors of PASCAL VOC, in which neighboring numbers look different; 0 is black."""
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            at = np.arange(256) >> (3 * bit + channel) & 1
            colors[:, channel] |= (at << (7 - bit)).astype(np.uint8)
    return colors.flatten().tolist()


PALETTE = _palette()
COLORS = [f"#{bytes(PALETTE[place : place + 3]).hex()}" for place in range(0, len(PALETTE), 3)]
"""Colors of the classes, by their numbers."""


def class_mask(answer: Tensor, height: int, width: int) -> NDArray[np.uint8]:
    """Returns the likeliest class of each pixel, uint8 `(height, width)`.

    The logarithms of the probabilities are resized (bilinear). They differ from the logits by one
    number per pixel, so the mask is the one that evaluation measures.

    Args:
        answer: Probabilities of a whole image at any size, float32 `(classes, h, w)`.
    """
    mask = np.empty((height, width), np.uint8)
    classes, rows, _ = answer.shape
    logits = answer.clamp(min=torch.finfo(answer.dtype).tiny).log()
    at = ((torch.arange(height) + 0.5) * (rows / height) - 0.5).clamp(0, rows - 1)
    first = at.floor().long()
    second, share = (first + 1).clamp(max=rows - 1), at - first
    step = max(1, _MOST_VALUES // (classes * width))
    for start in range(0, height, step):
        band = slice(start, start + step)
        low, high = int(first[start]), int(second[band][-1]) + 1
        wide = functional.interpolate(
            logits[None, :, low:high], (high - low, width), mode="bilinear"
        )[0]
        above, below = wide[:, first[band] - low], wide[:, second[band] - low]
        mask[band] = torch.lerp(above, below, share[band, None]).argmax(0).byte().numpy()
    return mask


def shares_of_classes(mask: NDArray[np.uint8], classes: int) -> NDArray[np.float32]:
    """Returns each class's share of the pixels, float32 `(classes,)`."""
    return (np.bincount(mask.reshape(-1), minlength=classes) / mask.size).astype(np.float32)


def as_png(mask: NDArray[np.uint8]) -> bytes:
    """Returns a PNG whose pixels are the numbers of classes, shown in colors."""
    picture = _picture(mask)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def overlay(image: Image.Image, mask: NDArray[np.uint8]) -> Image.Image:
    """Returns the RGB image with the colors of the classes over it. The mask may have another
    size."""
    colors = _picture(mask).convert("RGB").resize(image.size, Image.Resampling.NEAREST)
    return Image.blend(image, colors, _SHOWN)


def _picture(mask: NDArray[np.uint8]) -> Image.Image:
    picture = Image.fromarray(mask)
    picture.putpalette(PALETTE)
    return picture
