"""RandomResizedCrop to 224 and flip, to uint8: docs/results/op-resized.md.

Libraries that are not installed are left out.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.io import decode_jpeg

from benchmarks import measure
from benchmarks.operator.samples import (
    BATCH,
    PILLOW,
    SIZE,
    TORCHCODEC,
    TORCHVISION,
    Box,
    Library,
    Work,
    cut_by_pillow,
    libraries,
    on_dali,
    random_boxes,
    this_operator,
)
from benchmarks.sample_photographs import (
    PHONE_QUALITY,
    many_photographs,
    phone_photographs,
    tensor,
)
from custom_op import decode_and_crop_jpeg, index_jpeg

TITLE = "RandomResizedCrop 224, flip"
PLAIN, INDEXED = "this operator, plain file", "this operator, side index"
WHOLE = "torchvision, whole"


def finished(library: Library, samples: Callable[[], Iterator[Any]]) -> Work:
    return lambda: measure.use(map(library.finish, samples()))


def large_crop() -> list[tuple[str, float, float]]:
    """Returns a 256-pixel crop of 12 megapixels: name, CPU ms and speed relative to torchvision."""
    plain = tensor(phone_photographs()[0])
    index, box = index_jpeg(plain), (1500, 2000, 256, 256)
    works = {
        WHOLE: lambda: decode_jpeg(plain)[:, 1500:1756, 2000:2256].contiguous(),
        PLAIN: lambda: decode_and_crop_jpeg(plain, *box),
        INDEXED: lambda: decode_and_crop_jpeg(plain, *box, index=index),
    }
    times = measure.cpu_milliseconds(works, works=1, rounds=5)
    return [(name, ms, times[WHOLE] / ms) for name, ms in times.items()]


def cut_reduced(data: bytes, box: Box, flip: bool) -> Image.Image:
    """Returns a sample that Pillow decodes at the smallest scale that leaves SIZE pixels of the
    box."""
    image = Image.open(io.BytesIO(data))
    width = image.width
    scale = max(k for k in (1, 2, 4, 8) if k == 1 or min(box[2:]) >= k * SIZE)
    image.draft("RGB", (image.width // scale, image.height // scale))
    done = image.convert("RGB")
    return cut_by_pillow(done, [value * done.width // width for value in box], flip)


def phones() -> list[tuple[str, float, float]]:
    """Returns samples of photographs of 12 megapixels, not flipped: name, CPU ms and speed relative
    to Pillow."""
    files = phone_photographs()
    plain = [tensor(data) for data in files]
    indexes = [index_jpeg(data) for data in plain]
    boxes, found = random_boxes(3000, 4000)[: 4 * len(files)], libraries()
    reduced = replace(found[PILLOW], decode=lambda data: data, cut=cut_reduced)
    others = {PILLOW: found[PILLOW], "Pillow, reduced decode (other pixels)": reduced}
    others |= {name: found[name] for name in (TORCHVISION, TORCHCODEC) if name in found}
    works = {
        name: finished(library, library.samples(files, boxes, flips=False))
        for name, library in others.items()
    }
    works[PLAIN] = this_operator(plain, boxes, flips=False)
    works[f"{PLAIN}, index made"] = this_operator(plain, boxes, flips=False, make_indexes=True)
    works[INDEXED] = this_operator(plain, boxes, indexes, flips=False)
    times = measure.cpu_milliseconds(works, works=len(boxes), rounds=5)
    return [(name, ms, times[PILLOW] / ms) for name, ms in times.items()]


def thread_speedup(files: list[Tensor], boxes: Tensor, indexes: list[Tensor]) -> float:
    """Wall-clock time of a batch divided by half that of two batches in two threads; best round of
    each."""
    works = [this_operator(files, boxes, indexes) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        both = {"1": works[0], "2": lambda: measure.use(pool.map(lambda work: work(), works))}
        seconds = measure.alternate(measure.timed(both, time.perf_counter), 51)
    return 2 * min(seconds["1"]) / min(seconds["2"])


def main() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.set_num_threads(1)
    files = many_photographs()
    boxes = random_boxes(533, 800)
    plain = [tensor(data) for data in files]
    indexes = [index_jpeg(data) for data in plain]
    works = {
        name: finished(library, library.samples(files, boxes))
        for name, library in libraries().items()
    }
    works |= on_dali(files)
    works |= {PLAIN: this_operator(plain, boxes), INDEXED: this_operator(plain, boxes, indexes)}
    times = measure.cpu_milliseconds(works, works=BATCH, rounds=21)
    rows = [(name, ms, ms / times[INDEXED], ms / times[PLAIN]) for name, ms in times.items()]
    measure.bars("op-resized", f"{TITLE}, one thread", "CPU ms per image", times)
    header = (f"RandomResizedCrop {SIZE} of 3000x4000", "CPU ms", "x Pillow")
    measure.write(
        "op-resized",
        "op",
        TITLE,
        f"{len(files)} photographs at 533x800, quality 90, 4:2:0; one thread; CPU "
        "time, median of alternating rounds. All results are uint8, which training normalizes on "
        f"the device. Those of 3000x4000 are as phones make them: quality {PHONE_QUALITY}, 4:2:0, "
        "3.6 MB each.",
        [
            measure.table(("pipeline", "CPU ms", "side index = 1", "plain file = 1"), rows),
            measure.table(header, phones()),
            measure.table(("256x256 of 3000x4000", "CPU ms", "x torchvision"), large_crop()),
            f"Two threads do {thread_speedup(plain, boxes, indexes):.2f} times the work of one.\n",
        ],
        (
            *("Pillow", "torchvision", "torchcodec", "opencv-python-headless", "spdl-io"),
            "nvidia-dali-cuda130",
        ),
    )


if __name__ == "__main__":
    main()
