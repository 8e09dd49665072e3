"""Typed settings of `make predict`."""

from __future__ import annotations

from dataclasses import dataclass

from entry_point.config.data_config import PipelineConfig
from entry_point.config.knob import check_knobs, knob


@dataclass
class PredictConfig:
    """Predicting images with the model of a finished run."""

    input: str
    """An image, or a folder that is searched with its subfolders."""
    model_dir: str = "runs/latest/model"
    """The `model` folder of a finished run."""
    output: str | None = None
    """File to write. null: stdout."""
    format: str = knob("csv", choices=("csv", "jsonl"))
    """`csv`: path, then class and probability, or a column per label or number. `jsonl`: an object
    per image, with the probability of every class."""
    batch_size: int = knob(32, least=1)
    """Images per batch."""
    engine: str = knob("threads", choices=("threads", "subprocess", "workers", "pillow"))
    """`threads`, `subprocess`, `workers`: the operator, which is compiled once. `pillow`: needs no
    compiler."""
    num_workers: int | None = knob(None, least=0, most=512)
    """Threads or processes that decode. null: one per usable core."""
    allow_bad: bool = False
    """Exit with 0 even if some files could not be read."""

    def __post_init__(self) -> None:
        check_knobs(self)

    def pipeline(self) -> PipelineConfig:
        return PipelineConfig(self.engine, self.num_workers)
