"""A side index at several intervals: docs/results/op-index.md."""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

from benchmarks import measure
from benchmarks.operator.op_resized import BATCH, SIZE, Work, random_boxes
from benchmarks.sample_photographs import many_photographs, tensor
from custom_op import decode_crop_resize_batch, index_jpeg

INTERVALS = (4, 5, 10, 16, 25, 50)
INDEX, PLAIN = "index every {}", "plain file"


def resized(files: list[Tensor], boxes: Tensor, indexes: list[Tensor] | None = None) -> Work:
    out = torch.empty((BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
    out = out.contiguous(memory_format=torch.channels_last)
    return lambda: decode_crop_resize_batch(
        files, boxes, SIZE, indexes=indexes, out=out, num_threads=1
    )


def build_milliseconds(files: list[Tensor], interval: int) -> float:
    """CPU time of one index, the fastest of three rounds."""

    def seconds() -> float:
        started = time.process_time()
        for data in files:
            index_jpeg(data, interval)
        return time.process_time() - started

    return 1e3 * min(seconds() for _ in range(3)) / len(files)


def main() -> None:
    torch.set_num_threads(1)
    distinct = [tensor(data) for data in many_photographs()]
    files = [distinct[i % len(distinct)] for i in range(BATCH)]
    boxes, total = random_boxes(533, 800), sum(map(len, files))
    works, sizes = {PLAIN: resized(files, boxes)}, {}
    for interval in INTERVALS:
        indexes = [index_jpeg(data, interval) for data in files]
        works[INDEX.format(interval)] = resized(files, boxes, indexes)
        sizes[interval] = sum(map(len, indexes)) / total
    times = measure.cpu_milliseconds(works, works=BATCH)
    rows = []
    for interval, share in sizes.items():
        index, build = times[INDEX.format(interval)], build_milliseconds(distinct, interval)
        rows.append((interval, index, index / times[PLAIN], f"{100 * share:.2f} %", build))
    header = ("MCUs", "CPU ms", "plain file = 1", "bytes beside the file", "built in, ms")
    measure.bars("op-index", f"RandomResizedCrop {SIZE}, one thread", "CPU ms per image", times)
    method = (
        f"RandomResizedCrop {SIZE} to uint8 of {len(distinct)} photographs at 533x800, quality 90, "
        f"4:2:0; one thread; CPU time, median of alternating rounds. The plain file takes "
        f"{times[PLAIN]:.3f} ms. Goals at 10 MCUs: at most 1.2 % of the bytes, built in 0.6 ms."
    )
    text = measure.write("op-index", "op", "Side index", method, [measure.table(header, rows)], ())
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
