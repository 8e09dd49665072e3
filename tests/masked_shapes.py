"""Generated images of shapes, with a mask each."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ["ground", "disc", "square", "triangle"]
IGNORED = 255


def write_shapes(root: Path, train: int = 48, val: int = 16, seed: int = 0) -> Path:
    """Write root/{train,val}/{images,masks} and classes.txt; returns root.

    Each image has two or three shapes of colors that do not tell them apart, and a border of a
    pixel that is of no class.
    """
    rng = np.random.default_rng(seed)
    for split, count in (("train", train), ("val", val)):
        for kind in ("images", "masks"):
            (root / split / kind / "all").mkdir(parents=True)
        for number in range(count):
            image, mask = shapes(rng)
            image.save(root / split / "images" / "all" / f"{number}.jpg", quality=90)
            mask.save(root / split / "masks" / "all" / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return root


def shapes(rng: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    width, height = (int(side) for side in rng.integers(90, 160, 2))
    noise = rng.integers(0, 80, (height, width, 3), dtype=np.uint8)
    image, mask = Image.fromarray(noise), Image.new("L", (width, height))
    draw, label = ImageDraw.Draw(image), ImageDraw.Draw(mask)
    for _ in range(int(rng.integers(2, 4))):
        kind = int(rng.integers(1, len(CLASSES)))
        side = int(rng.integers(24, 56))
        left, top = int(rng.integers(width - side)), int(rng.integers(height - side))
        color = tuple(rng.integers(110, 256, 3).tolist())
        box = [left, top, left + side, top + side]
        corners = [(left, top + side), (left + side, top + side), (left + side / 2, top)]
        for canvas, fill in ((draw, color), (label, kind)):
            if kind == 1:
                canvas.ellipse(box, fill=fill)
            elif kind == 2:
                canvas.rectangle(box, fill=fill)
            else:
                canvas.polygon(corners, fill=fill)
    label.rectangle([0, 0, width - 1, height - 1], outline=IGNORED)
    return image, mask
