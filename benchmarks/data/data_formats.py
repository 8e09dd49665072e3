"""What images of each format cost in training: docs/results/data-formats.md.

CPU time per image of this template's decoders and of torchvision's usual way (Pillow, transforms
v2), in alternating rounds, one thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image
from torchvision.transforms import v2

from benchmarks import measure
from benchmarks.data import epochs
from benchmarks.sample_photographs import HEIGHT, WIDTH, many_photographs

FORMATS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "WEBP": {"quality": 90},
    "AVIF": {"quality": 80},
    "GIF": {},
    "BMP": {},
    "TIFF": {},
}
"""Pillow's names, and how the photographs are saved."""
BATCH, ROUNDS = 16, 7
TITLE = "What each format costs in training"
TRANSFORM = v2.Compose(
    [v2.RandomResizedCrop(epochs.SIDE, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
)


def files_by_format() -> dict[str, list[bytes]]:
    """Returns the same photographs in each format."""
    jpegs = many_photographs()
    images = [Image.open(io.BytesIO(jpeg)) for jpeg in jpegs]
    found = {"JPEG": jpegs}
    for kind, options in FORMATS.items():
        found[kind] = [_saved(image, kind, options) for image in images]
    return found


def _saved(image: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def torchvisions(files: Sequence[bytes]) -> Callable[[], None]:
    """Returns an epoch by Pillow and torchvision's transforms, as ImageFolder does by default."""

    def epoch() -> None:
        for file in files:
            TRANSFORM(Image.open(io.BytesIO(file)).convert("RGB"))

    return epoch


def main() -> None:
    torch.set_num_threads(1)
    files = files_by_format()
    count = len(files["JPEG"])
    ours = partial(epochs.of_files, batch=BATCH)
    contenders = {"JPEG, indexed": ours(files["JPEG"], indexed=True)}
    contenders |= {kind: ours(some) for kind, some in files.items()}
    contenders |= {f"{kind}, torchvision": torchvisions(some) for kind, some in files.items()}
    ms = measure.cpu_milliseconds(contenders, works=count, rounds=ROUNDS)
    plain = ms["JPEG"]
    rows, shown = [], ("JPEG, indexed", *files)
    for name in shown:
        kind = name.partition(",")[0]
        size = sum(map(len, files[kind])) / count / 1e3
        rows.append([name, size, ms[name], ms[name] / plain, ms[f"{kind}, torchvision"]])
    head = ["format", "kB", "CPU ms", "of a plain JPEG", "torchvision, CPU ms"]
    method = (
        f"{count} photographs of {HEIGHT}x{WIDTH} pixels in each format (JPEG and WebP at quality "
        "90, AVIF at 80), RandomResizedCrop 224 and flip, in batches. CPU ms per image on one "
        f"thread, medians of {ROUNDS} alternating rounds after a warm-up. The operator decodes "
        "JPEGs; Pillow decodes the others, here as in torchvision's ImageFolder, but PNGs only to "
        "the crop's last row."
    )
    measure.bars("data-formats", TITLE, "CPU ms per image", {name: ms[name] for name in shown})
    table = measure.table(head, rows)
    measure.write("data-formats", "data", TITLE, method, [table], ["torchvision", "pillow"])


if __name__ == "__main__":
    main()
