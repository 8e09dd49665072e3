"""Side indexes of several sizes: docs/results/op-index.md."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from benchmarks import measure
from benchmarks.operator.samples import BATCH, SIZE, random_boxes, this_operator
from benchmarks.sample_photographs import many_photographs, tensor
from custom_op import index_jpeg
from custom_op.ops import MAX_SHARE

SHARES = (0.003, 0.006, MAX_SHARE, 0.02, 1.0)
"""The largest size of the index, as a share of the file's; the last one leaves room for every entry
that decoding can use."""
INDEX, PLAIN = "side index of {:.2%}", "plain file"


def build_milliseconds(files: list[Tensor], share: float) -> float:
    """CPU time of one index, the fastest of three rounds."""
    build = {"build": lambda: measure.use(index_jpeg(data, max_share=share) for data in files)}
    seconds = measure.alternate(measure.timed(build, time.process_time), 3)
    return 1e3 * min(seconds["build"]) / len(files)


def main() -> None:
    torch.set_num_threads(1)
    distinct = [tensor(data) for data in many_photographs()]
    files = [distinct[i % len(distinct)] for i in range(BATCH)]
    boxes, total = random_boxes(533, 800), sum(map(len, files))
    works, sizes = {PLAIN: this_operator(files, boxes, flips=False)}, {}
    for most in SHARES:
        indexes = [index_jpeg(data, max_share=most) for data in files]
        sizes[most] = sum(map(len, indexes)) / total
        works[INDEX.format(sizes[most])] = this_operator(files, boxes, indexes, flips=False)
    times = measure.cpu_milliseconds(works, works=BATCH)
    rows = []
    for most, share in sizes.items():
        index, build = times[INDEX.format(share)], build_milliseconds(distinct, most)
        rows.append((f"{share:.2%}", index, index / times[PLAIN], build))
    header = ("bytes beside the file", "CPU ms", "plain file = 1", "built in, ms")
    measure.bars("op-index", f"RandomResizedCrop {SIZE}, one thread", "CPU ms per image", times)
    method = (
        f"RandomResizedCrop {SIZE} to uint8 of {len(distinct)} photographs at 533x800, quality 90, "
        f"4:2:0; one thread; CPU time, median of alternating rounds. The plain file takes "
        f"{times[PLAIN]:.3f} ms. Default: at most {MAX_SHARE:.2%}. Goal: built in 0.6 ms."
    )
    measure.write("op-index", "op", "Side index", method, [measure.table(header, rows)])


if __name__ == "__main__":
    main()
