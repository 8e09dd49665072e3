"""The operations of `custom_op.augment_ops` by torchvision's functions: the operator's reference.

Pillow's decoder uses them, on the draws that all engines share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from custom_op.augment_ops import PARAMETERS
from entry_point.data.plan.policies import Floats

_NAMES = list(PARAMETERS)


def augmented(image: Tensor, operations: Floats) -> Tensor:
    """Returns `image`, uint8 (3, S, S), after each of `operations`, float32 (K, 8)."""
    for number, *values in operations.tolist():
        name = _NAMES[int(number)]
        if name != "identity":
            image = _FUNCTIONS[name](image, *values[: len(PARAMETERS[name])])
    return image


def _move(name: str, image: Tensor, amount: float, bilinear: float, *fill: float) -> Tensor:
    """Rotate by degrees, shear by a tangent, or translate by pixels."""
    resample = InterpolationMode.BILINEAR if bilinear else InterpolationMode.NEAREST
    if name == "rotate":
        return functional.rotate(image, amount, resample, fill=list(fill))
    is_shear, axis = name.startswith("shear"), "xy".index(name[-1])
    shear, pixels = [0.0, 0.0], [0.0, 0.0]
    if is_shear:
        shear[axis] = math.degrees(math.atan(amount))
    else:
        pixels[axis] = float(int(amount))
    return functional.affine(
        image,
        angle=0.0,
        translate=pixels,
        scale=1.0,
        shear=shear,
        interpolation=resample,
        fill=list(fill),
        center=[0.0, 0.0] if is_shear else None,
    )


def _blur(image: Tensor, kernel_size: float, sigma: float) -> Tensor:
    return functional.gaussian_blur(image, [int(kernel_size)] * 2, [sigma] * 2)


def _solarize(image: Tensor, threshold: float) -> Tensor:
    """Solarize as torchvision, but for thresholds above 255, which it refuses, change nothing."""
    return torch.where(image >= threshold, functional.invert(image), image)


def _solarize_add(image: Tensor, addition: float) -> Tensor:
    """Add to dark values, as `solarize_add` in timm/data/auto_augment.py; torchvision has none."""
    return torch.where(image < 128, image.int() + int(addition), image).clamp(0, 255).to(image)


def _erase(
    image: Tensor, top: float, left: float, height: float, width: float, *fill: float
) -> Tensor:
    color = torch.tensor(fill).to(image.dtype)[:, None, None]
    return functional.erase(image, int(top), int(left), int(height), int(width), color)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "brightness": functional.adjust_brightness,
    "contrast": functional.adjust_contrast,
    "saturation": functional.adjust_saturation,
    "sharpness": functional.adjust_sharpness,
    "hue": functional.adjust_hue,
    "grayscale": partial(functional.rgb_to_grayscale, num_output_channels=3),
    "gaussian_blur": _blur,
    "posterize": lambda image, bits: functional.posterize(image, int(bits)),
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "autocontrast": functional.autocontrast,
    "equalize": functional.equalize,
    "invert": functional.invert,
    **{
        name: partial(_move, name)
        for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
    },
    "erase": _erase,
}
