"""Decodes, crops, resizes and flips the planned boxes with NVIDIA DALI, on a GPU if there is one.

DALI rounds its resize filter differently from torch: pixels differ by 0.15 of 255 levels on average
and rarely by more than 1. On a GPU, the inverse DCT adds other rounding.
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

from entry_point.data.decode.allocation import Allocate, empty_images, reused_memory
from entry_point.data.decode.decode import (
    decode_others,
    is_jpeg,
    other_formats,
    upright_sizes,
    why_refused,
)
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.samples import Ints, rows
from entry_point.data.sources.source import Encoded

_END_OF_IMAGE = b"\xff\xd9"
_TAIL = 4096
"""Bytes at the end of a file that are searched for the end-of-image marker."""
_BEFORE_CAUSE = "encountered:"
"""The word before the cause in DALI's errors, which begin by quoting our source code."""


class DaliDecoder:
    """Threads share one DALI pipeline: one reads its files while DALI decodes for another.

    Samples are on the device, made on the calling thread's current stream. Pillow decodes images
    that are not JPEGs.
    """

    has_threads, uses_indexes = True, False

    def __init__(self, threads: int, device: torch.device, gray_bits: int = 16) -> None:
        """`gray_bits`: see DataConfig."""
        self._threads, self._device, self._gray_bits = threads, device, gray_bits
        self._pipeline: Pipeline | None = None
        self._side = 0
        self._lock = threading.Lock()

    def sizes(self, encoded: Encoded) -> tuple[Ints, Ints]:
        """See BatchDecoder."""
        return upright_sizes(encoded)

    def decode(
        self,
        encoded: Encoded,
        plan: CropPlan,
        allocate: Allocate,  # noqa: ARG002 - DALI's own
    ) -> tuple[Tensor, dict[int, str]]:
        """See BatchDecoder. A file is decoded once for each of its samples."""
        each, side = len(plan) // len(encoded), plan.side
        files = [encoded.files[i] for i in range(len(encoded)) for _ in range(each)]
        others = other_formats(encoded.files, range(len(encoded)))
        of_others = rows(others, each)
        left_out = dict.fromkeys(of_others.tolist(), "") | _truncated(files, plan.boxes)
        with self._lock:
            pixels, good = self._decode_good(files, plan.boxes, plan.flips, side, left_out)
        if not left_out:
            return pixels, {}
        images = torch.zeros((len(files), side, side, 3), dtype=torch.uint8, device=pixels.device)
        images = images.permute(0, 3, 1, 2)
        images[torch.from_numpy(good)] = pixels
        damage = {sample // each: reason for sample, reason in left_out.items() if reason}
        if others:
            made = empty_images(reused_memory, len(plan), side)
            damage |= decode_others(encoded.files, others, plan, made, self._gray_bits)
            images[torch.from_numpy(of_others)] = made[of_others].to(images.device)
        return images, damage | encoded.unreadable

    def close(self) -> None:
        """End DALI's threads by dropping the pipeline; the next call makes a new one."""
        with self._lock:
            self._pipeline = None

    def _decode_good(
        self,
        files: list[Tensor],
        boxes: Ints,
        flips: NDArray[np.bool_],
        side: int,
        left_out: dict[int, str],
    ) -> tuple[Tensor, Ints]:
        """Returns pixels and positions of the files that are not in `left_out`. Adds files that
        cannot be decoded to `left_out`, with the reason."""
        good = np.array([i for i in range(len(files)) if i not in left_out], dtype=np.int64)
        try:
            return self._run([files[i] for i in good], boxes[good], flips[good], side), good
        except RuntimeError:  # DALI does not say which file failed, or whether a file is the cause
            refused = self._refused(files, boxes, side, good.tolist())
            if not refused:
                raise
        left_out |= refused
        return self._decode_good(files, boxes, flips, side, left_out)

    def _refused(
        self, files: list[Tensor], boxes: Ints, side: int, good: list[int]
    ) -> dict[int, str]:
        """Returns why the operator rejects files or, if it decodes all of them, why DALI rejects
        some; by position."""
        reasons = {i: why_refused(files[i], torch.from_numpy(boxes[i : i + 1])) for i in good}
        if not any(reasons.values()):
            reasons = {i: self._dali_reason(files[i], boxes[i], side) for i in good}
        return {i: reason for i, reason in reasons.items() if reason}

    def _dali_reason(self, file: Tensor, box: Ints, side: int) -> str:
        """Returns why DALI cannot decode the box; empty if it can.

        Raises RuntimeError if DALI fails on an intact file, too: then the file is not the cause.
        """
        unflipped = np.array([False])
        try:
            self._run([file], box[None], unflipped, side)
        except RuntimeError as error:
            intact = io.BytesIO()
            Image.new("RGB", (1, 1)).save(intact, "JPEG")
            pixel = torch.frombuffer(intact.getbuffer(), dtype=torch.uint8)
            self._run([pixel], np.array([[0, 0, 1, 1]]), unflipped, side)
            cause = str(error).rpartition(_BEFORE_CAUSE)[2].strip()
            return f"DALI refuses it: {cause.splitlines()[0]}"
        return ""

    def _run(self, files: list[Tensor], boxes: Ints, flips: NDArray[np.bool_], side: int) -> Tensor:
        """Decode to uint8 (N, 3, side, side), channels_last. Raises RuntimeError for damage."""
        if not files:
            return torch.empty((0, 3, side, side), dtype=torch.uint8, device=self._device)
        pipeline = self._pipeline
        if pipeline is None or side != self._side or len(files) > pipeline.max_batch_size:
            pipeline = _pipeline(len(files), self._threads, self._gpu(), side)
            self._pipeline, self._side = pipeline, side
        pipeline.feed_input("files", [file.numpy() for file in files])
        pipeline.feed_input("starts", boxes[:, :2].astype(np.int32))
        pipeline.feed_input("shapes", boxes[:, 2:].astype(np.int32))
        pipeline.feed_input("flips", flips.astype(np.int32))
        try:
            (output,) = pipeline.run()
        except RuntimeError:
            self._pipeline = None  # after an error the pipeline is invalid
            raise
        images = from_dlpack(output.as_tensor()).clone()  # DALI reuses its memory
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


def _truncated(files: list[Tensor], boxes: Ints) -> dict[int, str]:
    """Returns why truncated JPEGs cannot be decoded; DALI decodes them without an error."""
    damage = {}
    for i, file in enumerate(files):
        if not is_jpeg(file) or _END_OF_IMAGE in file[-_TAIL:].numpy().tobytes():
            continue
        if reason := why_refused(file, torch.from_numpy(boxes[i : i + 1])):
            damage[i] = reason
    return damage
