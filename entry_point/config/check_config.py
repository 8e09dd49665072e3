"""Typed settings of `make check-dataset`."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from entry_point.config.data_config import TableConfig
from entry_point.config.schema import SETTINGS, Int


@dataclass(config=SETTINGS)
class CheckConfig:
    """Reading a dataset from end to end to find damage."""

    root: str
    """Folder with `train/<class>/*.jpg` and `val/<class>/*.jpg`, a table that lists images, or what
    `make dataset` wrote."""
    images: str | None = None
    """`root=TABLE`: folder that the table's paths start from. null: the table's folder."""
    index_root: str | None = None
    """Folder that holds `jpeg-index.safetensors`. null: the images' folder, if it holds one."""
    table: TableConfig = Field(default_factory=TableConfig)
    workers: Int | None = Field(default=None, ge=1, le=1024)
    """Threads. null: one per usable core."""

    def __post_init__(self) -> None:
        self.table.check("table")
