"""Typed settings of the groups `data` and `pipeline`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from entry_point.config.config_errors import ConfigError, near
from entry_point.config.knob import check_knobs, knob
from entry_point.config.table_config import TableConfig

SIZE_LIMIT = 4096
FORMATS = ("demo", "folder", "manifest", "shards")


@dataclass
class DemoConfig:
    """The generated dataset that `data=demo` uses."""

    seed: int = knob(0, least=0)
    """Random seed. The same seed generates the same images."""
    train_images: int = knob(1200, least=10)
    """Images in the train split, spread evenly over the ten classes."""
    val_images: int = knob(300, least=10)
    """Images in the val split."""

    def __post_init__(self) -> None:
        check_knobs(self, "data.demo")


@dataclass
class DataConfig:
    """The dataset, and how a sample is cut from an image."""

    format: str = "folder"
    """`demo`: generated on first use. `folder`: `root/train/<class>/*.jpg` and
    `root/val/<class>/*.jpg`, or `root/<class>/*.jpg`. `manifest`: the files that a table lists.
    `shards`: the output of `make dataset`. Or the dotted path of your own source."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of your own source."""
    root: str | None = None
    """Folder of the dataset; for `format=manifest`, the table. null: the input channel `training`,
    or the only table in it."""
    images: str | None = None
    """`format=manifest`: folder that the table's paths start from. null: the table's folder."""
    table: TableConfig = field(default_factory=TableConfig)
    val_fraction: float | None = knob(None, above=0, below=1)
    """Share of the images to validate on, chosen by a hash of their paths: for a folder without
    `val`, and for a table without a column of splits. null: 0.1 for such a table, and for a folder
    with neither `train` nor `val`. It must not be set for others."""
    balance: str | None = knob(None, choices=("classes",))
    """`classes`: training draws images with replacement, all classes equally often. null: each
    image once per epoch."""
    repeats: int = knob(1, least=1, most=64)
    """Repeated augmentation: training samples that an epoch takes of each image it draws. An epoch
    has as many samples as with 1, of fewer images."""
    views: int = knob(1, least=1, most=64)
    """Views of each training image: crops with a box, a flip and an augmentation of their own. With
    more than 1, for tasks that take several: images are `(N, views, 3, image_size, image_size)`."""
    transform: str = knob("imagenet", choices=("imagenet", "stall"))
    """`imagenet`: a random crop by `scale` and `ratio`, resized to `image_size`. `stall`: the
    published stall workload, which is a random crop of `image_size`, a random mask and YCbCr."""
    transform_on: str = knob("device", choices=("device", "cpu"))
    """Where `transform=stall` runs. `device`: the decoder returns YCbCr and the device masks whole
    batches. `cpu`: the decoding thread or worker masks and converts each sample, as published."""
    image_size: int = knob(224, least=1, most=SIZE_LIMIT)
    """Height and width of a sample in pixels."""
    progressive: list[list[int]] = field(default_factory=list)
    """Training: other image sizes by epoch, as in `[[0,128],[10,160]]`: 128 pixels from epoch 0 on,
    160 from epoch 10 on. The model must take any size. []: `image_size` in all epochs."""
    eval_size: int | None = knob(None, least=1, most=SIZE_LIMIT)
    """Height and width in pixels of a validation sample, and of what the exported model takes.
    null: `image_size`."""
    resize: int = knob(256, least=1, most=SIZE_LIMIT)
    """Validation: length of the shorter side in pixels before the center crop. At least as long as
    the crop."""
    scale: list[float] = knob([0.08, 1.0], length=2, above=0, most=1)
    """Training: smallest and largest share of the image's area that a random crop takes."""
    ratio: list[float] = knob([3 / 4, 4 / 3], length=2, above=0)
    """Training: smallest and largest width/height of a random crop."""
    hflip: float = knob(0.5, least=0, most=1)
    """Training: probability of a left-right flip."""
    mean: list[float] = knob([0.485, 0.456, 0.406], length=3)
    """Mean of red, green and blue on the 0 to 1 scale. The device subtracts it."""
    std: list[float] = knob([0.229, 0.224, 0.225], length=3, above=0)
    """Standard deviation of red, green and blue on the 0 to 1 scale. The device divides by it."""
    access: str = knob("map", choices=("map", "stream"))
    """How `format=shards` is read. `map`: memory-mapped local files. `stream`: whole shards in
    order, for FastFile and network file systems."""
    window_shards: int = knob(2, least=1, most=1024)
    """`access=stream`: number of shards among which samples are shuffled. Memory holds three such
    windows."""
    sharded_by_host: bool = False
    """`access=stream`: each host has only its own shards (ShardedByS3Key) and reads only those."""
    index: str = knob("auto", choices=("auto", "none"))
    """Side indexes of JPEG files that have none beside them (`folder` and `manifest`). `auto`: they
    are made while the images are decoded for the first time, and kept in this host's cache.
    `none`: every epoch decodes from the start of the file. The samples are the same."""
    index_root: str | None = None
    """Folder of the indexes, when another channel or folder holds them: with `access=stream`
    dataset.json and the splits' indexes, with `folder` and `manifest` the folder `jpeg-index`.
    null: the folder of the images."""
    on_error: str = knob("raise", choices=("raise", "skip"))
    """What a damaged image does. `raise`: it stops the job. `skip`: it is logged, training uses the
    next sample instead, and validation leaves it out."""
    max_bad_fraction: float = knob(0.01, least=0, most=1)
    """`on_error=skip`: the job stops when more than this share of an epoch's samples is damaged."""
    demo: DemoConfig = field(default_factory=DemoConfig)

    def __post_init__(self) -> None:
        check_knobs(self, "data")
        self.table.check("data.table")
        self._check_format()
        if self.format == "demo" and not self.root:
            raise ConfigError("data.root", self.root, "data=demo needs a folder to generate into")
        self._check_sizes()
        for key in ("scale", "ratio"):
            if (pair := getattr(self, key))[0] > pair[1]:
                raise ConfigError(f"data.{key}", pair, "must be [smallest,largest]")
        if self.access == "stream" and self.format != "shards":
            raise ConfigError("data.access", "stream", f"needs data=shards, not data={self.format}")
        if self.sharded_by_host and self.access != "stream":
            raise ConfigError("data.sharded_by_host", True, "needs data.access=stream")
        if self.transform_on == "cpu" and self.transform != "stall":
            raise ConfigError("data.transform_on", "cpu", "needs data.transform=stall")
        if self.transform == "stall" and (any(self.mean) or set(self.std) != {1.0}):
            raise ConfigError(
                "data.transform",
                "stall",
                "only divides by 255, as published; add data.mean=[0,0,0] data.std=[1,1,1], or use "
                "experiment=stall",
            )

    def _check_sizes(self) -> None:
        if self.resize < self.val_size:
            key = "image_size" if self.eval_size is None else "eval_size"
            must = f"must be at least data.{key}={self.val_size}"
            raise ConfigError("data.resize", self.resize, must)
        starts = [pair[0] for pair in self.progressive]
        if not all(len(pair) == 2 and 1 <= pair[1] <= SIZE_LIMIT for pair in self.progressive):
            must = f"must be pairs of an epoch and a size of at most {SIZE_LIMIT}"
            raise ConfigError("data.progressive", self.progressive, must)
        if starts and (starts[0] != 0 or starts != sorted(set(starts))):
            must = "must begin with epoch 0 and go on with later ones, as in [[0,128],[10,160]]"
            raise ConfigError("data.progressive", self.progressive, must)

    def _check_format(self) -> None:
        known = self.format in FORMATS
        parts = self.format.split(".")
        if not known and (len(parts) < 2 or not all(part.isidentifier() for part in parts)):
            must = f"must be one of {', '.join(FORMATS)}, or the dotted path of your own source"
            raise ConfigError("data.format", self.format, must + near(self.format, FORMATS))
        if known and self.kwargs:
            must = "are arguments of your own source; set data.format to its dotted path"
            raise ConfigError("data.kwargs", self.kwargs, must)
        if known and self.format != "manifest":
            if self.images is not None:
                raise ConfigError("data.images", self.images, "needs data=manifest")
            if self.table != TableConfig():
                raise ConfigError("data.table", must="needs data=manifest")
        if self.val_fraction is not None and self.format not in ("folder", "manifest"):
            must = "needs data=folder or data=manifest"
            raise ConfigError("data.val_fraction", self.val_fraction, must)
        self._check_repeats()

    def _check_repeats(self) -> None:
        repeating = {"balance": self.balance, "repeats": self.repeats if self.repeats > 1 else None}
        for key, value in repeating.items():
            if value is not None and self.access == "stream":
                must = "needs data.access=map: a stream reads each shard once"
                raise ConfigError(f"data.{key}", value, must)
            if value is not None and self.transform == "stall":
                must = "needs data.transform=imagenet: stall masks a repeated image in the same way"
                raise ConfigError(f"data.{key}", value, must)
        if self.views > 1 and self.transform == "stall":
            must = "needs data.transform=imagenet: stall masks all views in the same way"
            raise ConfigError("data.views", self.views, must)

    def train_size(self, epoch: int) -> int:
        """Height and width of a training sample in `epoch`."""
        begun = [size for start, size in self.progressive if start <= epoch]
        return begun[-1] if begun else self.image_size

    @property
    def val_size(self) -> int:
        """Height and width of a validation sample."""
        return self.image_size if self.eval_size is None else self.eval_size

    @property
    def color(self) -> Literal["rgb", "ycbcr"]:
        """The color space that the decoder returns."""
        return "ycbcr" if self.transform == "stall" and self.transform_on == "device" else "rgb"


