"""Says, once each, what would make the rest of a run faster: compilation, smaller photographs."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

import numpy as np
import torch

import custom_op
from entry_point.config.commands import shrink_command
from entry_point.config.data_config import FORMATS
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.train_config import TrainConfig
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.decode import BatchDecoder
from entry_point.data.loader import build_decoder
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.packing.encode import RejectedError, encode
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.policies import build_augmenter
from entry_point.data.plan.samples import Samples
from entry_point.data.sources.source import Encoded, Source, read_images
from entry_point.job.devices import Devices
from entry_point.job.metrics_line import STEP_PARTS
from entry_point.job.program import ReadError
from entry_point.training.results.headspace import INPUT_BOUND
from entry_point.training.results.times import STARTING_STEPS, Times, settled, wait_share

logger = logging.getLogger(__name__)

_COMPILING_PAYS_S = 300
"""Seconds of uncompiled training, of which compilation saves about the minute that it takes."""
_HANDFUL = 8
_ASPECT = 4 / 3
"""Longer by shorter side of a camera's photographs."""
_WORTH_SHRINKING = 0.7
"""Of the decoding time, what may remain at most."""


class Advice:
    """What the first rank says of this process's first epoch."""

    def __init__(
        self, config: TrainConfig, devices: Devices, source: Source, spec: LoaderSpec
    ) -> None:
        """`source` and `spec` are those of the training split."""
        self._source, self._spec = source, spec
        self._may_compile = config.trainer.compile is None and devices.device.type == "cuda"
        may_look = devices.is_first and config.trainer.diagnose is None
        is_packable = spec.data.format in FORMATS and source.kind != "targets"
        # An image of a stream takes a whole shard; DALI's threads are its own.
        is_measurable = not spec.data.streams and spec.pipeline.engine != "dali"
        self._may_shrink = may_look and is_packable and is_measurable

    def after_interval(self, epoch: Times) -> None:
        """Look at the epoch's steps so far."""
        if self._may_shrink and len(epoch) >= 2 * STARTING_STEPS:
            self._look_at_photos(epoch)

    def after_epoch(self, epoch: Times, epochs_left: int) -> None:
        """Look at all of the epoch's steps."""
        if self._may_shrink:
            self._look_at_photos(epoch)
            self._may_shrink = False
        if self._may_compile:
            self._may_compile = False
            if line := advise_compile(epoch, epochs_left):
                logger.info(line)

    def _look_at_photos(self, epoch: Times) -> None:
        wait = wait_share(settled(epoch))
        if wait >= INPUT_BOUND:
            self._may_shrink = False
            # In a thread that nobody waits for: it takes seconds, and a read may hang.
            threading.Thread(target=self._say, args=(wait,), name="advice", daemon=True).start()

    def _say(self, wait: float) -> None:
        # Training says it, or packing would not work here.
        with suppress(RejectedError, ReadError, custom_op.BuildError):
            if line := advise_shrinking(self._source, self._spec, wait):
                logger.info(line)


def advise_compile(epoch: Times, epochs_left: int) -> str | None:
    """Returns a line on what `trainer.compile` would bring to the rest of a run on a GPU.

    `epoch` has the times of an epoch's steps. None if it would not pay: the rest is short, or steps
    wait for data.
    """
    steady = settled(epoch)
    if not len(steady) or wait_share(steady) >= INPUT_BOUND:
        return None
    seconds = float(steady[:, STEP_PARTS.index("step")].mean()) * len(epoch) * epochs_left
    if seconds < _COMPILING_PAYS_S:
        return None
    return (
        "trainer.compile=default usually makes such steps 1.2 to 1.4 times as fast after about a "
        f"minute: worth it for more than about {_COMPILING_PAYS_S // 60} minutes, and about "
        f"{seconds / 60:.0f} are left"
    )


def advise_shrinking(source: Source, spec: LoaderSpec, wait: float) -> str | None:
    """Returns a line on what packing with `max_side` would bring to samples of large photographs.

    It shrinks and decodes a handful of them. `wait` is the share of a step that waits for data.
    None if the images are small enough, or decoding would not become much cheaper. Raises
    RejectedError, ReadError and BuildError.
    """
    numbers = np.unique(np.linspace(0, len(source) - 1, _HANDFUL).astype(np.int64))
    decoder = build_decoder(spec)
    photos = read_images(source, numbers, with_indexes=decoder.uses_indexes)
    heights, widths = decoder.sizes(photos)
    height, width = int(np.median(heights)), int(np.median(widths))
    # Of photographs with this longer side, the smallest crop still has a sample's pixels.
    side = max([size for _, size in spec.data.progressive] or [spec.data.image_size])
    max_side = 32 * int(np.ceil(side * (_ASPECT / spec.data.scale[0]) ** 0.5 / 32))
    if max(height, width) < 1.5 * max_side:
        return None
    options = OptimizeConfig(source=spec.data.root, max_side=max_side)
    packed = [encode(source, int(number), options)[1] for number in numbers]
    shrunk = Encoded(
        [torch.frombuffer(bytearray(each.data), dtype=torch.uint8) for each in packed],
        [torch.frombuffer(bytearray(each.index), dtype=torch.uint8) for each in packed]
        if decoder.uses_indexes and all(each.index for each in packed)
        else None,
    )
    before, after = (_decoding_seconds(decoder, each, numbers, spec) for each in (photos, shrunk))
    if after > _WORTH_SHRINKING * before:
        return None
    command = f"`{shrink_command(spec.data, max_side)}`"
    if spec.data.format == "shards":
        command += " (FOLDER: the images before packing)"
    return (
        f"input-bound: training waits for data {100 * wait:.0f} % of the time, and samples of "
        f"images like these, of {width} x {height} pixels, take "
        f"{1000 * before / len(numbers):.1f} ms of a core each. {command} packs them with a longer "
        f"side of {max_side} pixels, and a sample takes {100 * after / before:.0f} % of that "
        f"(measured on {len(numbers)} of these images); "
        f"the price: they are compressed again, as JPEGs of quality {options.quality}"
    )


def _decoding_seconds(
    decoder: BatchDecoder, photos: Encoded, numbers: np.typing.NDArray[np.int64], spec: LoaderSpec
) -> float:
    """Seconds of CPU time for a sample of each image; the second time, with warm caches."""
    augmenter = build_augmenter(spec.augment, spec.data.normalization[0])
    planner = CropPlanner(spec.data, spec.train, spec.seed, augmenter)
    samples = Samples.of(0, numbers, views=planner.views)
    began = 0.0
    for _ in range(2):
        began = time.thread_time()
        plan = planner.plan(samples, *decoder.sizes(photos))
        decoder.decode(photos, plan, reused_memory)
    return time.thread_time() - began
