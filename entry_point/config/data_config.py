"""Typed settings of `data` and `pipeline`, checked once when they are made."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from entry_point.config.config_errors import ConfigError, check_choice, check_range

FORMATS = ("demo", "folder", "shards")
ENGINES = ("pillow", "workers", "threads", "subprocess", "dali")
TRANSFORMS = ("imagenet", "stall")
SIZE_LIMIT = 4096


@dataclass
class DemoConfig:
    """The generated data set; only `data=demo` uses it."""

    seed: int = 0
    """Everything drawn follows from it."""
    train_images: int = 1200
    """Images in the train split, spread evenly over the ten classes."""
    val_images: int = 300
    """Images in the val split."""

    def __post_init__(self) -> None:
        check_range("data.demo.seed", self.seed, 0)
        check_range("data.demo.train_images", self.train_images, 10)
        check_range("data.demo.val_images", self.val_images, 10)


@dataclass
class DataConfig:
    """Which images, and how a sample is cut from one."""

    format: str = "folder"
    """demo (generated once), folder (root/train/<class>/*.jpg, root/val/<class>/*.jpg) or shards
    (what `make dataset` writes)."""
    root: str | None = None
    """The data set's folder; null means the input channel `training`."""
    transform: str = "imagenet"
    """imagenet (a random box of scale and ratio, resized) or stall (the published stall workload: a
    random box of image_size, a random mask, YCbCr)."""
    transform_on: str = "device"
    """Of stall: device (YCbCr from the decoder, masked in batch on the device) or cpu (masked and
    converted one by one where they are decoded, as published)."""
    image_size: int = 224
    """Height and width of a sample in pixels."""
    resize: int = 256
    """Validation: the shorter side in pixels before the centre crop of image_size."""
    scale: list[float] = field(default_factory=lambda: [0.08, 1.0])
    """Training: smallest and largest share of the image's area that a random crop takes."""
    ratio: list[float] = field(default_factory=lambda: [3 / 4, 4 / 3])
    """Training: smallest and largest width / height of a random crop."""
    hflip: float = 0.5
    """Training: probability of a left-right flip."""
    mean: list[float] = field(default_factory=lambda: [0.485, 0.456, 0.406])
    """Per channel, on the 0..1 scale; subtracted on the device."""
    std: list[float] = field(default_factory=lambda: [0.229, 0.224, 0.225])
    """Per channel, on the 0..1 scale; divided by on the device."""
    access: str = "map"
    """Of shards: map (memory-mapped, local files) or stream (read whole and in order, for FastFile
    and network file systems)."""
    window_shards: int = 2
    """access=stream: samples are shuffled within so many shards; three windows are in memory."""
    sharded_by_host: bool = False
    """access=stream: each host has shards of its own (ShardedByS3Key) and reads only those."""
    index_root: str | None = None
    """access=stream: where dataset.json and the indexes are when not in root (another channel)."""
    on_error: str = "raise"
    """A damaged image: raise stops the job; skip trains on the next sample instead (validation
    leaves it out), lists it, and stops above max_bad_fraction."""
    max_bad_fraction: float = 0.01
    """With on_error=skip: the largest share of an epoch's samples that may be damaged."""
    demo: DemoConfig = field(default_factory=DemoConfig)

    def __post_init__(self) -> None:
        check_choice("data.format", self.format, FORMATS)
        if self.format == "demo" and not self.root:
            raise ConfigError(f"data.root={self.root}: data=demo needs a folder to generate into")
        check_range("data.image_size", self.image_size, 1, SIZE_LIMIT)
        check_range("data.resize", self.resize, self.image_size, SIZE_LIMIT)
        _check_interval("data.scale", self.scale, most=1.0)
        _check_interval("data.ratio", self.ratio)
        check_range("data.hflip", self.hflip, 0.0, 1.0)
        _check_channels("data.mean", self.mean)
        _check_channels("data.std", self.std)
        check_choice("data.access", self.access, ("map", "stream"))
        if self.access == "stream" and self.format != "shards":
            raise ConfigError(f"data.access=stream: needs data=shards, not data={self.format}")
        if self.sharded_by_host and self.access != "stream":
            raise ConfigError("data.sharded_by_host=true: needs data.access=stream")
        check_range("data.window_shards", self.window_shards, 1, 1024)
        check_choice("data.on_error", self.on_error, ("raise", "skip"))
        check_range("data.max_bad_fraction", self.max_bad_fraction, 0.0, 1.0)
        for value in self.std:
            check_range("data.std", value, above=0.0)
        self._check_transform()

    def _check_transform(self) -> None:
        check_choice("data.transform", self.transform, TRANSFORMS)
        check_choice("data.transform_on", self.transform_on, ("device", "cpu"))
        if self.transform_on == "cpu" and self.transform != "stall":
            raise ConfigError("data.transform_on=cpu: needs data.transform=stall")
        if self.transform == "stall" and (any(self.mean) or set(self.std) != {1.0}):
            raise ConfigError(
                "data.transform=stall: only divides by 255, as published; add data.mean=[0,0,0] "
                "data.std=[1,1,1], or use experiment=stall"
            )

    @property
    def color(self) -> Literal["rgb", "ycbcr"]:
        """What the decoder is asked for."""
        return "ycbcr" if self.transform == "stall" and self.transform_on == "device" else "rgb"


@dataclass
class PipelineConfig:
    """How bytes become batches: the same samples whichever engine."""

    engine: str = "threads"
    """pillow (Pillow in DataLoader workers), workers (the operator in DataLoader workers), threads
    (the batch operator in threads of the training process), subprocess (the same threads in one
    child process) or dali (NVIDIA DALI, on the GPU that trains if one does)."""
    num_workers: int | None = None
    """Worker processes or threads; null means one per usable core. DataLoader engines decode in
    the training process with 0."""
    prefetch: int = 2
    """Batches ready ahead of use: of each worker process, or of all threads together."""

    def __post_init__(self) -> None:
        check_choice("pipeline.engine", self.engine, ENGINES)
        if self.num_workers is not None:
            check_range("pipeline.num_workers", self.num_workers, 0, 512)
        check_range("pipeline.prefetch", self.prefetch, 1, 64)

    def worker_count(self) -> int:
        return usable_cores() if self.num_workers is None else self.num_workers


def usable_cores() -> int:
    """Cores this process may run on (a container or `taskset` can allow fewer than exist)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_interval(key: str, value: list[float], most: float | None = None) -> None:
    if len(value) != 2 or not value[0] <= value[1]:
        raise ConfigError(f"{key}={value}: must be two numbers, [smallest,largest]")
    check_range(key, value[0], above=0.0)
    check_range(key, value[1], most=most)


def _check_channels(key: str, value: list[float]) -> None:
    if len(value) != 3:
        raise ConfigError(f"{key}={value}: must be three numbers, [red,green,blue]")
