"""DALI as its own users run it: it reads files, crops at random, resizes, flips and works ahead.

The engine `dali` gives it this template's boxes, files and order instead, one batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from torch.utils.dlpack import from_dlpack

from entry_point.data.batch import Batch
from entry_point.data.loader import Loader
from entry_point.data.loader_spec import LoaderSpec

_AHEAD = 2
"""Batches that DALI prepares ahead of use, its default."""


class DaliReader(Loader):
    """A Loader of train/<class>/*.jpg: random resized crops, on the spec's device.

    Without `on_gpu`, the CPU decodes, into memory that a GPU copies from. DALI does not tell which
    files a batch is of: all its numbers are 0.
    """

    def __init__(
        self, root: Path, spec: LoaderSpec, steps_per_epoch: int, *, on_gpu: bool = True
    ) -> None:
        self.steps_per_epoch = steps_per_epoch
        self._pins = spec.device.type == "cuda" and not on_gpu
        on_gpu = spec.device.type == "cuda" and on_gpu
        self._stream = torch.cuda.Stream(spec.device) if on_gpu else None
        gpu = torch.cuda.current_device() if on_gpu else None
        data, threads = spec.data, max(1, spec.pipeline.worker_count())
        pipeline = Pipeline(spec.batch_size, threads, gpu, spec.seed, prefetch_queue_depth=_AHEAD)
        with pipeline:
            files, labels = fn.readers.file(file_root=str(root / "train"), random_shuffle=True)
            images = fn.decoders.image_random_crop(
                files,
                random_area=list(data.scale),
                random_aspect_ratio=list(data.ratio),
                device="mixed" if on_gpu else "cpu",
                output_type=types.RGB,
                jpeg_fancy_upsampling=True,  # as libjpeg does
            )
            size = [data.image_size, data.image_size]
            images = fn.resize(images, size=size, interp_type=types.INTERP_LINEAR)
            images = fn.flip(images, horizontal=fn.random.coin_flip())
            pipeline.set_outputs(images, labels)
        pipeline.build()
        self._pipeline: Pipeline | None = pipeline

    def epoch(self, _epoch: int, start_step: int = 0) -> Iterator[Batch]:
        for _ in range(start_step, self.steps_per_epoch):
            yield self._made()

    def close(self) -> None:
        """End DALI's threads."""
        self._pipeline = None

    def _made(self) -> Batch:
        assert self._pipeline is not None, "closed"
        pixels, labels = self._pipeline.run()
        with torch.cuda.stream(self._stream):
            images = from_dlpack(pixels.as_tensor()).clone()  # DALI reuses its memory
        if self._stream is not None:
            self._stream.synchronize()
        classes = from_dlpack(labels.as_tensor()).long().flatten()
        batch = Batch(images.permute(0, 3, 1, 2), classes, torch.zeros_like(classes))
        return batch.pin_memory() if self._pins else batch
