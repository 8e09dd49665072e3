"""Samples from NVIDIA DALI: it decodes, crops, resizes and flips what our plan says.

For a GPU it decodes on that GPU. Its resize rounds its filter otherwise than torch does: of 255
levels 0.15 differ on average, few more than 1; the GPU's inverse transform adds its own rounding.
"""

from __future__ import annotations

import io
import threading

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline
from PIL import Image
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from custom_op import JpegError, decode_crop_resize_batch
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.image_sizes import upright_sizes
from entry_point.data.decode.reading import read_files
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.sources.source import Source
from entry_point.data.spans import span

_END_OF_IMAGE = b"\xff\xd9"
_TAIL = 4096
"""Bytes at the end of a file among which the end-of-image marker is looked for."""
_BEFORE_WHAT_HAPPENED = "encountered:"
"""DALI's errors begin with our source's lines."""


class DaliImages:
    """One DALI pipeline; threads that call it read their files while it works for another."""

    def __init__(self, threads: int, device: torch.device) -> None:
        self._threads, self._device = threads, device
        self._pipeline: Pipeline | None = None
        self._lock = threading.Lock()

    def __call__(
        self, source: Source, planner: CropPlanner, epoch: int, indices: Ints, _allocate: Allocate
    ) -> tuple[Tensor, dict[int, str]]:
        """Pixels, uint8 (N, 3, image_size, image_size), and why those at some places are missing.

        On the device, made on the stream that is current in this thread.
        """
        side = planner.data.image_size
        files, unreadable = read_files(source, indices)
        heights, widths = upright_sizes(source, files, indices)
        boxes, flips = planner.plan(epoch, indices, heights, widths)
        damage = _cut_short(files, boxes)
        with self._lock, span("dali"):
            pixels, good = self._sound(files, boxes, flips, side, damage)
        if not damage:
            return pixels, damage
        images = torch.zeros((len(files), side, side, 3), dtype=torch.uint8, device=pixels.device)
        images = images.permute(0, 3, 1, 2)
        images[torch.from_numpy(good)] = pixels
        return images, damage | unreadable

    def close(self) -> None:
        """End DALI's threads, who live as long as its pipeline; a call begins with new ones."""
        with self._lock:
            self._pipeline = None

    def _sound(
        self,
        files: list[Tensor],
        boxes: Ints,
        flips: NDArray[np.bool_],
        side: int,
        damage: dict[int, str],
    ) -> tuple[Tensor, Ints]:
        """Pixels and places of the files that are not in `damage`; adds what it finds to it."""
        good = np.array([i for i in range(len(files)) if i not in damage], dtype=np.int64)
        try:
            return self._run([files[i] for i in good], boxes[good], flips[good], side), good
        except RuntimeError:  # DALI does not say which file it was, nor whether it was one
            refused = self._refused(files, boxes, side, good.tolist())
            if not refused:
                raise
        damage |= refused
        return self._sound(files, boxes, flips, side, damage)

    def _refused(
        self, files: list[Tensor], boxes: Ints, side: int, places: list[int]
    ) -> dict[int, str]:
        """Why the operator, or if it decodes them all DALI alone, refuses some of the files."""
        reasons = {i: _reason(files[i], boxes[i]) for i in places}
        if not any(reasons.values()):
            reasons = {i: self._own_reason(files[i], boxes[i], side) for i in places}
        return {i: reason for i, reason in reasons.items() if reason}

    def _own_reason(self, file: Tensor, box: Ints, side: int) -> str:
        """Why DALI cannot decode the box; nothing if it can.

        Raises RuntimeError if that is not the file's fault: DALI decodes nothing any more.
        """
        unflipped = np.array([False])
        try:
            self._run([file], box[None], unflipped, side)
        except RuntimeError as error:
            self._run([_sound_file()], np.array([[0, 0, 1, 1]]), unflipped, side)
            what = str(error).rpartition(_BEFORE_WHAT_HAPPENED)[2].strip()
            return f"DALI refuses it: {what.splitlines()[0]}"
        return ""

    def _run(self, files: list[Tensor], boxes: Ints, flips: NDArray[np.bool_], side: int) -> Tensor:
        """uint8 (N, 3, side, side), channels_last. Raises RuntimeError if a file is damaged."""
        if not files:
            return torch.empty((0, 3, side, side), dtype=torch.uint8, device=self._device)
        if self._pipeline is None or len(files) > self._pipeline.max_batch_size:
            self._pipeline = _pipeline(len(files), self._threads, self._gpu(), side)
        pipeline = self._pipeline
        pipeline.feed_input("files", [file.numpy() for file in files])
        pipeline.feed_input("starts", boxes[:, :2].astype(np.int32))
        pipeline.feed_input("shapes", boxes[:, 2:].astype(np.int32))
        pipeline.feed_input("flips", flips.astype(np.int32))
        try:
            (output,) = pipeline.run()
        except RuntimeError:
            self._pipeline = None  # DALI calls it no longer valid
            raise
        images = from_dlpack(output.as_tensor()).clone()  # DALI uses its memory again
        if images.is_cuda:
            torch.cuda.current_stream(images.device).synchronize()
        return images.permute(0, 3, 1, 2)

    def _gpu(self) -> int | None:
        if self._device.type != "cuda":
            return None
        return torch.cuda.current_device() if self._device.index is None else self._device.index


def _pipeline(batch_size: int, threads: int, gpu: int | None, side: int) -> Pipeline:
    pipeline = Pipeline(
        batch_size, threads, gpu, exec_pipelined=False, exec_async=False, prefetch_queue_depth=1
    )
    with pipeline:
        images = fn.decoders.image_slice(
            fn.external_source(name="files", no_copy=True),
            fn.external_source(name="starts"),
            fn.external_source(name="shapes"),
            axis_names="HW",
            device="cpu" if gpu is None else "mixed",
            output_type=types.RGB,
            jpeg_fancy_upsampling=True,  # as libjpeg does
        )
        images = fn.resize(images, size=[side, side], interp_type=types.INTERP_LINEAR)
        pipeline.set_outputs(fn.flip(images, horizontal=fn.external_source(name="flips")))
    pipeline.build()
    return pipeline


def _sound_file() -> Tensor:
    """A JPEG of one pixel."""
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "JPEG")
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def _cut_short(files: list[Tensor], boxes: Ints) -> dict[int, str]:
    """Files without an end, which DALI decodes in silence as far as they go."""
    damage = {}
    for i, file in enumerate(files):
        if _END_OF_IMAGE in file[-_TAIL:].numpy().tobytes():
            continue
        if reason := _reason(file, boxes[i]):
            damage[i] = reason
    return damage


def _reason(file: Tensor, box: Ints) -> str:
    """Why the operator cannot decode the box; nothing if it can."""
    try:
        decode_crop_resize_batch([file], torch.from_numpy(box[None]), 1, num_threads=1)
    except JpegError as error:
        return str(error).removeprefix("image 0 of the batch: ")
    return ""
