"""RandomResizedCrop to 224 and flip, to uint8: docs/results/op-resized.md.

Libraries that are not installed are left out.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import decode_jpeg
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from benchmarks import measure
from benchmarks.sample_photographs import (
    PHONE_QUALITY,
    many_photographs,
    phone_photographs,
    tensor,
)
from custom_op import decode_and_crop_jpeg, decode_crop_resize_batch, index_jpeg

TITLE = "RandomResizedCrop 224, flip"
SIZE, BATCH = 224, 96
PLAIN, INDEXED = "this operator, plain file", "this operator, side index"
Work = Callable[[], object]
Decode = Callable[[Tensor], Tensor]


def random_boxes(height: int, width: int) -> Tensor:
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    return torch.tensor(
        [v2.RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(BATCH)]
    )


def tensor_decoders() -> dict[str, Decode]:
    """Returns what decodes uint8 tensors to tensors, for torchvision's transforms v2."""
    found: dict[str, Decode] = {"torchvision v2 on tensors": decode_jpeg}
    if measure.installed("torchcodec"):
        from torchcodec import decoders

        found["torchcodec, v2 on tensors"] = decoders.decode_jpeg
    return found


def opened_by_pillow(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def cut_by_pillow(image: Image.Image, box: list[int], flip: bool) -> Image.Image:
    """Returns the resized crop; `box` is top, left, height, width."""
    top, left, height, width = box
    crop = image.crop((left, top, left + width, top + height))
    crop = crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else crop


def cut_by_torchvision(image: Tensor, box: list[int], flip: bool) -> Tensor:
    """Returns the same of uint8 (3, H, W): (3, SIZE, SIZE)."""
    crop: Tensor = F.resized_crop(image, *box, [SIZE, SIZE], antialias=True)
    return F.horizontal_flip(crop) if flip else crop


def baselines(files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """One image at a time, as in a DataLoader worker."""
    tensors = [tensor(data) for data in files]
    crops = [(i % len(files), box.tolist(), i % 2 == 0) for i, box in enumerate(boxes)]

    def pillow() -> None:
        for i, box, flip in crops:
            F.pil_to_tensor(cut_by_pillow(opened_by_pillow(files[i]), box, flip))

    def on_tensors(decode: Decode) -> None:
        for i, box, flip in crops:
            cut_by_torchvision(decode(tensors[i]), box, flip)

    return {
        "Pillow": pillow,
        **{name: partial(on_tensors, decode) for name, decode in tensor_decoders().items()},
    }


def opencv(files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    if not measure.installed("cv2"):
        return {}
    import cv2

    cv2.setNumThreads(1)
    arrays = [np.frombuffer(data, np.uint8) for data in files]

    def work() -> None:
        for i, (top, left, height, width) in enumerate(boxes.tolist()):
            image = cv2.imdecode(arrays[i % len(files)], cv2.IMREAD_COLOR_RGB)
            assert image is not None
            crop = image[top : top + height, left : left + width]
            crop = cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
            cv2.flip(crop, 1) if i % 2 == 0 else crop

    return {"OpenCV (area filter)": work}


def spdl(files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """SPDL's FFmpeg filters."""
    if not measure.installed("spdl.io"):
        return {}
    import spdl.io

    from benchmarks.pipelines.spdl_images import spdl_filters

    def work() -> None:
        for i, box in enumerate(boxes.tolist()):
            filters = spdl_filters(box, i % 2 == 0, SIZE)
            packets = spdl.io.demux_image(files[i % len(files)])
            frames = spdl.io.decode_packets(packets, filter_desc=filters)
            spdl.io.to_numpy(spdl.io.convert_frames(frames))

    return {"SPDL": work}


def dali_crops(files: list[bytes], count: int) -> Any:
    """Returns the resized crops in a DALI pipeline. It draws its own boxes, from the same
    distribution."""
    from nvidia.dali import fn, types

    arrays = [np.frombuffer(files[i % len(files)], np.uint8) for i in range(count)]
    encoded = fn.external_source(lambda: arrays, dtype=types.UINT8)
    images = fn.decoders.image_random_crop(
        encoded, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    return fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)


def dali(
    files: list[bytes], count: int = BATCH, augment: Callable[[Any], Any] | None = None
) -> dict[str, Work]:
    """Random crops and flips of `count` images, then what `augment` adds to DALI's pipeline."""
    if not measure.installed("nvidia.dali"):
        return {}
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(
        batch_size=count, num_threads=1, device_id=None, exec_async=False, exec_pipelined=False,
        prefetch_queue_depth=1, enable_conditionals=augment is not None,
    )  # fmt: skip
    def pipeline() -> Any:
        images = fn.flip(dali_crops(files, count), horizontal=fn.random.coin_flip())
        return images if augment is None else augment(images)

    built = pipeline()
    built.build()
    return {"DALI (CPU)": built.run}


def this_operator(
    files: list[Tensor], boxes: Tensor, indexes: list[Tensor] | None = None, *,
    flips: bool = True, augment: Tensor | None = None, views: int = 1,
) -> Work:  # fmt: skip
    """Returns a batch of `BATCH` crops of `files` in turns; several views are of as many images
    less."""
    count = BATCH // views
    jpegs = [files[i % len(files)] for i in range(count)]
    of_batch = indexes and [indexes[i % len(files)] for i in range(count)]
    shape = (count, views) if views > 1 else (count,)
    flip = (torch.arange(BATCH) % 2 == 0).view(shape) if flips else None
    out = torch.empty((BATCH, SIZE, SIZE, 3), dtype=torch.uint8).movedim(-1, -3)
    out, boxes = out.unflatten(0, shape), boxes.view(*shape, 4)
    augment = None if augment is None else augment.unflatten(0, shape)
    return lambda: decode_crop_resize_batch(
        jpegs, boxes, SIZE, indexes=of_batch, flip=flip, augment=augment, out=out
    )


def large_crop() -> list[tuple[str, float, float]]:
    """Returns a 256-pixel crop of 12 megapixels: name, CPU ms and speed relative to torchvision."""
    plain = tensor(phone_photographs()[0])
    index = index_jpeg(plain)
    works = {
        "torchvision, whole": lambda: decode_jpeg(plain)[:, 1500:1756, 2000:2256].contiguous(),
        "this operator, plain file": lambda: decode_and_crop_jpeg(plain, 1500, 2000, 256, 256),
        "this operator, side index": lambda: decode_and_crop_jpeg(
            plain, 1500, 2000, 256, 256, index=index
        ),
    }
    times = measure.cpu_milliseconds(works, works=1, rounds=5)
    whole = times["torchvision, whole"]
    return [(name, ms, whole / ms) for name, ms in times.items()]


def opened_reduced(data: bytes, box: list[int]) -> tuple[Image.Image, list[int]]:
    """Decoded by Pillow at the smallest scale that leaves SIZE pixels of the box, and the box."""
    image = Image.open(io.BytesIO(data))
    width = image.width
    scale = max(k for k in (1, 2, 4, 8) if k == 1 or min(box[2:]) >= k * SIZE)
    image.draft("RGB", (image.width // scale, image.height // scale))
    done = image.convert("RGB")
    return done, [value * done.width // width for value in box]


def phones() -> list[tuple[str, float, float]]:
    """Returns the same of photographs of 12 megapixels: name, CPU ms and speed relative to
    Pillow."""
    files = phone_photographs()
    tensors = [tensor(data) for data in files]
    indexes = [index_jpeg(data) for data in tensors]
    count = 4 * len(files)
    boxes = random_boxes(3000, 4000)[:count]
    crops = [(i % len(files), box.tolist()) for i, box in enumerate(boxes)]
    jpegs, of_batch = ([each[i] for i, _ in crops] for each in (tensors, indexes))

    def pillow() -> None:
        for i, box in crops:
            np.asarray(cut_by_pillow(opened_by_pillow(files[i]), box, False))

    def reduced() -> None:
        for i, box in crops:
            np.asarray(cut_by_pillow(*opened_reduced(files[i], box), False))

    def on_tensors(decode: Decode) -> None:
        for i, box in crops:
            cut_by_torchvision(decode(tensors[i]), box, False)

    works: dict[str, Work] = {
        "Pillow": pillow,
        "Pillow, reduced decode (other pixels)": reduced,
        **{name: partial(on_tensors, decode) for name, decode in tensor_decoders().items()},
        "this operator, plain file": lambda: decode_crop_resize_batch(jpegs, boxes, SIZE),
        "this operator, plain file, index made": lambda: decode_crop_resize_batch(
            jpegs, boxes, SIZE, make_indexes=True
        ),
        "this operator, side index": lambda: decode_crop_resize_batch(
            jpegs, boxes, SIZE, indexes=of_batch
        ),
    }
    times = measure.cpu_milliseconds(works, works=count, rounds=5)
    return [(name, ms, times["Pillow"] / ms) for name, ms in times.items()]


def thread_speedup(files: list[Tensor], boxes: Tensor, indexes: list[Tensor]) -> float:
    """Wall-clock time of a batch divided by half that of two batches in two threads; best round of
    each."""
    works = [this_operator(files, boxes, indexes) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        both = {"1": works[0], "2": lambda: list(pool.map(lambda work: work(), works))}
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
        **baselines(files, boxes),
        **opencv(files, boxes),
        **spdl(files, boxes),
        **dali(files),
        PLAIN: this_operator(plain, boxes),
        INDEXED: this_operator(plain, boxes, indexes),
    }
    times = measure.cpu_milliseconds(works, works=BATCH, rounds=21)
    rows = [(name, ms, ms / times[INDEXED], ms / times[PLAIN]) for name, ms in times.items()]
    measure.bars("op-resized", f"{TITLE}, one thread", "CPU ms per image", times)
    threads = f"Two threads do {thread_speedup(plain, boxes, indexes):.2f} times the work of one.\n"
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
            measure.table(
                (f"RandomResizedCrop {SIZE} of 3000x4000", "CPU ms", "x Pillow"), phones()
            ),
            measure.table(("256x256 of 3000x4000", "CPU ms", "x torchvision"), large_crop()),
            threads,
        ],
        (
            *("Pillow", "torchvision", "torchcodec", "opencv-python-headless", "spdl-io"),
            "nvidia-dali-cuda130",
        ),
    )


if __name__ == "__main__":
    main()
