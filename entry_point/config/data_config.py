"""Settings of the groups `data` and `pipeline`, and of tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import check_name
from entry_point.config.schema import SETTINGS, FilePath, Float, Int, Positive, Share, Words
from entry_point.job.cores import cores_per_rank

SIZE_LIMIT = 4096
Engine = Literal["threads", "workers", "dali"]
Crop = Literal["center", "squash"]
Access = Literal["auto", "map", "stream"]


class Format(NamedTuple):
    """A value of `data.format`."""

    reader: str = ""
    """The reader's path below `entry_point.data.sources`: a function of a Tree, a DataConfig, and
    whether labels are needed, which returns Rows. Empty for formats without a reader."""
    settings: Collection[str] = ()
    """The settings in OF_FORMATS that the format uses."""
    package: str = ""
    """The package that the reader imports; EXTRAS=FORMAT installs it."""
    streams: bool = False
    """Whether the format is always read in whole shards."""


_COLUMNS = ("table.path", "table.labels", "table.separator")
_TABLE = ("images", "table.prefix", "table.split", *_COLUMNS)
_SPLITS = "val_fraction"
FORMATS = {
    "auto": Format("folder.list_images", (*_TABLE, _SPLITS, "access")),
    "shards": Format(settings=["access"]),
    "demo": Format("demo.list_demo", ["kwargs"]),
    "folder": Format("class_folders.list_classes", [_SPLITS]),
    "manifest": Format("table.list_table", (*_TABLE, _SPLITS)),
    "webdataset": Format("webdataset.list_tars", ("table.separator", _SPLITS)),
    "parquet": Format("parquet.list_parquet", (*_COLUMNS, _SPLITS), "pyarrow", streams=True),
    "masks": Format("masks.list_masks", (*_TABLE, _SPLITS)),
}
_OWN = Format(settings=("kwargs", *_TABLE))
OF_FORMATS = ("kwargs", *_TABLE, _SPLITS, "access")
"""Settings of `data` that only some formats use; with others they must be one of _UNSET."""
_UNSET: tuple[object, ...] = (None, {}, [], "|", "auto", "map")
OF_SAMPLES = (
    *("access", "balance", "repeats", "views", "image_size", "progressive", "crop", "resize"),
    *("scale", "ratio", "hflip", "mean", "std", "max_bad_fraction"),
)
"""Settings of `data` that define the samples made of a dataset, rather than its content."""
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""Mean and standard deviation of the pixels, from 0 to 1."""


@dataclass(config=SETTINGS)
class PathsConfig:
    """The column of paths of a table (CSV, TSV, Parquet, JSON lines)."""

    # pydantic does not inherit the text below a field.
    path: str | None = Field(
        default=None,
        description="Column of the images' paths, or of their ids. null: the first that the table "
        "has of `path`, `file`, `file_name`, `filename`, `image`, `image_path`, `source-ref`, "
        "`image_id`, `id_code` or `id`.",
    )
    prefix: str | None = Field(
        default=None,
        description="Start of the paths that stands for the folder of images, such as "
        "`s3://bucket/photos/`.",
    )


@dataclass(config=SETTINGS)
class TableConfig(PathsConfig):
    """Columns of a table of labels (CSV, TSV, Parquet, JSON lines)."""

    labels: Words = Field(default=[])
    """Columns of the labels. []: the first that the table has of `label`, `labels`, `class`, `cls`,
    `target` or `class_id`, or the attribute that SageMaker's augmented manifest describes."""
    split: str | None = None
    """Column that holds `train` or `val`. null: `split`, if there is one. Rows with another value
    are not used."""
    kind: Literal["class", "labels", "numbers"] | None = None
    """What the labels are. `class`: one name per image; or several columns that hold 0 or 1, with
    one 1 in each row. `labels`: any number of names, as a list or between `separator`s; or several
    columns that hold 0 or 1. `numbers`: one or more columns. A list of 0 and 1 is as several
    columns. null: what `task.name` needs, or else what the rows look like; whole numbers are
    classes."""
    separator: str = "|"
    """Between the names in a cell of text that holds several labels; `' '` is a blank."""

    def check(self, group: str) -> None:
        """Raise ConfigError for settings of `group` that do not go together."""
        if not self.separator:
            raise ConfigError(f"{group}.separator", repr(self.separator), "must not be empty")
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"{group}.labels", self.labels, "names a column twice")


@dataclass(config=SETTINGS)
class DemoConfig:
    """What `data.kwargs` may hold with `data=demo`, the generated dataset."""

    seed: Int = Field(default=0, ge=0)
    train_images: Int = Field(default=1200, ge=10)
    """Spread evenly over the ten classes, as are those for validation."""
    val_images: Int = Field(default=300, ge=10)


