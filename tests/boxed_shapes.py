"""Generated images of squares with their boxes, as YOLO has them."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

HEIGHT, WIDTH = 120, 160


def write_boxes(
    root: Path, train: int = 32, val: int = 8, images: str = "images/{}", val_name: str = "val"
) -> Path:
    """Write root/images/{train,val}, root/labels/{train,val} and data.yaml; returns root."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), (val_name, val)):
        photos = root / images.format(split)
        labels = root / images.replace("images", "labels").format(split)
        photos.mkdir(parents=True)
        labels.mkdir(parents=True)
        for number in range(count):
            noise = rng.integers(0, 80, (HEIGHT, WIDTH, 3), dtype=np.uint8)
            image, lines = Image.fromarray(noise), []
            for _ in range(int(rng.integers(1, 4))):
                kind, (wide, tall) = int(rng.integers(2)), rng.integers(20, 60, 2).tolist()
                left, top = int(rng.integers(WIDTH - wide)), int(rng.integers(HEIGHT - tall))
                color = (200, 60, 60) if kind else (60, 60, 200)
                ImageDraw.Draw(image).rectangle([left, top, left + wide, top + tall], fill=color)
                center = (left + wide / 2) / WIDTH, (top + tall / 2) / HEIGHT
                lines.append(f"{kind} {center[0]} {center[1]} {wide / WIDTH} {tall / HEIGHT}")
            image.save(photos / f"{number}.jpg", quality=90)
            (labels / f"{number}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(
        f"train: {images.format('train')}\nval: {images.format(val_name)}\nnames:\n"
        "  0: blue\n  1: red\n"
    )
    return root
