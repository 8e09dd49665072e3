"""Typed settings of `make evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.checking import check_config
from entry_point.config.data_config import DataConfig, PipelineConfig, changed
from entry_point.config.schema import SETTINGS, Count, FilePath


@dataclass(config=SETTINGS)
class EvaluateConfig:
    """Evaluating the model of a finished run, on one of its splits or on another dataset."""

    model_dir: FilePath = "runs/latest/model"
    """The `model` folder of a finished run, or the model.tar.gz of a job on SageMaker."""
    split: Literal["train", "val", "test", "all"] | None = None
    """The split to evaluate on; its images are cropped as for validation. null: `val`, or all
    images of another dataset that has one split or none."""
    data: dict[str, Any] = Field(default={})
    """Settings that differ from the run's `data.*`, such as `data.root=DIR data.format=folder`."""
    output_dir: FilePath = "runs/evaluation"
    """Folder for evaluation.json (metrics and tables), evaluation.html and predictions.csv."""
    batch_size: Count = 64
    """Images per batch."""
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)

    def __post_init__(self) -> None:
        known = asdict(DataConfig())  # their values are checked by `changed`, with the run's
        check_config(
            {k: each for k, each in self.data.items() if k not in known}, DataConfig, "data"
        )

    @property
    def names_dataset(self) -> bool:
        """Whether another dataset than the run's is named."""
        return "root" in self.data

    def changed(self, data: DataConfig) -> DataConfig:
        """Returns the run's settings of the data with this command's; raises ConfigError.

        For another dataset, settings that were detected in the run's dataset are dropped.
        """
        kept = asdict(data)
        if self.names_dataset:
            own = "." in data.format
            kept |= {"val_fraction": None, "images": None, "access": "map", "index_root": None}
            kept |= {} if own else {"format": "auto", "table": {"kind": data.table.kind}}
        return changed(kept, self.data)
