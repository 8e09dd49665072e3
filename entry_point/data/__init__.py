"""Images from a folder or shards to batches.

Names are imported when first used: who needs only the configuration does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entry_point.config.data_config import DataConfig, DemoConfig, PipelineConfig
    from entry_point.data.batch import Batch, Damage
    from entry_point.data.errors import DataError
    from entry_point.data.loader import Loader, build_loader, open_source
    from entry_point.data.sources.source import Source

_MODULES = {
    "Batch": "batch",
    "Damage": "batch",
    "DataConfig": "config",
    "DataError": "errors",
    "DemoConfig": "config",
    "Loader": "loader",
    "PipelineConfig": "config",
    "Source": "source",
    "build_loader": "loader",
    "open_source": "loader",
}

__all__ = [
    "Batch",
    "Damage",
    "DataConfig",
    "DataError",
    "DemoConfig",
    "Loader",
    "PipelineConfig",
    "Source",
    "build_loader",
    "open_source",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
