"""Images from a folder to batches."""

from entry_point.data.batch import Batch
from entry_point.data.config import DataConfig, DemoConfig, PipelineConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.source import Source

__all__ = [
    "Batch",
    "DataConfig",
    "DataError",
    "DemoConfig",
    "Loader",
    "PipelineConfig",
    "Source",
    "build_loader",
    "open_source",
]
