"""Typed settings of `make evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.config.mistakes import check_config
from entry_point.config.schema import SETTINGS, Count


@dataclass(config=SETTINGS)
class EvaluateConfig:
    """Evaluating the model of a finished run, on one of its splits or on another dataset."""

    model_dir: str = "runs/latest/model"
    """The `model` folder of a finished run, or the model.tar.gz of a job on SageMaker."""
    split: Literal["train", "val"] = "val"
    """The split to evaluate on. Its images are cropped as for validation."""
    data: dict[str, Any] = Field(default={})
    """What differs from the run's own `data.*`, as in `data.root=DIR data.format=folder`."""
    output_dir: str = "runs/evaluation"
    """Folder for evaluation.json, which has the metrics, and evaluation.html."""
    batch_size: Count = 64
    """Images per batch."""
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)

    def changed(self, data: DataConfig) -> DataConfig:
        """The run's settings of the data with this command's; raises ConfigError."""
        return check_config({**asdict(data), **self.data}, DataConfig, "data")