@dataclass(config=SETTINGS)
class DataConfig:
    """The dataset, and how a sample is cut from an image."""

    format: str = "auto"
    """`auto`: detected from the contents of `root`. `demo`: generated on first use. `folder`:
    images in `root/train/<class>` and `root/val/<class>`, or in `root/<class>`. `manifest`: the
    files that a table lists. `shards`: the output of `make dataset`. `webdataset`: tar files in
    WebDataset's format. `parquet`: files with a column of images, such as Hugging Face's datasets.
    `masks`: images with a mask each, for `task=segmentation`. Or the dotted path to your
    own source."""
    kwargs: dict[str, Any] = Field(default={})
    """Arguments of your own source, or of `demo`: `seed`, `train_images` and `val_images`."""
    root: FilePath | None = None
    """Folder of the dataset; for `format=manifest`, the table. null: the input channel `training`,
    or the only table in it."""
    images: FilePath | None = None
    """`format=manifest`: folder that the table's paths start from. null: the table's folder."""
    table: TableConfig = Field(default_factory=TableConfig)
    val_fraction: Float | None = Field(default=None, gt=0, lt=1)
    """Share of the images to validate on, chosen by a hash of their paths, for a dataset without
    `val`. It is taken from `train`, or from all images of a dataset without splits (in folders, a
    table's column, or the names of tar or Parquet files), where null means 0.1. It must not be set
    for a dataset with `val`."""
    val_top_up: Literal["classes"] | None = "classes"
    """`classes`: where the hash chooses less than `val_fraction` of a class, the images with the
    next lowest hashes are `val`, too, and at least one of two. null: the hash alone decides, as in
    versions without this setting: their runs and models keep it. So it does where images have
    several labels, numbers or masks."""
    balance: Literal["classes"] | None = None
    """`classes`: training draws images with replacement, all classes equally often. null: each
    image once per epoch."""
    repeats: Int = Field(default=1, ge=1, le=64)
    """Repeated augmentation: number of training samples per image. An epoch has as many samples as
    with 1, from fewer images."""
    views: Int = Field(default=1, ge=1, le=64)
    """Training samples per image, side by side in the batch, each with its own box, flip and
    augmentation. A step still takes `trainer.batch_size` images."""
    image_size: Int = Field(default=224, ge=1, le=SIZE_LIMIT)
    """Height and width in pixels of a sample, and of what the exported model takes."""
    progressive: list[list[int]] = Field(default=[])
    """Training: other image sizes by epoch, as in `[[0,128],[10,160]]`: 128 pixels from epoch 0 on,
    160 from epoch 10 on. The model must take any size. []: `image_size` in all epochs. `[[0,176]]`
    trains at 176 pixels and validates at `image_size`."""
    crop: Crop = "center"
    """What validation, `make predict` and the server take of an image. `center`: the center crop.
    `squash`: the whole image, resized to `image_size` in both directions."""
    resize: Int = Field(default=256, ge=1, le=SIZE_LIMIT)
    """`crop=center`: length of the shorter side in pixels before the center crop. At least as long
    as the crop."""
    scale: list[Annotated[Float, Field(gt=0, le=1)]] = Field(
        default=[0.08, 1.0], min_length=2, max_length=2
    )
    """Training: smallest and largest share of the image's area that a random crop takes."""
    ratio: list[Positive] = Field(default=[3 / 4, 4 / 3], min_length=2, max_length=2)
    """Training: smallest and largest width/height of a random crop."""
    hflip: Share = 0.5
    """Training: probability of a left-right flip."""
    mean: list[Share] | None = Field(default=None, min_length=3, max_length=3)
    """Mean of red, green and blue on the 0 to 1 scale. The device subtracts it. null: what
    `model.weights` were trained with; without weights, or if nothing tells, ImageNet's
    `[0.485,0.456,0.406]`. A job writes the numbers to config.yaml."""
    std: list[Positive] | None = Field(default=None, min_length=3, max_length=3)
    """Standard deviation of red, green and blue on the 0 to 1 scale. The device divides by it.
    null: as for `mean`; ImageNet's is `[0.229,0.224,0.225]`."""
    gray_bits: Int = Field(default=16, ge=9, le=16)
    """Bits that gray images of 16 bits use: 12 for those of many microscopes, scanners and cameras.
    A value with all of them set is white."""
    access: Access = "auto"
    """How `format=shards` is read. `map`: memory-mapped local files. `stream`: whole shards in
    order, for FastFile and network file systems. `auto`: `stream` where the shards lie on a file
    system of a user-space program (FUSE), as those that show objects of S3, else `map`."""
    index_root: FilePath | None = None
    """Folder of the indexes, when another channel or folder holds them: of streamed shards all
    files of the dataset but the shards, with `folder` and `manifest` the file
    `jpeg-index.sqlite`. null: the folder of the images."""
    max_bad_fraction: Share = 0.0
    """Share of an epoch's images that may be damaged. 0: the first damaged image stops the job.
    Above 0: they are logged, training uses the next image instead, and validation leaves them out;
    the job stops above that share."""

    def __post_init__(self) -> None:
        self._check_format()
        self._check_sizes()
        for key in ("scale", "ratio"):
            if (pair := getattr(self, key))[0] > pair[1]:
                raise ConfigError(f"data.{key}", pair, "must be [smallest,largest]")
        repeating = {"balance": self.balance, "repeats": self.repeats if self.repeats > 1 else None}
        for key, value in repeating.items():
            if value is not None and self.streams:
                message = "needs data.access=map"
                if self._format.streams:
                    message = f"needs the output of `make dataset`, not data={self.format}"
                message += ": a stream reads each shard once"
                raise ConfigError(f"data.{key}", value, message)

    def _check_format(self) -> None:
        """Raise ConfigError for a format that does not exist, and for settings of others."""
        check_name("data.format", self.format, FORMATS)
        heeded = self._format.settings
        for key in OF_FORMATS:
            value = attrgetter(key)(self)
            if value not in _UNSET and key not in heeded:
                names = [name for name, each in FORMATS.items() if key in each.settings]
                names += ["a source of your own"] if key in _OWN.settings else []
                *names, last = (name for name in names if name != "auto")
                needed = f"{', '.join(names)} or {last}" if names else last
                message = f"needs data={needed}, not data={self.format}"
                raise ConfigError(f"data.{key}", value, message)
        self.table.check("data.table")
        if self.format == "demo" and self.demo() and not self.root:
            raise ConfigError("data.root", self.root, "data=demo needs a folder to generate into")

    def _check_sizes(self) -> None:
        if self.crop == "center" and self.resize < self.image_size:
            message = f"must be at least data.image_size={self.image_size}"
            raise ConfigError("data.resize", self.resize, message)
        if not all(len(pair) == 2 and 1 <= pair[1] <= SIZE_LIMIT for pair in self.progressive):
            message = f"must be pairs of an epoch and a size of at most {SIZE_LIMIT}"
            raise ConfigError("data.progressive", self.progressive, message)
        starts = [start for start, _ in self.progressive]
        if starts and (starts[0] != 0 or starts != sorted(set(starts))):
            message = "must start at epoch 0, with ascending epochs, as in [[0,128],[10,160]]"
            raise ConfigError("data.progressive", self.progressive, message)

    @property
    def streams(self) -> bool:
        """Whether shards are read whole, and each rank gets its own."""
        return self.access == "stream" or self._format.streams

    @property
    def _format(self) -> Format:
        return FORMATS.get(self.format, _OWN)

    def demo(self) -> DemoConfig:
        """`kwargs` for `format=demo`. Raises ConfigError."""
        return check_config(self.kwargs, DemoConfig, "data.kwargs")

    @property
    def normalization(self) -> tuple[list[float], list[float]]:
        """`mean` and `std`; ImageNet's for null."""
        return self.mean or [*IMAGENET["mean"]], self.std or [*IMAGENET["std"]]

    def train_size(self, epoch: int) -> int:
        """Height and width of a training sample in `epoch`."""
        begun = [size for start, size in self.progressive if start <= epoch]
        return begun[-1] if begun else self.image_size


