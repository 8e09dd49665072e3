"""A random 256x256 crop of a photograph, by this operator and by others: docs/results/op-crop.md.

Decoders that are not installed are left out.
"""

from __future__ import annotations

import io
import random
import subprocess
import warnings
from collections.abc import Callable
from itertools import starmap
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import decode_jpeg

from benchmarks import measure
from benchmarks.operator.op_crop_skip import crop_skip
from benchmarks.sample_photographs import encode, many_photographs, tensor
from custom_op import decode_and_crop_jpeg, index_jpeg

SIZE, CROPS, MCU = 256, 2, 16
BOUND = "lower bound:"
OWN_BLOCKS = f"{BOUND} this operator, the crop's own blocks"
PUBLISHED = "crop + skip as published"
Decode = Callable[[int, tuple[int, int]], object]


def whole_decoders(files: list[bytes], tensors: list[Tensor]) -> dict[str, Decode]:
    """Each decodes the whole image and crops."""

    def cut(pixels: Tensor, corner: tuple[int, int]) -> Tensor:
        return pixels[:, corner[0] : corner[0] + SIZE, corner[1] : corner[1] + SIZE].contiguous()

    def cut_rows(pixels: Any, corner: tuple[int, int]) -> Any:
        return pixels[corner[0] : corner[0] + SIZE, corner[1] : corner[1] + SIZE].copy()

    found: dict[str, Decode] = {
        "Pillow": lambda i, corner: np.asarray(crop_image(files[i], corner)),
        "torchvision": lambda i, corner: cut(decode_jpeg(tensors[i]), corner),
    }
    if measure.installed("cv2"):
        import cv2

        cv2.setNumThreads(1)
        arrays, rgb = [np.frombuffer(data, np.uint8) for data in files], cv2.IMREAD_COLOR_RGB
        found["OpenCV"] = lambda i, corner: cut_rows(cv2.imdecode(arrays[i], rgb), corner)
    if measure.installed("simplejpeg"):
        import simplejpeg

        found["simplejpeg"] = lambda i, corner: cut_rows(simplejpeg.decode_jpeg(files[i]), corner)
    if measure.installed("torchcodec"):
        from torchcodec import decoders

        found["torchcodec"] = lambda i, corner: cut(decoders.decode_jpeg(tensors[i]), corner)
    return found


def main() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.set_num_threads(1)
    files = many_photographs()
    plain = [tensor(data) for data in files]
    indexes = [index_jpeg(data) for data in plain]
    height, width = decode_jpeg(plain[0]).shape[1:]
    rng = random.Random(0)
    corners = [(rng.randint(0, height - SIZE), rng.randint(0, width - SIZE)) for _ in range(CROPS)]
    places = [(i, corner) for corner in corners for i in range(len(files))]
    crops = {(i, c): tensor(encode(crop_image(files[i], c))) for i, c in places}
    own = {(i, c): tensor(own_blocks(files[i], c)) for i, c in places}
    ours = decode_and_crop_jpeg
    decoders: dict[str, Decode] = {
        **whole_decoders(files, plain),
        PUBLISHED: lambda i, c: crop_skip(plain[i], *c, SIZE, SIZE),
        # The fastest of these is the bound: memory layout alone changes each of them by up to half.
        f"{BOUND} crop + skip": lambda i, c: crop_skip(crops[i, c], 0, 0, SIZE, SIZE),
        f"{BOUND} torchvision": lambda i, c: decode_jpeg(crops[i, c]),
        f"{BOUND} this operator": lambda i, c: ours(crops[i, c], 0, 0, SIZE, SIZE),
        OWN_BLOCKS: lambda i, c: ours(own[i, c], c[0] % MCU, c[1] % MCU, SIZE, SIZE),
        "this operator, plain file": lambda i, c: ours(plain[i], *c, SIZE, SIZE),
        "this operator, side index": lambda i, c: ours(plain[i], *c, SIZE, SIZE, index=indexes[i]),
    }

    def every(decode: Decode) -> Callable[[], None]:
        return lambda: measure.use(starmap(decode, places))

    works = {name: every(decode) for name, decode in decoders.items()}
    times = measure.cpu_milliseconds(works, works=len(places))
    report(times, len(files))


def crop_image(data: bytes, corner: tuple[int, int]) -> Image.Image:
    top, left = corner
    return Image.open(io.BytesIO(data)).crop((left, top, left + SIZE, top + SIZE))


def own_blocks(data: bytes, corner: tuple[int, int]) -> bytes:
    """Returns a JPEG of the blocks that the crop touches, with their coefficients."""
    top, left = corner
    command = ["jpegtran", "-crop", f"{SIZE}x{SIZE}+{left}+{top}"]
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout


def report(times: dict[str, float], files: int) -> None:
    title = f"A random {SIZE}x{SIZE} crop of a 533x800 JPEG, one thread"
    measure.bars("op-crop", title, "CPU ms per crop", times)
    whole, published, own = times["torchvision"], times[PUBLISHED], times[OWN_BLOCKS]
    bound = min(ms for name, ms in times.items() if name.startswith(BOUND))
    rows = [
        (name, ms, whole / ms, published / ms, ms / bound, ms / own) for name, ms in times.items()
    ]
    header = (
        *("decoder", "CPU ms", "x torchvision", "x crop + skip"),
        *("times the lower bound", "times its own blocks"),
    )
    measure.write(
        "op-crop",
        "op",
        "A random crop of a photograph",
        f"{SIZE}x{SIZE} of {files} photographs at 533x800, quality 90, 4:2:0; one thread; CPU "
        "time, median of alternating rounds. The lower bound decodes a JPEG of the crop alone. A "
        "crop in a photograph rarely starts where a block does, so it touches about an eighth more "
        "of them: its own blocks are a JPEG of these alone, cut by jpegtran.",
        [measure.table(header, rows)],
        ("Pillow", "torchvision", "opencv-python-headless", "simplejpeg", "torchcodec"),
    )


if __name__ == "__main__":
    main()