@dataclass
class PipelineConfig:
    """The engine that turns bytes into batches. Every engine gives the same samples."""

    engine: str = knob("threads", choices=("pillow", "workers", "threads", "dali"))
    """`threads`: the batch operator in threads of the training process. `workers`: the operator in
    DataLoader workers. `pillow`: Pillow in DataLoader workers. `dali`: NVIDIA DALI, on the training
    GPU if there is one."""
    num_workers: int | None = knob(None, least=0, most=512)
    """Worker processes or threads of each rank, for training and validation together. null: its
    host's usable cores, divided by the ranks there. 0: `pillow` and `workers` decode in the
    training process."""
    prefetch: int = knob(2, least=1, most=64)
    """Batches decoded ahead of use: per worker process, or by all threads together."""

    def __post_init__(self) -> None:
        check_knobs(self, "pipeline")

    def worker_count(self) -> int:
        return cores_per_rank() if self.num_workers is None else self.num_workers


def cores_per_rank() -> int:
    """This rank's share of the usable cores of its host."""
    of_host = cores = usable_cores()
    if hasattr(os, "sched_getaffinity"):
        # A rank may be bound to the cores near its GPU; whoever started it is not.
        of_host = max(cores, len(os.sched_getaffinity(os.getppid())))
    return max(1, min(cores, of_host // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def usable_cores() -> int:
    """Cores this process may run on (a container or `taskset` can allow fewer than exist)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
