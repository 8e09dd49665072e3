"""The operations of `custom_op.augment_ops` by torchvision's functions: what the operator must do.

The engines `pillow` and `workers` use them, on the draws that all engines share.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from custom_op.augment_ops import PARAMETERS
from entry_point.data.plan.augment.policy import Floats

_NAMES = list(PARAMETERS)


def augmented(image: Tensor, operations: Floats) -> Tensor:
    """`image`, uint8 (3, S, S), after each of `operations`, float32 (K, 8)."""
    for number, *values in operations.tolist():
        name = _NAMES[int(number)]
        if name != "identity":
            image = _FUNCTIONS[name](image, *values[: len(PARAMETERS[name])])
    return image


def _rotate(image: Tensor, degrees: float, bilinear: float, *fill: float) -> Tensor:
    return functional.rotate(image, degrees, _filter(bilinear), fill=list(fill))


def _shear_x(image: Tensor, tangent: float, bilinear: float, *fill: float) -> Tensor:
    return _shear(image, [_degrees(tangent), 0.0], bilinear, fill)


def _shear_y(image: Tensor, tangent: float, bilinear: float, *fill: float) -> Tensor:
    return _shear(image, [0.0, _degrees(tangent)], bilinear, fill)


def _translate_x(image: Tensor, pixels: float, bilinear: float, *fill: float) -> Tensor:
    return _affine(image, [int(pixels), 0], [0.0, 0.0], bilinear, fill, None)


def _translate_y(image: Tensor, pixels: float, bilinear: float, *fill: float) -> Tensor:
    return _affine(image, [0, int(pixels)], [0.0, 0.0], bilinear, fill, None)


def _shear(image: Tensor, degrees: list[float], bilinear: float, fill: tuple[float, ...]) -> Tensor:
    return _affine(image, [0, 0], degrees, bilinear, fill, [0.0, 0.0])


def _affine(
    image: Tensor,
    pixels: list[int],
    shear: list[float],
    bilinear: float,
    fill: tuple[float, ...],
    center: list[float] | None,
) -> Tensor:
    return functional.affine(
        image,
        angle=0.0,
        translate=[float(number) for number in pixels],
        scale=1.0,
        shear=shear,
        interpolation=_filter(bilinear),
        fill=list(fill),
        center=center,
    )


def _degrees(tangent: float) -> float:
    return math.degrees(math.atan(tangent))


def _filter(bilinear: float) -> InterpolationMode:
    return InterpolationMode.BILINEAR if bilinear else InterpolationMode.NEAREST


def _grayscale(image: Tensor) -> Tensor:
    return functional.rgb_to_grayscale(image, num_output_channels=3)


def _blur(image: Tensor, kernel_size: float, sigma: float) -> Tensor:
    return functional.gaussian_blur(image, [int(kernel_size)] * 2, [sigma] * 2)


def _posterize(image: Tensor, bits: float) -> Tensor:
    return functional.posterize(image, int(bits))


def _solarize(image: Tensor, threshold: float) -> Tensor:
    """As torchvision's, which refuses thresholds above 255; they invert nothing."""
    return torch.where(image >= threshold, functional.invert(image), image)


def _solarize_add(image: Tensor, addition: float) -> Tensor:
    """As `solarize_add` in timm/data/auto_augment.py; torchvision has no such function."""
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
    "grayscale": _grayscale,
    "gaussian_blur": _blur,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "autocontrast": functional.autocontrast,
    "equalize": functional.equalize,
    "invert": functional.invert,
    "rotate": _rotate,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "erase": _erase,
}
