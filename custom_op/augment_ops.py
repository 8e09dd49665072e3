"""Defines the operations that the batch operator applies to a resized crop, and their encoding.

An augmentation table is a float32 tensor `(N, K, 8)`: K operations for each of N samples, applied
in order. Column 0 holds the operation's number, its position in `PARAMETERS`; the next columns
hold its parameters in the order given there; unused columns are 0.
Number 0, `identity`, leaves the image as it is, so tables of different lengths can be padded.

Each operation does the same as the function of its name in `torchvision.transforms.v2.functional`
does to a uint8 tensor; `solarize_add` follows `timm.data.auto_augment`. Rotation is about the
center, shear about the upper left corner, as in torchvision's TrivialAugmentWide and RandAugment;
`red`, `green` and `blue` (0 to 255) fill pixels that come from outside the image.
"""

COLUMNS = 8

_MOVE = ("bilinear", "red", "green", "blue")

PARAMETERS: dict[str, tuple[str, ...]] = {
    "identity": (),
    # Factors of 0 or more; 1 leaves the image unchanged.
    "brightness": ("factor",),
    "contrast": ("factor",),
    "saturation": ("factor",),
    "sharpness": ("factor",),
    # Fraction of the color circle, -0.5 to 0.5.
    "hue": ("factor",),
    "grayscale": (),
    # Odd kernel size in pixels; standard deviation in pixels.
    "gaussian_blur": ("kernel_size", "sigma"),
    # Number of highest bits to keep, 0 to 8.
    "posterize": ("bits",),
    # Values at or above the threshold, 0 to 256, are inverted; torchvision allows 255.
    "solarize": ("threshold",),
    # Added to values below 128.
    "solarize_add": ("addition",),
    "autocontrast": (),
    "equalize": (),
    "invert": (),
    # Degrees counterclockwise; tangent of the shear angle; whole pixels.
    "rotate": ("degrees", *_MOVE),
    "shear_x": ("tangent", *_MOVE),
    "shear_y": ("tangent", *_MOVE),
    "translate_x": ("pixels", *_MOVE),
    "translate_y": ("pixels", *_MOVE),
    # A rectangle in pixels of the crop.
    "erase": ("top", "left", "height", "width", "red", "green", "blue"),
}

NUMBERS: dict[str, int] = {name: number for number, name in enumerate(PARAMETERS)}
