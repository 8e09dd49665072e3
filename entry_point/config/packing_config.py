"""Settings of `make dataset` and `make check-dataset`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, TableConfig, dataset_settings
from entry_point.config.part import PartText
from entry_point.config.schema import SETTINGS, FilePath, Float, Int, Positive


@dataclass(config=SETTINGS)
class OptimizeConfig:
    """Packing images for training."""

    source: FilePath | None = None
    """Folder with images in `source/<split>/<class>/` or `source/<class>/`, or a table that lists
    images and their labels. null, in a Processing job: its input folder."""
    images: FilePath | None = None
    """`source=TABLE`: folder that the table's paths start from. null: the table's folder."""
    table: TableConfig = Field(default_factory=TableConfig)
    val_fraction: Float | None = Field(default=None, gt=0, lt=1)
    """Share of the images for `val`, chosen by a hash of their paths, as `data.val_fraction`."""
    data: dict[str, Any] = Field(default={})
    """Other settings for reading the source, such as `data.format=webdataset`."""
    output: FilePath | None = None
    """Folder to create. null, in a Processing job: its output folder; with `output_format=index`:
    the source."""
    output_format: Literal["shards", "index"] = "shards"
    """`shards`: tar files and an index. `index`: no images, only the side indexes of the source's
    JPEGs, which stay where they are."""
    max_side: Int | None = Field(default=None, ge=16)
    """Shrink images whose longer side has more pixels than this. null: lossless."""
    convert: Literal["jpeg"] | None = None
    """`jpeg`: turn images of other formats into JPEGs, which decode many times as fast and lose a
    little. null: PNG, WebP and AVIF keep their bytes, GIF, BMP, PPM and TIFF become PNG."""
    quality: Int = Field(default=95, ge=1, le=100)
    """JPEG quality of images that are converted or shrunk. Other images keep theirs."""
    shard_mb: Positive = 256.0
    """Megabytes (10^6 bytes) of source files per shard."""
    part: PartText | None = None
    """`N/M`: pack only the N-th of M parts of the shards, into the same `output` as the others.
    null: everything; in a Processing job with several hosts, this host's part."""

    def __post_init__(self) -> None:
        self.dataset(self.source or ".")  # reports a wrong setting before anything is read
        of_shards = {"max_side": self.max_side, "convert": self.convert, "part": self.part}
        for key, value in of_shards.items():
            if value is not None and self.output_format != "shards":
                raise ConfigError(key, value, "needs output_format=shards")

    def dataset(self, root: str) -> DataConfig:
        """Returns how to read the source; raises ConfigError."""
        given = {"val_fraction": self.val_fraction, "images": self.images}
        return dataset_settings({"root": root, **given}, self.table, self.data)

    @property
    def gray_bits(self) -> int:
        """`data.gray_bits`, for images that are stored with 8 bits; see `dataset`."""
        return int(self.data.get("gray_bits", 16))


@dataclass(config=SETTINGS)
class CheckConfig:
    """Reading a dataset from end to end to find damage."""

    root: FilePath
    """Folder with `train/<class>` and `val/<class>`, a table that lists images, or what
    `make dataset` wrote."""
    images: FilePath | None = None
    """`root=TABLE`: folder that the table's paths start from. null: the table's folder."""
    index_root: FilePath | None = None
    """Folder that holds `jpeg-index.sqlite`. null: the images' folder, if it holds one."""
    table: TableConfig = Field(default_factory=TableConfig)
    data: dict[str, Any] = Field(default={})
    """Other settings for reading the dataset, such as `data.format=webdataset`."""

    def __post_init__(self) -> None:
        self.dataset()

    def dataset(self) -> DataConfig:
        """Returns how to read the dataset; raises ConfigError."""
        given = {"root": self.root, "images": self.images, "index_root": self.index_root}
        return dataset_settings(given, self.table, self.data)
