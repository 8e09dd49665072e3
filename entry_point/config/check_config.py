"""Typed settings of `make check-dataset`."""

from __future__ import annotations

from dataclasses import dataclass, field

from entry_point.config.knob import check_knobs, knob
from entry_point.config.table_config import TableConfig


@dataclass
class CheckConfig:
    """Reading a dataset from end to end to find damage."""

    root: str
    """Folder with `train/<class>/*.jpg` and `val/<class>/*.jpg`, a table that lists images, or what
    `make dataset` wrote."""
    images: str | None = None
    """`root=TABLE`: folder that the table's paths start from. null: the table's folder."""
    index_root: str | None = None
    """Folder that holds `jpeg-index`. null: the images' folder, if it holds one."""
    table: TableConfig = field(default_factory=TableConfig)
    workers: int | None = knob(None, least=1, most=1024)
    """Threads. null: one per usable core."""

    def __post_init__(self) -> None:
        check_knobs(self)
        self.table.check("table")
