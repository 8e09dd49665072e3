"""RandomResizedCrop to 224 pixels and flip, by this operator and by other libraries."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import decode_jpeg
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from benchmarks.measure import installed
from benchmarks.sample_photographs import tensor
from custom_op import decode_crop_resize_batch

SIZE, BATCH = 224, 96
PILLOW, TORCHVISION, OPENCV = "Pillow", "torchvision v2 on tensors", "OpenCV (area filter)"
TORCHCODEC, SPDL = "torchcodec, v2 on tensors", "SPDL"
Work = Callable[[], object]
Box = Sequence[int]
"""Top, left, height, width."""


@dataclass(frozen=True)
class Library:
    """Makes one sample after another, as in a DataLoader worker."""

    decode: Callable[[Any], Any]
    cut: Callable[[Any, Box, bool], Any]
    """(decoded image, box, flip) -> a sample."""
    given: Callable[[bytes], Any] = tensor
    """(file) -> what `decode` takes."""
    finish: Callable[[Any], Any] = lambda sample: sample
    """(sample) -> uint8."""

    def samples(
        self, files: Sequence[bytes], boxes: Tensor, *, flips: bool = True
    ) -> Callable[[], Iterator[Any]]:
        """Returns what makes samples of `boxes`, (images, 4) or (images, views, 4), from files in
        turns; each image is decoded once."""
        given = [self.given(file) for file in files]
        boxes_of = boxes.view(len(boxes), -1, 4).tolist()

        def made() -> Iterator[Any]:
            for i, views in enumerate(boxes_of):
                image = self.decode(given[i % len(given)])
                for view, box in enumerate(views):
                    yield self.cut(image, box, flips and (i + view) % 2 == 0)

        return made


def libraries() -> dict[str, Library]:
    """Returns those that are installed."""
    found = {
        PILLOW: Library(opened_by_pillow, cut_by_pillow, bytes, F.pil_to_tensor),
        TORCHVISION: Library(decode_jpeg, cut_by_torchvision),
    }
    if installed("torchcodec"):
        from torchcodec import decoders

        found[TORCHCODEC] = Library(decoders.decode_jpeg, cut_by_torchvision)
    if installed("cv2"):
        found[OPENCV] = _opencv()
    if installed("spdl.io"):
        found[SPDL] = _spdl()
    return found


def opened_by_pillow(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def cut_by_pillow(image: Image.Image, box: Box, flip: bool) -> Image.Image:
    top, left, height, width = box
    crop = image.crop((left, top, left + width, top + height))
    crop = crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else crop


def cut_by_torchvision(image: Tensor, box: Box, flip: bool) -> Tensor:
    """Returns (3, SIZE, SIZE) of (3, H, W)."""
    crop: Tensor = F.resized_crop(image, *box, [SIZE, SIZE], antialias=True)
    return F.horizontal_flip(crop) if flip else crop


def _opencv() -> Library:
    import cv2

    cv2.setNumThreads(1)

    def cut(image: Any, box: Box, flip: bool) -> Any:
        top, left, height, width = box
        crop = image[top : top + height, left : left + width]
        crop = cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
        return cv2.flip(crop, 1) if flip else crop

    return Library(
        lambda data: cv2.imdecode(data, cv2.IMREAD_COLOR_RGB),
        cut,
        lambda file: np.frombuffer(file, np.uint8),
    )


def _spdl() -> Library:
    """Returns SPDL's FFmpeg filters, which cut while they decode."""
    import spdl.io

    from benchmarks.pipelines.spdl_images import spdl_filters

    def cut(file: bytes, box: Box, flip: bool) -> Any:
        filters = spdl_filters(box, flip, SIZE)
        frames = spdl.io.decode_packets(spdl.io.demux_image(file), filter_desc=filters)
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    return Library(lambda file: file, cut, bytes)


def on_dali(
    files: Sequence[bytes], count: int = BATCH, augment: Callable[[Any], Any] | None = None
) -> dict[str, Work]:
    """Random crops and flips of `count` images, then what `augment` adds to DALI's pipeline.

    DALI draws its own boxes, from the same distribution.
    """
    if not installed("nvidia.dali"):
        return {}
    from nvidia.dali import fn, pipeline_def, types

    arrays = [np.frombuffer(files[i % len(files)], np.uint8) for i in range(count)]

    @pipeline_def(
        batch_size=count, num_threads=1, device_id=None, exec_async=False, exec_pipelined=False,
        prefetch_queue_depth=1, enable_conditionals=augment is not None,
    )  # fmt: skip
    def pipeline() -> Any:
        encoded = fn.external_source(lambda: arrays, dtype=types.UINT8)
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        images = fn.resize(
            images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True
        )
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        return images if augment is None else augment(images)

    built = pipeline()
    built.build()
    return {"DALI (CPU)": built.run}


def random_boxes(height: int, width: int) -> Tensor:
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    return torch.tensor(
        [v2.RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(BATCH)]
    )


def this_operator(
    files: Sequence[Tensor], boxes: Tensor, indexes: Sequence[Tensor] | None = None, *,
    flips: bool = True, augment: Tensor | None = None, views: int = 1, make_indexes: bool = False,
) -> Work:  # fmt: skip
    """Returns a batch of all `boxes`, of files in turns; several views are of as many images
    less."""
    count = len(boxes) // views
    jpegs = [files[i % len(files)] for i in range(count)]
    of_batch = indexes and [indexes[i % len(files)] for i in range(count)]
    shape = (count, views) if views > 1 else (count,)
    flip = (torch.arange(len(boxes)) % 2 == 0).view(shape) if flips else None
    out = torch.empty((len(boxes), SIZE, SIZE, 3), dtype=torch.uint8).movedim(-1, -3)
    out, boxes = out.unflatten(0, shape), boxes.view(*shape, 4)
    augment = None if augment is None else augment.unflatten(0, shape)
    return lambda: decode_crop_resize_batch(
        jpegs, boxes, SIZE, indexes=of_batch, flip=flip, augment=augment, out=out,
        make_indexes=make_indexes,
    )  # fmt: skip
