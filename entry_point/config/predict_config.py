"""Typed settings of `make predict`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.data_config import (
    DataConfig,
    PathsConfig,
    PipelineConfig,
    dataset_settings,
)
from entry_point.config.part import PartText
from entry_point.config.schema import SETTINGS, Bool, Count, FilePath


@dataclass(config=SETTINGS)
class PredictConfig:
    """Predicting images with the model of a finished run."""

    input: FilePath | None = None
    """A folder of images in any format, searched with its subfolders; an image; a table of paths;
    or the output of `make dataset`, all of it or its folder `train` or `val`. null, in a Processing
    job: its input folder."""
    images: FilePath | None = None
    """`input=TABLE`: folder that the table's paths start from. null: the table's folder."""
    table: PathsConfig = Field(default_factory=PathsConfig)
    data: dict[str, Any] = Field(default={})
    """Other settings for reading the images, such as `data.format=webdataset`."""
    model_dir: FilePath = "runs/latest/model"
    """The `model` folder of a finished run, or the model.tar.gz of a job on SageMaker."""
    output: Literal["scores", "features"] = "scores"
    """`scores`: what the model predicts, and its probability for each class or label, or its
    numbers. `features`: what its last linear layer gets."""
    output_dir: FilePath | None = None
    """Folder for the Parquet files, one per part. null, in a Processing job: its output folder."""
    csv: Bool = False
    """Write a CSV file beside each Parquet file, too. A text that spreadsheets would take for a
    formula begins with an apostrophe there."""
    part: PartText | None = None
    """`N/M`: predict only the N-th of M parts. null: everything; in a Processing job with several
    hosts, this host's part."""
    batch_size: Count = 32
    """Images per batch."""
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)

    def __post_init__(self) -> None:
        self.dataset(self.input or ".")

    def dataset(self, root: str) -> DataConfig:
        """Returns how to read the images; raises ConfigError."""
        return dataset_settings({"root": root, "images": self.images}, self.table, self.data)
