"""Batches on the device: uint8 crosses the bus, floats are made on the other side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import torch

from entry_point.data.batch import Batch
from entry_point.data.spans import Span
from entry_point.training.measure.named_range import named_range
from entry_point.training.measure.stopwatch import Stopwatch

Prepare = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From a loader's images and the samples' numbers, both on the device, to what the model takes."""


@dataclass(frozen=True)
class DeviceBatch:
    """One batch, ready for the model."""

    images: torch.Tensor
    """float `(N, 3, S, S)`, prepared, on the device."""
    labels: torch.Tensor
    """int64 `(N,)`, on the device."""
    indices: torch.Tensor
    """int64 `(N,)`: the samples' numbers in their source, on the CPU."""
    damaged: int
    """Images that could not be decoded."""
    wait: float
    """Seconds the training process stood still until this batch was there."""
    copying: Stopwatch
    """Times the way to the device and the preparation there."""
    spans: tuple[Span, ...]
    """What making the batch took, where that is recorded."""


def device_batches(
    batches: Iterable[Batch], device: torch.device, prepare: Prepare, channels_last: bool
) -> Iterator[DeviceBatch]:
    """Put a loader's batches on the device.

    On a GPU, copy and preparation run on a stream of their own: the step before still computes
    then, since its kernels were only launched.
    """
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    stream = _copy_stream(device) if device.type == "cuda" else None
    for batch, wait in _timed(batches):
        with torch.cuda.stream(stream), Stopwatch(device) as copying:
            with named_range("copy"):
                pixels, labels, indices = (
                    # From a GPU to the CPU it would return before the pixels are there.
                    tensor.to(device, non_blocking=stream is not None)
                    for tensor in (batch.images, batch.labels, batch.indices)
                )
            with named_range("prepare"):
                images = prepare(pixels, indices).contiguous(memory_format=memory_format)
        if stream is not None:
            if batch.images.is_cuda:
                batch.images.record_stream(stream)
            _hand_over(stream, images, labels)
        damaged = len(batch.damage)
        yield DeviceBatch(images, labels, batch.indices, damaged, wait, copying, batch.spans)


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all epochs: torch keeps freed memory apart for each stream."""
    return torch.cuda.Stream(device)


def _hand_over(stream: torch.cuda.Stream, *tensors: torch.Tensor) -> None:
    """Let the current stream use what `stream` is making."""
    current = torch.cuda.current_stream(stream.device)
    current.wait_stream(stream)
    for tensor in tensors:
        tensor.record_stream(current)


def _timed(batches: Iterable[Batch]) -> Iterator[tuple[Batch, float]]:
    iterator = iter(batches)
    while True:
        start = time.perf_counter()
        with named_range("data_wait"):
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch, time.perf_counter() - start
