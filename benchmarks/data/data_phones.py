"""What shrinking photographs of 12 megapixels brings to samples: docs/results/data-phones.md.

CPU time of RandomResizedCrop, flip and resize by the operator, in alternating rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks import measure
from benchmarks.data import epochs
from benchmarks.sample_photographs import phone_photographs, tensor
from custom_op import decode_crop_resize_batch, jpeg_size
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.encode import encode_file

ROUNDS, EPOCHS = 7, 4
SHRUNK = (2048, 1344, 928, 512)
TITLE = "Photographs as phones make them"
PLAIN, PACKED = "as they are", "packed without loss"


def packed(files: Sequence[bytes], max_side: int) -> list[bytes]:
    return [encode_file(file, OptimizeConfig(max_side=max_side)).data for file in files]


def repeated(epoch: epochs.Epoch) -> Callable[[], None]:
    """Returns a function that makes EPOCHS random samples of each photograph."""

    def several() -> None:
        for _ in range(EPOCHS):
            epoch()

    return several


def whole(files: Sequence[bytes]) -> Tensor:
    """Returns each photograph, squashed to a sample: float32 (N, 3, SIDE, SIDE)."""
    tensors = [tensor(file) for file in files]
    boxes = torch.tensor([[0, 0, *jpeg_size(file)] for file in tensors])
    return decode_crop_resize_batch(tensors, boxes, epochs.SIDE).images.float()


def main() -> None:
    torch.set_num_threads(1)
    files = [file for zoom in (1.0, 1.2, 1.4, 1.6) for file in phone_photographs(zoom)]
    kept = {PLAIN: files, PACKED: files}
    kept |= {f"max_side={side}": packed(files, side) for side in SHRUNK}
    contenders = {
        name: repeated(epochs.of_files(some, indexed=name != PLAIN, batch=len(some)))
        for name, some in kept.items()
    }
    works = EPOCHS * len(files)
    ms = measure.cpu_milliseconds(contenders, works=works, rounds=ROUNDS)
    original = whole(files)
    method = (
        f"{len(files)} JPEGs of 3000x4000 (quality 95, 4:2:0, the noise of a small sensor); a "
        f"sample is RandomResizedCrop to {epochs.SIDE} pixels and a flip; CPU ms of one thread, "
        f"medians of {ROUNDS} alternating rounds of {works} samples. Packed files have side "
        "indexes; `max_side` shrinks them with Pillow's Lanczos filter to JPEGs of quality 95, "
        "4:4:4. The difference is that of a whole image's sample from the original's, in levels "
        "of 255."
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
            float((whole(some) - original).abs().mean()),
        ]
        for name, some in kept.items()
    ]
    measure.bars("data-phones", TITLE, "CPU ms per sample", ms)
    measure.write("data-phones", "data", TITLE, method, [measure.table(header, rows)])


if __name__ == "__main__":
    main()
