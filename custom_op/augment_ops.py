"""The operations that the batch operator applies to a resized crop, and how they are written.

An augmentation table is a float32 tensor `(N, K, 8)`: for each of N samples K operations, applied
in order. Column 0 holds the operation's number, its place in `PARAMETERS`; the columns after it
hold its parameters in the order given there; columns that an operation does not use are 0.
Number 0, `identity`, leaves the image as it is, so tables of different lengths can be padded.

Each operation means what the function of that name in `torchvision.transforms.v2.functional` does
to a uint8 tensor, `solarize_add` what the one in `timm.data.auto_augment` does. Geometry rotates
about the center and shears about the upper left corner, as torchvision's TrivialAugmentWide and
RandAugment do; `red`, `green` and `blue` (0 to 255) fill what comes from outside the image.
"""

COLUMNS = 8

_MOVE = ("bilinear", "red", "green", "blue")

PARAMETERS: dict[str, tuple[str, ...]] = {
    "identity": (),
    # Factors of 0 or more; 1 leaves the image.
    "brightness": ("factor",),
    "contrast": ("factor",),
    "saturation": ("factor",),
    "sharpness": ("factor",),
    # A share of the color circle, -0.5 to 0.5.
    "hue": ("factor",),
    "grayscale": (),
    # An odd size in pixels, and the standard deviation in pixels.
    "gaussian_blur": ("kernel_size", "sigma"),
    # Bits that stay, 0 to 8.
    "posterize": ("bits",),
    # Values at or above the threshold, 0 to 256, are inverted; torchvision allows 255.
    "solarize": ("threshold",),
    # Added to values below 128.
    "solarize_add": ("addition",),
    "autocontrast": (),
    "equalize": (),
    "invert": (),
    # Degrees against the clock; tangents of the shear's angle; whole pixels.
    "rotate": ("degrees", *_MOVE),
    "shear_x": ("tangent", *_MOVE),
    "shear_y": ("tangent", *_MOVE),
    "translate_x": ("pixels", *_MOVE),
    "translate_y": ("pixels", *_MOVE),
    # A rectangle in pixels of the crop.
    "erase": ("top", "left", "height", "width", "red", "green", "blue"),
}

NUMBERS: dict[str, int] = {name: number for number, name in enumerate(PARAMETERS)}
