"""A random 256x256 crop of a photograph: this operator, its peers, and the floor.

`python -m benchmarks.operator.op_crop` writes docs/results/op-crop.md and its plot. Peers
that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import io
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import decode_jpeg

from benchmarks import measure
from benchmarks.operator.op_crop_skip import crop_skip
from benchmarks.operator.op_photographs import encode, photographs, tensor
from custom_op import add_restart_markers, decode_and_crop_jpeg

SIZE, CROPS = 256, 12
FLOOR = "a JPEG of the crop alone"
INTERVALS = (1, 2, 5, 10, 25, 50)
Decode = Callable[[int, tuple[int, int]], object]


def peers(files: list[bytes], tensors: list[Tensor]) -> dict[str, Decode]:
    """Each decodes the whole image and crops."""

    def cut(pixels: Tensor, corner: tuple[int, int]) -> Tensor:
        return pixels[:, corner[0] : corner[0] + SIZE, corner[1] : corner[1] + SIZE].contiguous()

    def pillow(i: int, corner: tuple[int, int]) -> object:
        image = Image.open(io.BytesIO(files[i]))
        box = (corner[1], corner[0], corner[1] + SIZE, corner[0] + SIZE)
        return np.asarray(image.crop(box))

    found: dict[str, Decode] = {
        "Pillow": pillow,
        "torchvision": lambda i, corner: cut(decode_jpeg(tensors[i]), corner),
    }
    if importlib.util.find_spec("cv2"):
        import cv2

        cv2.setNumThreads(1)
        arrays = [np.frombuffer(data, np.uint8) for data in files]

        def crop_by_opencv(i: int, corner: Any) -> Any:
            image = cv2.imdecode(arrays[i], cv2.IMREAD_COLOR_RGB)
            assert image is not None
            return image[corner[0] : corner[0] + SIZE, corner[1] : corner[1] + SIZE].copy()

        found["OpenCV"] = crop_by_opencv
    if importlib.util.find_spec("simplejpeg"):
        import simplejpeg

        found["simplejpeg"] = lambda i, corner: simplejpeg.decode_jpeg(files[i])[
            corner[0] : corner[0] + SIZE, corner[1] : corner[1] + SIZE
        ].copy()
    if importlib.util.find_spec("torchcodec"):
        from torchcodec import decoders

        if hasattr(decoders, "decode_image"):
            found["torchcodec"] = lambda i, corner: cut(decoders.decode_image(tensors[i]), corner)
    return found


def main() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.set_num_threads(1)
    files = photographs()
    plain = [tensor(data) for data in files]
    height, width = decode_jpeg(plain[0]).shape[1:]
    rng = random.Random(0)
    corners = [(rng.randint(0, height - SIZE), rng.randint(0, width - SIZE)) for _ in range(CROPS)]
    crops = {
        (i, corner): tensor(encode(crop_image(data, corner)))
        for i, data in enumerate(files)
        for corner in corners
    }
    indexed = {k: [add_restart_markers(data, k) for data in plain] for k in INTERVALS}
    decoders = peers(files, plain)
    decoders["crop + skip as published"] = lambda i, c: crop_skip(plain[i], *c, SIZE, SIZE)
    # The floor is the fastest of these: where a process's memory happens to lie moves each by half.
    decoders[f"{FLOOR}, crop + skip"] = lambda i, c: crop_skip(crops[i, c], 0, 0, SIZE, SIZE)
    decoders[f"{FLOOR}, torchvision"] = lambda i, c: decode_jpeg(crops[i, c])
    decoders[f"{FLOOR}, this operator"] = lambda i, c: decode_and_crop_jpeg(
        crops[i, c], 0, 0, SIZE, SIZE
    )
    decoders["ours, plain file"] = crop_of(plain)
    for k in INTERVALS:
        decoders[f"ours, restart every {k} MCUs"] = crop_of(indexed[k])
    works = len(files) * len(corners)
    times = measure.cpu_milliseconds(
        {name: every(decode, len(files), corners) for name, decode in decoders.items()},
        works=works,
    )
    report(times, size_changes(plain, indexed))


def crop_of(files: list[Tensor]) -> Decode:
    return lambda i, corner: decode_and_crop_jpeg(files[i], *corner, SIZE, SIZE)


def crop_image(data: bytes, corner: tuple[int, int]) -> Image.Image:
    top, left = corner
    return Image.open(io.BytesIO(data)).crop((left, top, left + SIZE, top + SIZE))


def every(decode: Decode, count: int, corners: list[tuple[int, int]]) -> Callable[[], None]:
    def work() -> None:
        for corner in corners:
            for i in range(count):
                decode(i, corner)

    return work


def size_changes(plain: list[Tensor], indexed: dict[int, list[Tensor]]) -> dict[int, float]:
    """Per cent of the original bytes that an interval adds."""
    total = sum(map(len, plain))
    return {k: 100 * (sum(map(len, files)) / total - 1) for k, files in indexed.items()}


def report(times: dict[str, float], changes: dict[int, float]) -> None:
    whole, published = times["torchvision"], times["crop + skip as published"]
    floor = min(ms for name, ms in times.items() if name.startswith(FLOOR))
    rows = [(name, ms, whole / ms, published / ms, ms / floor) for name, ms in times.items()]
    header = ("decoder", "CPU ms", "x torchvision", "x crop + skip", "times the floor")
    sizes = [
        (k, f"{change:+.1f} %", times[f"ours, restart every {k} MCUs"])
        for k, change in changes.items()
    ]
    measure.bars(
        "op-crop", f"{SIZE}x{SIZE} of 533x800, quality 90, 4:2:0", "CPU ms per crop", times, "ours"
    )
    packages = ("Pillow", "torchvision", "opencv-python-headless", "simplejpeg", "torchcodec")
    text = measure.write(
        "op-crop",
        "A random crop of a photograph",
        f"{SIZE}x{SIZE} of six photographs at 533x800, quality 90, 4:2:0; one thread; CPU time, "
        "median of alternating rounds.",
        [measure.table(header, rows), measure.table(("interval, MCUs", "bytes", "CPU ms"), sizes)],
        packages,
    )
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
