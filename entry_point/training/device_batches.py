"""Batches on the device: uint8 crosses the bus, normalisation happens on the other side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from entry_point.data import Batch
from entry_point.training.stopwatch import Stopwatch


class Normalize(torch.nn.Module):
    """uint8 `(N, 3, S, S)` -> float `(x / 255 - mean) / std`, as one multiply and one add."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        mean_, std_ = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("scale", (1 / (255 * std_)).view(3, 1, 1))
        self.register_buffer("shift", (-mean_ / std_).view(3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self.shift, images.to(self.scale.dtype), self.scale)


@dataclass(frozen=True)
class DeviceBatch:
    """One batch, ready for the model."""

    images: torch.Tensor
    """float `(N, 3, S, S)`, normalised, on the device."""
    labels: torch.Tensor
    """int64 `(N,)`, on the device."""
    indices: torch.Tensor
    """int64 `(N,)`: the samples' numbers in their source, on the CPU."""
    damaged: int
    """Images that could not be decoded."""
    wait: float
    """Seconds the training process stood still until this batch was there."""
    copying: Stopwatch
    """Times the way to the device and the normalisation there."""


def device_batches(
    batches: Iterable[Batch], device: torch.device, normalize: Normalize, channels_last: bool
) -> Iterator[DeviceBatch]:
    """Put a loader's batches on the device.

    On a GPU, copy and normalisation run on a stream of their own: the step before still computes
    then, since its kernels were only launched.
    """
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    for batch, wait in _timed(batches):
        with torch.cuda.stream(stream), Stopwatch(device) as copying:
            pixels = batch.images.to(device, non_blocking=True)
            labels = batch.labels.to(device, non_blocking=True)
            images = normalize(pixels).contiguous(memory_format=memory_format)
        if stream is not None:
            _hand_over(stream, images, labels)
        yield DeviceBatch(images, labels, batch.indices, len(batch.damage), wait, copying)
        if stream is not None:
            stream.synchronize()  # the loader may refill the pinned batch from here on


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
        batch = next(iterator, None)
        if batch is None:
            return
        yield batch, time.perf_counter() - start
