"""What shrinking photographs of 12 megapixels brings to samples: docs/results/data-phones.md.

CPU time of one thread for RandomResizedCrop, flip and resize by the operator, in alternating
rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks import measure
from benchmarks.sample_photographs import phone_photographs, tensor
from custom_op import decode_crop_resize_batch, index_jpeg
from entry_point.config.data_config import DataConfig
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.decode import OperatorDecoder
from entry_point.data.packing.encode import encode
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.samples import Samples
from entry_point.data.sources.source import Encoded, Source

ROUNDS, EPOCHS, SIDE = 7, 4, 224
SHRUNK = (2048, 1344, 928, 512)
TITLE = "Photographs as phones make them"
PLAIN, PACKED = "as they are", "packed without loss"


class Photos(Source):
    """JPEGs in memory."""

    def __init__(self, files: Sequence[bytes]) -> None:
        self._files = [tensor(file) for file in files]

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> Tensor:
        return self._files[index]

    def key(self, index: int) -> str:
        return f"{index}"


def packed(files: Sequence[bytes], max_side: int) -> list[bytes]:
    source, options = Photos(files), OptimizeConfig(max_side=max_side)
    return [encode(source, number, options)[1].data for number in range(len(files))]


def sample(photos: Encoded) -> None:
    """Make a random sample of each photograph, in several epochs."""
    planner, decoder = CropPlanner(DataConfig(image_size=SIDE), True, 0), OperatorDecoder()
    numbers = np.arange(len(photos))
    for epoch in range(EPOCHS):
        plan = planner.plan(Samples.of(epoch, numbers), *decoder.sizes(photos))
        decoder.decode(photos, plan, reused_memory)


def whole(files: Sequence[bytes]) -> Tensor:
    """Returns each photograph, squashed to a sample: float32 (N, 3, SIDE, SIDE)."""
    tensors = [tensor(file) for file in files]
    sizes = [OperatorDecoder().sizes(Encoded([each])) for each in tensors]
    boxes = torch.tensor([[0, 0, int(h[0]), int(w[0])] for h, w in sizes])
    return decode_crop_resize_batch(tensors, boxes, SIDE).images.float()


def main() -> None:
    files = [file for zoom in (1.0, 1.2, 1.4, 1.6) for file in phone_photographs(zoom)]
    kept = {PLAIN: files, PACKED: files}
    kept |= {f"max_side={side}": packed(files, side) for side in SHRUNK}
    contenders: dict[str, Callable[[], object]] = {}
    for name, some in kept.items():
        tensors = [tensor(file) for file in some]
        indexes = None if name == PLAIN else [index_jpeg(each) for each in tensors]
        contenders[name] = partial(sample, Encoded(tensors, indexes))
    seconds = measure.alternate(measure.timed(contenders, time.thread_time), ROUNDS)
    works = EPOCHS * len(files)
    ms = {name: 1e3 * statistics.median(times) / works for name, times in seconds.items()}
    original = whole(files)
    method = (
        f"{len(files)} JPEGs of 3000x4000 (quality 95, 4:2:0, the noise of a small sensor); a "
        f"sample is RandomResizedCrop to {SIDE} pixels and a flip; CPU ms of one thread, medians "
        f"of {ROUNDS} alternating rounds of {works} samples. Packed files have side indexes; "
        "`max_side` shrinks them with Pillow's Lanczos filter to JPEGs of quality 95, 4:4:4. The "
        "difference is that of a whole image's sample from the original's, in levels of 255."
    )
    header = ("photographs", "MB each", "CPU ms per sample", "samples/s per core", "share of time",
              "mean difference")  # fmt: skip
    rows = [
        [
            name,
            sum(map(len, some)) / len(some) / 1e6,
            ms[name],
            f"{1e3 / ms[name]:.0f}",
            f"{ms[name] / ms[PLAIN]:.0%}",
            float((whole(some) - original).abs().mean()) if name.startswith("max") else 0.0,
        ]
        for name, some in kept.items()
    ]
    measure.bars("data-phones", TITLE, "CPU ms per sample", ms)
    measure.write("data-phones", "data", TITLE, method, [measure.table(header, rows)])


if __name__ == "__main__":
    main()
