"""Generated images of squares with their boxes, as YOLO has them."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

HEIGHT, WIDTH = 120, 160


def write_boxes(root: Path, train: int = 32, val: int = 8) -> Path:
    """Write root/{train,val}/{images,labels} and classes.txt; returns root."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for folder in ("images", "labels"):
            (root / split / folder).mkdir(parents=True)
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
            image.save(root / split / "images" / f"{number}.jpg", quality=90)
            (root / split / "labels" / f"{number}.txt").write_text("\n".join(lines))
    (root / "classes.txt").write_text("blue\nred\n")
    return root