def dataset_settings(
    given: Mapping[str, Any], table: PathsConfig, more: Mapping[str, Any]
) -> DataConfig:
    """Returns the settings of a dataset as a program without the group `data` takes them, and
    `more` of that group; raises ConfigError. Damaged images stop none of these programs."""
    for key in OF_SAMPLES:
        if key in more and key != "access":
            message = "changes nothing here, only samples of training and `make evaluate`; drop it"
            raise ConfigError(f"data.{key}", more[key], message)
    return changed({"max_bad_fraction": 1.0, **given, "table": asdict(table)}, more)


def changed(given: Mapping[str, Any], more: Mapping[str, Any]) -> DataConfig:
    """Returns the settings of a dataset with other values of some, also of single columns; raises
    ConfigError."""
    settings = {**given, **more}
    if isinstance(settings["table"], dict):
        settings["table"] = {**given["table"], **settings["table"]}
    return check_config(settings, DataConfig, "data")


@dataclass(config=SETTINGS)
class PipelineConfig:
    """The engine that turns bytes into batches. Every engine gives the same samples."""

    engine: Engine = "threads"
    """`threads`: threads of the training process. `workers`: torch's DataLoader. `dali`: NVIDIA
    DALI, on the training GPU if there is one."""
    decoder: Literal["operator", "pillow"] = "operator"
    """What `threads` and `workers` decode with. `operator`: the batch operator. `pillow`: whole
    images with Pillow, which needs no compiler."""
    num_workers: Int | None = Field(default=None, ge=0, le=512)
    """Worker processes or threads of each rank, as many for training as for validation. null: its
    host's usable cores, divided by the ranks there. 0: `workers` decodes in the training
    process."""

    def __post_init__(self) -> None:
        if self.engine == "dali" and self.decoder == "pillow":
            message = "needs pipeline.engine=threads or workers: dali decodes itself"
            raise ConfigError("pipeline.decoder", "pillow", message)

    def name(self) -> str:
        """Returns the engine and, unless it is the operator, what decodes."""
        return f"{self.engine} (Pillow)" if self.decoder == "pillow" else self.engine

    def worker_count(self) -> int:
        return cores_per_rank() if self.num_workers is None else self.num_workers
